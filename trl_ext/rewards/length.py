"""A target band for the length of a completion."""

from typing import Any

from trl_ext.errors import UserError
from trl_ext.rewards.options import check_count, check_number
from trl_ext.rewards.text import Completion, completion_text, words_of


class LengthReward:
    """1 inside `minimum..maximum`, falling in a straight line to 0 at `edge` outside of it, 0 beyond.

    Args:
        minimum: shortest length with the full reward.
        maximum: longest length with the full reward.
        edge: width of the slope on either side, in the same unit; 0 makes the band hard.
        unit: `"words"` (split at white space; in Chinese, Japanese, Thai and others each letter) or `"tokens"` (as
            sampled, the end token included).
    Raises:
        UserError: a band that is empty or negative, another unit, or tokens wanted where none are given.
    """

    __name__ = "length"

    def __init__(self, minimum: int = 10, maximum: int = 60, edge: float = 5, unit: str = "words") -> None:
        for option, value in (("minimum", minimum), ("maximum", maximum)):
            check_count("length", option, value, minimum=0)
        if check_number("length", "edge", edge) < 0:
            raise UserError(f"length needs edge >= 0, not {edge}")
        if not 0 <= minimum <= maximum:
            raise UserError(f"length needs 0 <= minimum <= maximum, not minimum={minimum}, maximum={maximum}")
        if unit not in ("words", "tokens"):
            raise UserError(f"length has the units 'words' and 'tokens', not {unit!r}")
        self.minimum, self.maximum, self.edge, self.unit = minimum, maximum, edge, unit

    def __call__(
        self,
        prompts: list,
        completions: list[Completion],
        completion_ids: list[list[int]] | None = None,
        **kwargs: Any,
    ) -> list[float]:
        if self.unit == "words":
            return [self._score(len(words_of(completion_text(completion)))) for completion in completions]
        if completion_ids is None:
            raise UserError("length with unit='tokens' needs completion_ids: use unit='words' outside of a trainer")
        return [self._score(len(ids)) for ids in completion_ids]

    def _score(self, length: int) -> float:
        outside = max(self.minimum - length, length - self.maximum, 0)
        if outside == 0:
            return 1.0
        return max(0.0, 1.0 - outside / self.edge) if self.edge else 0.0
