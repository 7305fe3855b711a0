"""A held-back measure of the truth beside the reward that is trained on: do they part?"""

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from trl_ext.rewards.reliability.numbers import ramp, slope, spearman

KEPT = 64  # evaluations
_LEAST = 6  # evaluations before which no trend is told
_SURE = 4.0  # standard errors: overlapping windows are looked at often
_SURE_OF_FEW = 6.0  # over 16 evaluations, which hardly tell how much neighbours err alike
_FALL = 0.5  # standard deviations of the gold reward


class GoldTrend(NamedTuple):
    """Over the evaluations kept.

    Attributes:
        proxy_slope, gold_slope: a step, in the unit of each.
        proxy_sure, gold_sure: how many standard errors from 0.
        proxy_change, gold_change: what the slope makes over the steps seen, in standard deviations over completions.
        first_step, last_step: of the evaluations.
        evaluations: how many.
        correlation: Spearman's, of the two over the completions of the latest evaluations; `None` when unknown.
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
    correlation: float | None

    def parted(self) -> bool:
        """The proxy rises for sure while the gold reward falls for sure, and by enough to matter."""
        return (
            self.proxy_sure > _SURE
            and self.gold_sure < -(_SURE if self.evaluations > KEPT // 4 else _SURE_OF_FEW)
            and self.gold_change < -_FALL
            and self.proxy_change > _FALL
        )

    def part(self) -> float:
        """Falls from 1 to 0 while the gold reward falls from 0.25 to 1 standard deviation under a rising proxy."""
        falls = self.gold_sure < -_SURE and self.proxy_sure > _SURE
        return ramp(-self.gold_change, _FALL / 2, 1.0) if falls else 1.0


class GoldSeries:
    """Means of both rewards at each evaluation, and the completions of the latest ones.

    The trend is judged over the last 64, 32 and 16 evaluations, and the one that says most is given: what was learnt
    honestly at first does not hide what is hacked later.
    """

    def __init__(self) -> None:
        # step, completions, proxy mean, proxy variance, gold mean, gold variance
        self.evaluations: deque[tuple[int, int, float, float, float, float]] = deque(maxlen=KEPT)
        self.latest: deque[tuple[int, Any, Any, float, float]] = deque(maxlen=256)

    def add(self, step: int, prompts: list, completions: list, proxy: np.ndarray, gold: np.ndarray) -> None:
        """One evaluation; both arrays of shape `(completions,)`, NaN where one does not apply."""
        known = ~(np.isnan(proxy) | np.isnan(gold))
        if not known.any():
            return
        p, g = proxy[known], gold[known]
        self.evaluations.append((step, len(p), float(p.mean()), float(p.var()), float(g.mean()), float(g.var())))
        rows = np.flatnonzero(known)
        self.latest.extend((step, prompts[i], completions[i], float(proxy[i]), float(gold[i])) for i in rows)

    def trend(self) -> GoldTrend | None:
        """`None` for fewer than 6 evaluations."""
        if len(self.evaluations) < _LEAST:
            return None
        trends = [self._over(size) for size in (KEPT, KEPT // 2, KEPT // 4)]
        return min(trends, key=lambda trend: (not trend.parted(), trend.gold_change if trend.proxy_change > 0 else 0))

    def _over(self, size: int) -> GoldTrend:
        table = np.array(list(self.evaluations)[-size:], dtype=float)
        steps, counts = table[:, 0], table[:, 1]
        span = steps[-1] - steps[0]
        changes = []
        for mean, variance in ((2, 3), (4, 5)):
            # a reward that is learnt rises in a curve, no noise; the gold reward must fall beyond doubt
            b, sure = slope(steps, table[:, mean], counts, independent=mean == 2)
            # where all completions of a step get the same, steps are all there is to compare
            scale = float((counts @ table[:, variance] / counts.sum()) ** 0.5) or float(table[:, mean].std())
            changes.append((b, sure, b * span / scale if scale > 0 else 0.0))
        (proxy, proxy_sure, proxy_change), (gold, gold_sure, gold_change) = changes
        return GoldTrend(
            proxy, gold, proxy_sure, gold_sure, proxy_change, gold_change,
            int(steps[0]), int(steps[-1]), len(steps), self.correlation(),
        )  # fmt: skip

    def correlation(self) -> float | None:
        if not self.latest:
            return None
        return spearman(np.array([row[3] for row in self.latest]), np.array([row[4] for row in self.latest]))

    def examples(self, count: int) -> list[tuple[int, Any, Any, float, float]]:
        """Of the latest completions those that the proxy likes best beside what the gold reward says of them."""
        if len(self.latest) < 2:
            return []
        rows = list(self.latest)
        proxy, gold = (np.array([row[at] for row in rows]) for at in (3, 4))
        gap = _standard(proxy) - _standard(gold)
        return [rows[i] for i in np.argsort(-gap, kind="stable")[:count]]

    def state_dict(self) -> dict[str, Any]:
        """JSON. Completions are not in it: the next evaluations bring new ones."""
        return {"evaluations": [list(row) for row in self.evaluations]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.evaluations.clear()
        for step, count, *moments in state["evaluations"]:
            p_mean, p_variance, g_mean, g_variance = map(float, moments)
            self.evaluations.append((int(step), int(count), p_mean, p_variance, g_mean, g_variance))


def _standard(values: np.ndarray) -> np.ndarray:
    scale = values.std()
    return (values - values.mean()) / (scale if scale > 0 else 1.0)
