r"""Finds the number that a text gives as its answer, and reads it exactly.

Where the answer is, the first of these that the text has:
1. the last `\boxed{...}` or `#### ...` (GSM8K); if that holds no number, the text gives none
2. the last "answer is ...", "answer: ..." or "answer = ..." whose sentence goes on with a number
3. the last number of the text
In 1 and 2 the first number counts, after an equals sign that which follows the last one: "the answer is 6 * 7 = 42".
"""

import re
import unicodedata
from collections import deque
from fractions import Fraction
from typing import NamedTuple

_LONGEST = 400  # characters of a number, and the largest exponent: more is no answer but an attack on the memory
_STATEMENTS = 10  # of which the last with a number is taken: each is looked at, and a text can repeat them
_TAIL = 60  # characters after a number that can hold its unit

_GROUPED = r"\d{1,3}(?:[,'\u2009]\d{2,3})*[,'\u2009]\d{3}(?!\d)"
_PLAIN = rf"(?:(?:{_GROUPED}|\d+)(?:\.\d+)?|(?<![.\d])\.\d+)"
_PART = rf"\{{\s*[-+]?{_PLAIN}\s*\}}|\d"
_EXPONENT = r"\{?\s*[-+]?\d{1,40}\s*\}?"
_NUMBER = re.compile(
    rf"""(?=[-+\d.\\])  # quickly past all else
    (?P<sign>(?<![\w)\]}}.%])[-+][$€£¥]?)?
    (?<![A-Za-z\d_^])(?<!\d\.)(?<![_^]\{{)(?<![_^]\{{[-+])(?<![_^][-+])
    (?:
        (?P<whole>\d{{1,9}})\s*\\[dtc]?frac\s*(?P<mixed_top>{_PART})\s*(?P<mixed_bottom>{_PART})
        | \\[dtc]?frac\s*(?P<top>{_PART})\s*(?P<bottom>{_PART})
        | (?P<before>\d{{1,9}})[ ](?P<n>\d{{1,9}})/(?P<d>\d{{1,9}})(?![\d/])
        | (?P<number>{_PLAIN})
          (?: [ ]?/[ ]?(?P<over>[-+]?{_PLAIN})(?!/?\d)
            | [eE](?P<e>[-+]?\d{{1,40}})(?![\w])
            | \s?(?:[x×·*]|\\times|\\cdot)\s*10\s*(?:\^|\*\*)\s*(?P<ten>{_EXPONENT})
            | (?:\^|\*\*)(?P<power>{_EXPONENT}) )?
    )""",  # noqa: RUF001
    re.VERBOSE,
)
_MARKED = re.compile(r"\\boxed\s*(?P<braced>\{)?|####")
_STATED = re.compile(r"\banswer[\s*_]*(?::|=|\b(?:is|equals|(?:would|will|should|must) be)\b)[\s:*]*", re.IGNORECASE)
_SENTENCE = re.compile(r"(?:(?![.!?](?:\s|$))[^\n])*")
_CLAUSE_END = re.compile(r"[,;]\s|\s\(")
_ROOT_BEFORE = re.compile(r"(?:√|sqrt)\s*[({]?\s*$")
_IRRATIONAL_AFTER = re.compile(r"(?:\s|\\cdot|\\,|[*·])*(?:π|√|\\pi\b|\\?sqrt\b|pi\b)")
_PERCENT = re.compile(r"\s*(?:%|per ?cent\b)", re.IGNORECASE)
_LATEX_AROUND_UNITS = re.compile(r"\\(?:text|mathrm|textbf|mathbf|textit)\b|\\[,;:! ]|[{}~$]|\*\*")
_UNIT = re.compile(r"\s*((?:[^\W\d_]|°)+(?:\^?-?\d+)?(?:[/·*][^\W\d_]+(?:\^?-?\d+)?)*)\s*(?=(?P<alone>$|[^\w\s]|\n)?)")
_LETTERS = str.maketrans({"−": "-", "–": "-", "﹣": "-", "－": "-", "⁄": "/", "．": ".", "，": ",", "％": "%",  # noqa: RUF001
                          "\u00a0": "\u2009", "\u202f": "\u2009", "’": "'", "μ": "µ"})  # fmt: skip  # noqa: RUF001
_SEPARATORS = re.compile(r"[,'\u2009{}\s]")
_VULGAR = re.compile(r"(\d?)\s?([¼-¾⅐-⅞])")
_SUPERSCRIPT = re.compile(r"[⁺⁻]?[⁰¹²³⁴-⁹]+")


