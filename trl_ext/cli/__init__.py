"""The command line: `trl-ext`, also `python -m trl_ext.cli`. One file a command."""

import argparse
import io
import os
import sys
from collections.abc import Sequence

from trl_ext.cli.checkpoint import add_checkpoint
from trl_ext.cli.config import add_config
from trl_ext.cli.output import complain
from trl_ext.cli.pipeline import add_pipeline
from trl_ext.cli.preflight import add_preflight
from trl_ext.cli.replay import add_replay
from trl_ext.cli.rewards import add_rewards
from trl_ext.cli.sweep import add_sweep
from trl_ext.errors import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit code: 0, 1 for a failed check of `preflight`, 2 for wrong input, 3 for alerts
    that `--fail-on` names, 130 for Ctrl-C."""
    parser = _parser()
    options, words = parser.parse_known_args(arguments)
    options.words = words
    if words and not getattr(options, "takes_words", False):  # those of a recipe behind `preflight`
        parser.error(f"unrecognized arguments: {' '.join(words)}")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path may hold what the terminal cannot show
    try:
        code = options.run(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except UserError as error:
        return complain(str(error))
    except BrokenPipeError:  # `| head` has seen enough; Python would complain again when it closes the stream
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trl-ext", description="Tools for runs of TRL.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    add_checkpoint(commands)
    add_config(commands)
    add_pipeline(commands)
    add_preflight(commands)
    add_replay(commands)
    add_rewards(commands)
    add_sweep(commands)
    return parser
