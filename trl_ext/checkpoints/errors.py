"""What keeps a file of a checkpoint from being read."""

from trl_ext.errors import UserError


class UnreadableError(UserError):
    """One line about one file.

    Args:
        message: what is wrong, with the numbers.
        kind: `missing`, `empty`, `truncated`, `header`, `unsafe` (would run code, or leads out of the folder) or
            `format` (in a form that is not read).
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(printable(message))
        self.kind = kind


def printable(message: str) -> str:
    """Names of files and tensors come from others: no line, no colour, no cursor of their own in a message."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in message)
