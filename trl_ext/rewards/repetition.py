"""How little a completion repeats itself."""

from typing import Any

from trl_ext.errors import UserError
from trl_ext.rewards.text import Completion, completion_text


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
        return [self._score(completion_text(completion).lower().split()) for completion in completions]

    def _score(self, words: list[str]) -> float:
        total = len(words) - self.n + 1
        if total < 1:
            return 1.0
        return len(set(zip(*(words[i:] for i in range(self.n)), strict=False))) / total
