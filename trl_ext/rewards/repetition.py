"""How little a completion repeats itself."""

import re
import string
from operator import eq
from typing import Any

from trl_ext.errors import UserError
from trl_ext.rewards.options import check_count
from trl_ext.rewards.text import Completion, completion_text, words_of

_PUNCTUATION = string.punctuation + "“”‘’«»…–—¡¿。，！？"  # noqa: RUF001


class RepetitionReward:
    """Distinct-n: distinct n-grams over all n-grams of a completion's words, in 0..1; 1 says that none repeats.

    Case does not count. A text without a single n-gram repeats nothing and scores 1: an empty completion does too, so
    give this reward beside one that asks for content.

    Paper: https://huggingface.co/papers/1510.03055

    Args:
        n: words in an n-gram.
    Raises:
        UserError: `n` below 1.
    """

    __name__ = "repetition"

    def __init__(self, n: int = 2) -> None:
        if n < 1:
            raise UserError(f"repetition needs n >= 1, not {n}")
        self.n = n

    def __call__(self, prompts: list, completions: list[Completion], **kwargs: Any) -> list[float]:
        return [self._score(words_of(completion_text(completion).lower())) for completion in completions]

    def _score(self, words: list[str]) -> float:
        total = len(words) - self.n + 1
        if total < 1:
            return 1.0
        return len(set(zip(*(words[i:] for i in range(self.n)), strict=False))) / total


class LoopReward:
    """Share of a completion's words outside of loops, in 0..1; 1 says that there is no loop, 0 that all is one.

    A loop is the same n-gram at least `repeats` times back to back. All of its words count, the first time included,
    and so does a last repeat that breaks off: of "I like it it it" 2 of 5 words are outside. Words are split at white
    space (in Chinese, Japanese, Thai and others each letter is one); case and punctuation around a word do not matter.
    A text without words has no loop and scores 1.

    The time is linear in the number of words and in `longest`.

    Args:
        repeats: times in a row that make a loop, at least 2; the default 3 leaves "very very good" alone.
        longest: words of the longest n-gram looked for, at least 1; the default 20 takes in most sentences.
    Raises:
        UserError: `repeats` below 2, `longest` below 1, or no whole numbers.
    """

    __name__ = "loops"

    def __init__(self, repeats: int = 3, longest: int = 20) -> None:
        self.repeats = check_count("loops", "repeats", repeats, minimum=2)
        self.longest = check_count("loops", "longest", longest, minimum=1)

    def __call__(self, prompts: list, completions: list[Completion], **kwargs: Any) -> list[float]:
        return [self._score(words_of(completion_text(completion).lower())) for completion in completions]

    def _score(self, words: list[str]) -> float:
        if not words:
            return 1.0
        words = [word.strip(_PUNCTUATION) or word for word in words]
        looping = bytearray(len(words))
        for n in range(1, min(self.longest, len(words) // self.repeats) + 1):
            least = (self.repeats - 1) * n
            same = bytes(map(eq, words, words[n:]))  # 1 where a word comes again n words later
            if b"\x01" * least not in same:
                continue
            for run in re.finditer(rb"\x01+", same):
                length = run.end() - run.start()
                if length >= least:
                    looping[run.start() : run.end() + n] = b"\x01" * (length + n)
        return looping.count(0) / len(words)
