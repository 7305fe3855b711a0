"""Has the held-back reward fallen while the reward rose? Asked of a row of evaluations."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trl_ext.rewards.reliability.numbers import ramp, slope

MANY = 16  # evaluations, up to which it is hardly known how much neighbours err alike
_SURE = 4.0  # standard errors: overlapping windows are looked at often
_SURE_OF_FEW = 6.0  # over 16 evaluations or fewer, where the fall is not large
_LARGE = 1.0  # standard deviations of the gold reward
_FALL = 0.5  # standard deviations of the gold reward
_LEVEL = 4  # evaluations whose mean is the level of the gold reward
FAR, _VERY_FAR = 0.7, 1.5  # standard deviations that the level must lie below its best to need no trend; between them
_UNUSUAL = 5.0  # this many times what it usually moves in as many evaluations
_SCATTER = 5.0  # this many times the scatter of the evaluations
_KNOWN = 24  # levels from which it is known how they usually move: before, one fall is most of what was seen


class Evaluation(NamedTuple):
    """One evaluation, or the means of neighbouring ones.

    Attributes:
        first: the first step.
        step: mean over the completions.
        completions: how many.
        proxy, proxy_variance, gold, gold_variance: over the completions of a step.
    """

    first: int
    step: float
    completions: int
    proxy: float
    proxy_variance: float
    gold: float
    gold_variance: float

    def joined(self, other: "Evaluation") -> "Evaluation":
        """With the one after it."""
        count = self.completions + other.completions
        step, *moments = (
            (a * self.completions + b * other.completions) / count
            for a, b in zip((self.step, *self[3:]), (other.step, *other[3:]), strict=True)
        )
        return Evaluation(self.first, step, count, *moments)


class GoldTrend(NamedTuple):
    """Over some evaluations.

    Attributes:
        proxy_slope, gold_slope: a step, in the unit of each.
        proxy_sure, gold_sure: how many standard errors from 0.
        proxy_change, gold_change: what the slope makes over the steps seen, in standard deviations over completions.
        first_step, last_step: of the evaluations.
        evaluations: how many.
        dropped: the level of the gold reward lies far below its best while the proxy has risen.
        over: the gold reward has come back since.
    """

    proxy_slope: float
    gold_slope: float
    proxy_sure: float
    gold_sure: float
    proxy_change: float
    gold_change: float
    first_step: int
    last_step: int
    evaluations: int
    dropped: bool = False
    over: bool = False

    def parted(self) -> bool:
        """The proxy rises for sure while the gold reward falls for sure, and by enough to matter."""
        return not self.over and (
            self.dropped
            or (
                self.proxy_sure > _SURE
                and self.gold_sure < -(_SURE if self.evaluations > MANY or self.gold_change < -_LARGE else _SURE_OF_FEW)
                and self.gold_change < -_FALL
                and self.proxy_change > _FALL
            )
        )

    def part(self) -> float:
        """Falls from 1 to 0 while the gold reward falls from 0.25 to 1 standard deviation under a rising proxy."""
        falls = self.dropped or (self.gold_sure < -_SURE and self.proxy_sure > _SURE)
        return ramp(-self.gold_change, _FALL / 2, 1.0) if falls and not self.over else 1.0

    def recovery(self, rows: Sequence[Evaluation]) -> float:
        """The level of the gold reward from which the fall is over: half of what matters below its best in `rows`,
        which are those of this trend."""
        levels = levels_of([row.gold for row in rows])
        scale = float(np.mean([row.gold_variance for row in rows])) ** 0.5 or float(levels.std())
        return float(levels.max()) - _FALL / 2 * scale


def trend_of(rows: Sequence[Evaluation]) -> GoldTrend:
    _, steps, counts, *columns = np.array(rows, dtype=float).T
    span = steps[-1] - steps[0]
    changes = []
    for means, variances, is_proxy in ((*columns[:2], True), (*columns[2:], False)):
        # a reward that is learnt rises in a curve, no noise; the gold reward must fall beyond doubt
        b, sure = slope(steps, means, counts, independent=is_proxy)
        # where all completions of a step get the same, steps are all there is to compare
        scale = float((counts @ variances / counts.sum()) ** 0.5) or float(means.std())
        changes.append((b, sure, float(b * span / scale) if scale > 0 else 0.0))
    (proxy, proxy_sure, proxy_change), (gold, gold_sure, gold_change) = changes
    return GoldTrend(
        proxy, gold, proxy_sure, gold_sure, proxy_change, gold_change,
        int(steps[0]), int(steps[-1]), len(steps),
    )  # fmt: skip


def since_best(rows: Sequence[Evaluation], far: float = _VERY_FAR) -> Sequence[Evaluation]:
    """Those since the level of the gold reward was best, where it now lies so far below, beside a proxy that rose, that
    no trend is needed to be sure; else none.

    Args:
        far: standard deviations that are enough where the level moves little.
    """
    if len(rows) < 2 * _LEVEL:
        return []
    levels, proxies = levels_of([row.gold for row in rows]), levels_of([row.proxy for row in rows])
    best = int(np.argmax(levels))
    scale = float(np.mean([row.gold_variance for row in rows])) ** 0.5
    proxy_scale = float(np.mean([row.proxy_variance for row in rows])) ** 0.5
    if min(scale, proxy_scale) <= 0 or len(levels) - best < _LEVEL:
        return []
    usual = _usual_move(np.array([row.gold for row in rows]), levels)
    needed = float(np.clip(usual / scale, far, _VERY_FAR)) * scale
    fell = levels[best] - levels[-1] > needed and proxies[-1] - proxies[best] > _FALL * proxy_scale
    return rows[best:] if fell else []


def _usual_move(gold: np.ndarray, levels: np.ndarray) -> float:
    """What the level must move by to be out of the ordinary."""
    scatter = 1.4826 / 2**0.5 * float(np.median(np.abs(np.diff(gold))))
    if len(levels) < _KNOWN:
        return _SCATTER * scatter
    return max(_SCATTER * scatter, _UNUSUAL * 1.4826 * float(np.median(np.abs(levels[_LEVEL:] - levels[:-_LEVEL]))))


def levels_of(values: Sequence[float]) -> np.ndarray:
    """Means of each four neighbours; empty for fewer."""
    if len(values) < _LEVEL:
        return np.empty(0)
    return np.convolve(values, np.ones(_LEVEL) / _LEVEL, mode="valid")
