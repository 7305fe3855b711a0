import sys

from trl_ext.cli import main

sys.exit(main())