class Number(NamedTuple):
    """What a text says.

    Attributes:
        value: exact; that of "75%" is 75.
        percent: whether a percent sign, or "percent", follows.
        unit: the word or symbol that follows, "" for none.
        unit_ends: whether nothing but a mark follows the unit: prose goes on ("12 because ...").
    """

    value: Fraction
    percent: bool = False
    unit: str = ""
    unit_ends: bool = False


def find_answer(text: str) -> Number | None:
    """The number given as the answer; `None` where there is none, or none that can be read."""
    text = _simplified(text)
    if marked := deque(_MARKED.finditer(text), maxlen=1):
        return _first_number(_after_mark(text, marked[0]))
    for stated in reversed(deque(_STATED.finditer(text), maxlen=_STATEMENTS)):
        sentence = _SENTENCE.match(text, stated.end())
        assert sentence is not None  # it matches the empty text
        clause = _CLAUSE_END.split(sentence[0], maxsplit=1)[0]
        if _NUMBER.search(clause) is not None:
            return _first_number(clause)
    last = deque(_NUMBER.finditer(text), maxlen=1)
    return _read(text, last[0]) if last else None


def _after_mark(text: str, mark: re.Match[str]) -> str:
    """What a box holds, or the rest of the line."""
    start, depth = mark.end(), 1
    if mark["braced"] is None:
        return text[start:].partition("\n")[0]
    for index in range(start, len(text)):
        depth += (text[index] == "{") - (text[index] == "}")
        if depth == 0:
            return text[start:index]
    return text[start:]


def _first_number(text: str) -> Number | None:
    text = text[text.rfind("=") + 1 :]
    match = _NUMBER.search(text)
    return None if match is None else _read(text, match)


def _read(text: str, match: re.Match[str]) -> Number | None:
    tail = text[match.end() : match.end() + _TAIL]
    if _ROOT_BEFORE.search(text, max(0, match.start() - 8), match.start()) or _IRRATIONAL_AFTER.match(tail):
        return None
    try:
        value = _value(match)
    except (ValueError, ZeroDivisionError):
        return None
    if _PERCENT.match(tail):
        return Number(value, percent=True)
    tail = _LATEX_AROUND_UNITS.sub(" ", tail.replace("^\\circ", "°").replace("^{\\circ}", "°"))
    unit = _UNIT.match(tail)
    return Number(value) if unit is None else Number(value, False, unit[1], unit["alone"] is not None)


def _value(match: re.Match[str]) -> Fraction:
    """Raises ValueError for what is too long, ZeroDivisionError for 1/0."""
    if match.end() - match.start() > _LONGEST:
        raise ValueError("too long")
    part = match.groupdict()
    if part["whole"]:
        value = _plain(part["whole"]) + _plain(part["mixed_top"]) / _plain(part["mixed_bottom"])
    elif part["top"]:
        value = _plain(part["top"]) / _plain(part["bottom"])
    elif part["before"]:
        value = _plain(part["before"]) + _plain(part["n"]) / _plain(part["d"])
    elif part["over"]:
        value = _plain(part["number"]) / _plain(part["over"])
    else:
        value = _plain(part["number"])
        if exponent := part["e"] or part["ten"]:
            value *= Fraction(10) ** _exponent(exponent)
        elif part["power"]:
            value = value ** _exponent(part["power"])
    return -value if (part["sign"] or "").startswith("-") else value


def _plain(text: str) -> Fraction:
    return Fraction(int(text)) if text.isdecimal() else Fraction(_SEPARATORS.sub("", text))


def _exponent(text: str) -> int:
    exponent = int(text.strip("{} \t\n"))
    if abs(exponent) > _LONGEST:
        raise ValueError("too large")
    return exponent


def _simplified(text: str) -> str:
    """One way to write minus signs, fractions, powers and thousands; LaTeX without what only moves the ink."""
    if not text.isascii():
        text = _SUPERSCRIPT.sub(lambda m: f"^{unicodedata.normalize('NFKC', m[0])}", text.translate(_LETTERS))
        text = text.translate(_LETTERS)  # NFKC writes a superscript minus as U+2212
        text = _VULGAR.sub(lambda m: f"{m[1]} {_vulgar(m[2])}" if m[1] else m[0][:-1] + _vulgar(m[2]), text)
    text = text.replace("{,}", ",")
    if "\\" in text:
        text = text.replace("\\!", "").replace("\\$", "$").replace("\\%", "%")
        text = re.sub(r"(?<=\d)\\[,;: ](?=\d{3})", "\u2009", text)
        text = re.sub(r"\\(?:left|right|displaystyle)\b", "", text)
        text = re.sub(r"(\\(?![dtc]?frac)[A-Za-z]+)(?=\d)", r"\1 ", text)
    return text


def _vulgar(sign: str) -> str:
    return unicodedata.normalize("NFKC", sign).translate(_LETTERS)
