"""A list of keywords with weights, the transparent companion of `sentiment`."""

import math
import unicodedata
from collections.abc import Callable
from functools import cache
from typing import Any

from trl_ext.errors import UserError
from trl_ext.rewards.options import check_flag, check_mapping, check_number, shown
from trl_ext.rewards.text import Completion, completion_text


class KeywordReward:
    """The sum of the weights of the keywords that a completion holds, 0 where it holds none.

    A keyword is a word or a phrase and matches whole words: `art` is not in "party", but in "state-of-the-art". What
    white space stands between the words of a phrase does not matter, punctuation does. Where keywords overlap, the one
    that starts first counts, of those the longest: with `good` and `not good`, "not good" has the weight of the phrase
    alone. Scripts without space between words (Chinese, Thai) have no whole words to match.

    A keyword counts once however often it is repeated, because a policy paid for every mention learns to repeat it.

    Args:
        weights: weight of each keyword, any finite number: `{wonderful: 1.0, "a waste of time": -1.0}`.
        case_sensitive: whether "Great" is another word than "great"; default false.
        every_mention: whether each mention counts; default false, which is once a completion. Bound it with `clip`.
        clip: `[lowest, highest]` value of a completion; default none.
    Raises:
        UserError: no keywords, keywords that are the same, a weight that is no number, or an empty range.
    """

    __name__ = "keywords"

    def __init__(
        self,
        weights: dict[str, float],
        case_sensitive: bool = False,
        every_mention: bool = False,
        clip: list[float] | None = None,
    ) -> None:
        weights = check_mapping("keywords", "weights", weights, "{great: 1.0, boring: -1.0}")
        self.case_sensitive = check_flag("keywords", "case_sensitive", case_sensitive)
        self.every_mention = check_flag("keywords", "every_mention", every_mention)
        self.clip = _check_clip(clip)
        self._weights: dict[tuple[str, ...], float] = {}
        for keyword, weight in weights.items():
            words = tuple(self._words(keyword))
            if words in self._weights:
                raise UserError(f"keywords has {shown(keyword)} twice, written in two ways: leave one out")
            self._weights[words] = check_number("keywords", f"the weight of {keyword!r}", weight)
        self._lengths: dict[str, list[int]] = {}  # by first word, how many words its keywords have: longest first
        for words in sorted(self._weights, key=len, reverse=True):
            lengths = self._lengths.setdefault(words[0], [])
            if len(words) not in lengths:
                lengths.append(len(words))

    def __call__(self, prompts: list, completions: list[Completion], **kwargs: Any) -> list[float]:
        return [self._score(self._words(completion_text(completion))) for completion in completions]

    def _words(self, text: str) -> list[str]:
        """Words and single marks; composed, so that both ways to write "é" are the same word."""
        if not text.isascii():
            text = unicodedata.normalize("NFC", text)
        return _splitter()(text if self.case_sensitive else text.casefold())

    def _score(self, words: list[str]) -> float:
        mentions = self._mentions(words)
        if not self.every_mention:
            mentions = list(dict.fromkeys(mentions))
        value = math.fsum(self._weights[mention] for mention in mentions)
        return value if self.clip is None else min(max(value, self.clip[0]), self.clip[1])

    def _mentions(self, words: list[str]) -> list[tuple[str, ...]]:
        found = []
        start = 0
        for index, word in enumerate(words):
            if index < start or word not in self._lengths:
                continue
            for length in self._lengths[word]:
                keyword = tuple(words[index : index + length])
                if keyword in self._weights:
                    found.append(keyword)
                    start = index + length
                    break
        return found


@cache
def _splitter() -> Callable[[str], list[str]]:
    """`regex`, because `re` breaks the words of scripts with vowel signs; here, as naming rewards must stay quick."""
    import regex

    return regex.compile(r"\w+|[^\w\s]").findall


def _check_clip(clip: Any) -> tuple[float, float] | None:
    if clip is None:
        return None
    if not isinstance(clip, list | tuple) or len(clip) != 2:
        raise UserError(f"keywords needs two numbers for clip, e.g. clip: [-1.0, 1.0], not {shown(clip)}")
    lowest, highest = (check_number("keywords", "the ends of clip", end) for end in clip)
    if lowest >= highest:
        raise UserError(f"keywords needs the lower end of clip first, e.g. clip: [-1.0, 1.0], not {shown(clip)}")
    return lowest, highest
