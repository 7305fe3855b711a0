"""A held-back measure of the truth beside the reward that is trained on: do they part?"""

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from trl_ext.rewards.reliability.numbers import ramp, slope, spearman

KEPT = 64  # evaluations
_LEAST = 6  # evaluations before which no trend is told
_SURE = 4.0  # standard errors: overlapping windows are looked at often
_SURE_OF_FEW = 6.0  # over 16 evaluations, which hardly tell how much neighbours err alike
_DROP = 1.5  # standard deviations: noise of neighbours that err alike at 0.8 spans 1.2
_LEVEL = 4  # evaluations whose mean is the level of the gold reward
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
        dropped: the level of the gold reward lies 1.5 standard deviations below its best while the proxy has risen.
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
    dropped: bool

    def parted(self) -> bool:
        """The proxy rises for sure while the gold reward falls for sure, and by enough to matter."""
        return self.dropped or (
            self.proxy_sure > _SURE
            and self.gold_sure < -(_SURE if self.evaluations > KEPT // 4 else _SURE_OF_FEW)
            and self.gold_change < -_FALL
            and self.proxy_change > _FALL
        )

    def part(self) -> float:
        """Falls from 1 to 0 while the gold reward falls from 0.25 to 1 standard deviation under a rising proxy."""
        falls = self.dropped or (self.gold_sure < -_SURE and self.proxy_sure > _SURE)
        return ramp(-self.gold_change, _FALL / 2, 1.0) if falls else 1.0


class GoldSeries:
    """Means of both rewards at each evaluation, and the completions of the latest ones.

    The trend is judged over the last 64, 32 and 16 evaluations, and the one that says most is given: what was learnt
    honestly at first does not hide what is hacked later. Once the two have parted that trend stands until the gold
    reward has come back by half of what matters: a fall that is over is no recovery.
    """

    def __init__(self) -> None:
        # step, completions, proxy mean, proxy variance, gold mean, gold variance
        self.evaluations: deque[tuple[int, int, float, float, float, float]] = deque(maxlen=KEPT)
        self.latest: deque[tuple[int, Any, Any, float, float]] = deque(maxlen=256)
        self._parted: tuple[GoldTrend, float] | None = None  # the worst trend, and the gold level that is to be reached

    def add(self, step: int, prompts: list, completions: list, proxy: np.ndarray, gold: np.ndarray) -> None:
        """One evaluation; both arrays of shape `(completions,)`, NaN where one does not apply."""
        known = np.isfinite(proxy) & np.isfinite(gold)
        if not known.any():
            return
        p, g = _tamed(proxy[known]), _tamed(gold[known])
        self.evaluations.append((step, len(p), float(p.mean()), float(p.var()), float(g.mean()), float(g.var())))
        rows = np.flatnonzero(known)
        self.latest.extend((step, prompts[i], completions[i], float(proxy[i]), float(gold[i])) for i in rows)

    def trend(self) -> GoldTrend | None:
        """`None` for fewer than 6 evaluations."""
        if len(self.evaluations) < _LEAST:
            return None
        trends = [self._over(size) for size in (KEPT, KEPT // 2, KEPT // 4)]
        found = min(trends, key=lambda trend: (not trend.parted(), trend.gold_change if trend.proxy_change > 0 else 0))
        levels = np.array([row[4] for row in self.evaluations])
        if not found.parted():
            found = self._dropped(levels) or found
        if self._parted is not None and levels[-_LEVEL:].mean() > self._parted[1]:
            self._parted = None
        if found.parted() and (self._parted is None or found.gold_change < self._parted[0].gold_change):
            before = np.convolve(levels[-found.evaluations :], np.ones(_LEVEL) / _LEVEL, mode="valid").max()
            scale = found.gold_slope * (found.last_step - found.first_step) / found.gold_change
            self._parted = found, float(before) - _FALL / 2 * scale
        return found if self._parted is None else self._parted[0]._replace(correlation=found.correlation)

    def _dropped(self, gold: np.ndarray) -> GoldTrend | None:
        """The trend since the gold reward was best, where it is so far below that no trend is needed to be sure."""
        if len(gold) < 2 * _LEVEL:
            return None
        mean = np.ones(_LEVEL) / _LEVEL
        levels, proxies = (np.convolve([row[at] for row in self.evaluations], mean, mode="valid") for at in (4, 2))
        best = int(np.argmax(levels))
        scales = [np.mean([row[at] for row in self.evaluations]) ** 0.5 for at in (5, 3)]
        if min(scales) <= 0 or len(levels) - best < _LEVEL:
            return None
        far = levels[best] - levels[-1] > _DROP * scales[0] and proxies[-1] - proxies[best] > _FALL * scales[1]
        return self._over(len(gold) - best)._replace(dropped=True) if far else None

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
            int(steps[0]), int(steps[-1]), len(steps), self.correlation(), False,
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
        parted = None if self._parted is None else [*self._parted[0], self._parted[1]]
        return {"evaluations": [list(row) for row in self.evaluations], "parted": parted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.evaluations.clear()
        for step, count, *moments in state["evaluations"]:
            p_mean, p_variance, g_mean, g_variance = map(float, moments)
            self.evaluations.append((int(step), int(count), p_mean, p_variance, g_mean, g_variance))
        parted = state.get("parted")
        self._parted = None if parted is None else (GoldTrend(*parted[:-1]), float(parted[-1]))


def _tamed(values: np.ndarray) -> np.ndarray:
    """Outliers moved to 8 robust standard deviations from the median: one of them must not hide a trend."""
    middle = np.median(values)
    scale = 1.4826 * float(np.median(np.abs(values - middle)))
    return np.clip(values, middle - 8 * scale, middle + 8 * scale) if scale > 0 else values


def _standard(values: np.ndarray) -> np.ndarray:
    scale = values.std()
    return (values - values.mean()) / (scale if scale > 0 else 1.0)
