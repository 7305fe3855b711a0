"""The one error that means: the user can mend this. Recipes say its message alone and exit with a non-zero status."""

import sys
from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """A mistake in configuration, data or a reward function. The message is one line and names the fix."""


def say(line: str) -> None:
    """A line on stderr in one write. `print` makes two of it, between which another process of the run can write."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def did_you_mean(name: object, known: Iterable[str], otherwise: str = "") -> str:
    """`did you mean NEAREST?` for a message about a name nobody knows, or `otherwise` where none is like it."""
    near = get_close_matches(str(name), list(known), n=1)
    return f"did you mean {near[0]}?" if near else otherwise
