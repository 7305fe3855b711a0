"""Each reward function by itself: does it say anything, and does it count in the total?"""

from typing import NamedTuple

import numpy as np

LEAST = 32  # completions from which a constant is told
_TOP = 0.95  # share of completions at the highest value from which a function is saturated
_NEGLIGIBLE = 0.02  # of the leading function's spread: what the others add is lost in it


class Component(NamedTuple):
    """One reward function over the window.

    Attributes:
        applies: share of completions it gave a number to.
        mean, std: of these numbers.
        variance_share: of the total's variance, the covariance of its weighted values with the total by the total's
            variance; the shares add up to 1. NaN where the total does not vary.
        state: `live`, `dead` (the same value for all), `saturated` (its highest value for nearly all, which it was not
            always) or `unweighted`.
    """

    name: str
    weight: float
    applies: float
    mean: float
    std: float
    variance_share: float
    state: str


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
                _state(values, float(weights[i]), float(lowest[i]), float(highest[i])),
            )
        )
    return found


def _state(values: np.ndarray, weight: float, lowest: float, highest: float) -> str:
    if weight == 0:
        return "unweighted"
    if len(values) < LEAST:
        return "live"
    if values.min() == values.max() and not lowest < values[0] == highest:
        return "dead"  # where it was lower before, all have earned it by now
    return "saturated" if float(np.mean(values >= highest)) >= _TOP else "live"


def signal(components: list[Component], total_varies: bool) -> float | None:
    """The share of the weight whose functions tell completions apart; a saturated one counts a third."""
    weighed = [(abs(c.weight), {"live": 1.0, "saturated": 1 / 3}.get(c.state, 0.0)) for c in components if c.weight]
    whole = sum(weight for weight, _ in weighed)
    if whole == 0:
        return None
    return sum(weight * value for weight, value in weighed) / whole if total_varies else 0.0


def leading(components: list[Component]) -> tuple[Component, float] | None:
    """The function with the widest spread in the total, and the spread of the next by it; `None` for fewer than two
    that vary."""
    live = sorted((c for c in components if c.weight and c.std > 0), key=lambda c: abs(c.weight) * c.std)
    if len(live) < 2:
        return None
    top, second = live[-1], live[-2]
    return top, abs(second.weight) * second.std / (abs(top.weight) * top.std)


def balance(components: list[Component]) -> float | None:
    """1 while a second function has a twentieth of the leading one's spread or more."""
    lead = leading(components)
    return None if lead is None else min(1.0, lead[1] / (2.5 * _NEGLIGIBLE))


def dominates(ratio: float) -> bool:
    return ratio < _NEGLIGIBLE
