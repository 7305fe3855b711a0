"""Exit codes, and the one line of an error."""

from trl_ext.errors import say
from trl_ext.monitor import Severity

WRONG_INPUT, ALERTS = 2, 3  # exit codes; 0 is success
FAIL_ON = [severity.value for severity in Severity if severity > Severity.INFO]


def complain(message: str) -> int:
    """Prints one line, and returns the exit code."""
    say(f"trl-ext: error: {' '.join(message.split())}")
    return WRONG_INPUT
