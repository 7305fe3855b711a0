"""Many phrases as one regular expression: a tree of their letters, so that not each of them has to be tried."""

import re
import unicodedata
from collections.abc import Callable
from typing import Any

_DISGUISES = {"a": "a4@", "b": "b8", "e": "e3", "i": "i1!|", "l": "l1|", "o": "o0", "s": "s5$", "t": "t7"}
# Letters of scripts that put no space between words, and the underscore of Markdown, extend no word.
_EXTENDS_A_WORD = r"[^\W_\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
_GAP = r"[\s._-]+"
_LETTER = r"(?:[^\W_]|[@$!|])"
_SPELLED_OUT = re.compile(rf"(?<![^\W_]){_LETTER}(?:[ ._-]{_LETTER}(?![^\W_]))+")
_END = ""


class BlockListPattern:
    """Finds whole words and phrases; compiled when first used, and again after unpickling.

    Args:
        phrases: each with at least one letter or digit.
    """

    def __init__(self, phrases: list[str]) -> None:
        self.phrases = sorted({" ".join(words_of(plain(phrase))) for phrase in phrases})
        self._literal = frozenset(self.phrases)
        self._compiled: tuple[Callable, Callable] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": None}

    def count(self, text: str) -> int:
        """How often `text` holds any of them, without overlaps."""
        if self._compiled is None:
            self._compiled = self._compile()
        in_words, anywhere = self._compiled
        text = plain(text)
        hits = sum(map(self._is_hit, in_words(text)))
        for spelled in _SPELLED_OUT.findall(text):
            letters = spelled[::2]  # every second character is a gap
            hits += sum(len(match) > 1 and self._is_hit(match) for match in anywhere(letters))
        return hits

    def _is_hit(self, match: str) -> bool:
        """A number or a price is no disguise."""
        return any(map(str.isalpha, match)) or " ".join(words_of(match)) in self._literal

    def _compile(self) -> tuple[Callable, Callable]:
        tree: dict[str, Any] = {}
        for phrase in self.phrases:
            node = tree
            for letter in phrase:
                node = node.setdefault(letter, {})
            node[_END] = {}
        pattern = f"(?:{_pattern(tree)})"
        in_words = re.compile(rf"(?<!{_EXTENDS_A_WORD}){pattern}(?!{_EXTENDS_A_WORD})")
        return in_words.findall, re.compile(pattern).findall


def plain(text: str) -> str:
    """Case, compatibility forms and invisible characters taken out."""
    if text.isascii():
        return text.lower()
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return "".join(letter for letter in text if unicodedata.category(letter) != "Cf")


def words_of(phrase: str) -> list[str]:
    return [word for word in re.split(_GAP, phrase) if word]


def _pattern(node: dict[str, Any]) -> str:
    """The longest phrase first. Letters without a branching are written in a row, as nested groups are limited."""
    row = ""
    while len(node) == 1 and _END not in node:
        ((letter, node),) = node.items()
        row += _letter(letter)
    branches = [_letter(letter) + _pattern(child) for letter, child in node.items() if letter != _END]
    if not branches:
        return row
    return f"{row}(?:{'|'.join(branches)}){'?' if _END in node else ''}"


def _letter(letter: str) -> str:
    if letter == " ":
        return _GAP
    disguises = _DISGUISES.get(letter)
    return re.escape(letter) if disguises is None else f"[{disguises}]"
