"""Each reward function by itself: does it say anything, and does it count in the total?"""

from typing import NamedTuple

import numpy as np

LEAST = 32  # completions from which a constant is told
_TOP = 0.95  # share of completions at the highest value from which a function is saturated
_ROUNDING = 1e-9  # of the largest value: what lies closer together is one value
_COUNTS = {"live": 1.0, "saturated": 2 / 3}  # of a function by its state
_CANCELLED = 1e-5  # of the largest function's spread: float32 has no more
_NEGLIGIBLE = 0.02  # of the leading function's spread: what the others add is lost in it


class Component(NamedTuple):
    """One reward function over the window.

    Attributes:
        applies: share of completions it gave a number to.
        mean, std: of these numbers.
        variance_share: of the total's variance, the covariance of its weighted values with the total by the total's
            variance; the shares add up to 1. NaN where the total does not vary.
        state: `live`, `dead` (the same value for all), `silent` (a number for none), `saturated` (its highest value for
            nearly all, which it was not always) or `unweighted`.
    """

    name: str
    weight: float
    applies: float
    mean: float
    std: float
    variance_share: float
    state: str

    @property
    def worth(self) -> float:
        """What it adds to the total on average: a penalty of negative weight takes away."""
        return self.mean if self.weight >= 0 else -self.mean


def components_of(
    names: list[str],
    weights: np.ndarray,
    rewards: np.ndarray,
    totals: np.ndarray,
    lowest: np.ndarray,
    highest: np.ndarray,
) -> list[Component]:
    """`lowest` and `highest` are the extreme values each function ever gave, shape `(functions,)`."""
    scored = ~np.isnan(totals)
    centered = totals[scored] - totals[scored].mean() if scored.any() else totals[scored]
    variance = float((centered**2).mean()) if scored.any() else 0.0
    found = []
    for i, name in enumerate(names):
        column = rewards[:, i]
        values = column[~np.isnan(column)]
        share = float("nan")
        if variance > 0 and len(values):
            weighted = weights[i] * np.where(np.isnan(column), 0.0, column)[scored]
            share = float((weighted * centered).mean()) / variance
        found.append(
            Component(
                name,
                float(weights[i]),
                len(values) / len(column) if len(column) else 0.0,
                float(values.mean()) if len(values) else float("nan"),
                float(values.std()) if len(values) else float("nan"),
                share,
                _state(values, len(column), float(weights[i]), float(lowest[i]), float(highest[i])),
            )
        )
    return found


def _state(values: np.ndarray, asked: int, weight: float, lowest: float, highest: float) -> str:
    if weight == 0:
        return "unweighted"
    if not len(values):
        return "silent" if asked >= LEAST else "live"
    if len(values) < LEAST:
        return "live"
    if weight < 0:  # a penalty: what it adds to the total counts
        values, lowest, highest = -values, -highest, -lowest
    rounding = _ROUNDING * max(abs(values.min()), abs(values.max()))
    if values.max() - values.min() <= rounding and not (lowest < values.min() - rounding and values.max() >= highest):
        return "dead"  # where it was lower before, all have earned it by now
    return "saturated" if float(np.mean(values >= highest - rounding)) >= _TOP else "live"


def total_varies(std: float, components: list[Component]) -> bool:
    """Whether there is more to the total's spread than what rounding leaves where functions cancel out."""
    return std > _CANCELLED * max((abs(c.weight) * c.std for c in components if c.std > 0), default=0.0)


def signal(components: list[Component], total_varies: bool) -> float:
    """The share of the weight whose functions tell completions apart; one that all have learnt counts two thirds."""
    weighed = [(abs(c.weight), _COUNTS.get(c.state, 0.0)) for c in components if c.weight]
    whole = sum(weight for weight, _ in weighed)
    if whole == 0:
        return 0.0
    share = sum(weight * value for weight, value in weighed) / whole
    if total_varies:
        return share
    cancel = any(c.weight and c.std > 0 for c in components)
    return 0.0 if cancel else min(share, _COUNTS["saturated"])


def says(components: list[Component]) -> list[tuple[Component, float]]:
    """The live functions, and the spread of each in the total by that of the leading one, which comes first."""
    live = [c for c in components if c.state == "live" and abs(c.weight) * c.std > 0]
    live.sort(key=lambda c: -abs(c.weight) * c.std)
    return [(c, abs(c.weight) * c.std / (abs(live[0].weight) * live[0].std)) for c in live]


def balance(components: list[Component]) -> float | None:
    """Mean over the functions beside the leading one, each of which counts 1 from a twentieth of its spread on; `None`
    for fewer than two that vary."""
    others = [ratio for _, ratio in says(components)[1:]]
    return sum(min(1.0, ratio / (2.5 * _NEGLIGIBLE)) for ratio in others) / len(others) if others else None


def is_lost(ratio: float) -> bool:
    """Whether a function's spread is lost in that of the leading one."""
    return ratio < _NEGLIGIBLE
