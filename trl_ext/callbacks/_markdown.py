"""Text of others in Markdown: what a policy or a user wrote is shown, and never read as markup."""

import html
import re
from collections.abc import Iterable, Sequence

# Emphasis, code, links, images, strike-through, formulas. An underscore inside a word is none to Markdown.
_MARKUP = re.compile(r"[\\`*\[\]|~$]|(?<!\w)_|_(?!\w)")
_ADDRESS = re.compile(r"://|(?<!\w)www\.", re.IGNORECASE)  # which GitHub's Markdown turns into links


def escaped(text: str) -> str:
    """One line that reads as `text` does, in a paragraph or a cell of a table."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    line = _MARKUP.sub(r"\\\g<0>", html.escape(line, quote=False))
    return _ADDRESS.sub(lambda found: found[0].replace(":", "&#58;").replace(".", "&#46;"), line)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of GitHub's Markdown; cells are escaped, an empty one is a dash."""
    lines = [columns, ["---"] * len(columns), *([escaped(cell) or "-" for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
