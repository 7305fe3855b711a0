"""JSON in a text, read as strictly as the standard (RFC 8259) says, and found where it is asked for."""

import json
import re
from typing import Any, NoReturn

_WHITE_SPACE = " \t\n\r"  # what JSON allows around a value; Python strips much more, such as a no-break space
PLACES = ("whole", "fenced", "first")

# A fence of Markdown: three marks or more at the start of a line, then at most a word such as `json`.
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[^\n`]*\n", re.MULTILINE)
# A string without an end takes the rest of the text, so that each character is looked at once.
_BRACES = re.compile(r'[{}]|"(?:[^"\\]|\\.)*+"?', re.DOTALL)


def read_json(text: str, where: str) -> Any:
    """The JSON value in `text`.

    Args:
        text: what the policy wrote.
        where: `"whole"`, the text is JSON, apart from white space around it; `"fenced"`, the content of the first
            fenced block of Markdown is; `"first"`, the first valid object, whatever stands around it. Objects inside a
            broken one do not count, nor does what follows a brace that never closes: a reply cut off in the middle is
            broken, though it may hold whole objects.
    Raises:
        ValueError: there is none. Also not JSON: NaN and Infinity, an object with a key given twice, and what is nested
            too deeply for Python to read.
    """
    if where == "first":
        return _first_object(text)
    return _decode(_fenced(text) if where == "fenced" else text.strip(_WHITE_SPACE))


def _decode(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _fenced(text: str) -> str:
    opening = _FENCE.search(text)
    if opening is None:
        raise ValueError("no fenced block")
    mark = re.escape(opening[1][0])
    closing = re.compile(rf"^ {{0,3}}{mark}{{{len(opening[1])},}}[ \t\r]*$", re.MULTILINE).search(text, opening.end())
    if closing is None:
        raise ValueError("a fenced block that does not end")
    return text[opening.end() : closing.start()]


def _first_object(text: str) -> Any:
    """Only what its braces bound is decoded: an error message of `json` takes as long as the text before it."""
    start = text.find("{")
    while start >= 0:
        end = _behind(text, start)
        try:
            return _decode(text[start:end])
        except ValueError:
            start = text.find("{", end)
    raise ValueError("no object")


def object_spans(text: str) -> list[tuple[int, int]]:
    """(start, behind the end) of the valid outermost objects in `text`, whatever stands around them; which count is as
    `read_json` says of `"first"`."""
    spans = []
    start = text.find("{")
    while start >= 0:
        end = _behind(text, start)
        try:
            _decode(text[start:end])
            spans.append((start, end))
        except ValueError:
            pass
        start = text.find("{", end)
    return spans


def _behind(text: str, start: int) -> int:
    """Behind the brace that closes the one at `start`; the end of the text where none does."""
    depth = 0
    for token in _BRACES.finditer(text, start):
        if token[0] == "{":
            depth += 1
        elif token[0] == "}":
            depth -= 1
            if depth == 0:
                return token.end()
    return len(text)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key given twice")
    return members


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _integer(digits: str) -> int | float:
    """Python refuses to read integers of more than some thousand digits; as a float they are infinite, as 1e999 is."""
    try:
        return int(digits)
    except ValueError:
        return float(digits)


_DECODER = json.JSONDecoder(object_pairs_hook=_distinct, parse_constant=_refuse, parse_int=_integer)
