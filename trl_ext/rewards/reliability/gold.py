"""A held-back measure of the truth beside the reward that is trained on: do they part?"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from trl_ext.rewards.reliability.gold_trend import FAR, MANY, Evaluation, GoldTrend, levels_of, since_best, trend_of
from trl_ext.rewards.reliability.numbers import spearman

KEPT = 64  # evaluations, or means of neighbouring ones
DISAGREES = -0.3  # rank correlation of the two rewards over completions from which they contradict each other
_WIDTH = 5  # steps whose evaluations are one from the start: what the policy is like lasts for some steps
_LEAST = 6  # evaluations before which no trend is told
_COMPARED = 128  # completions from which a correlation is told


class Example(NamedTuple):
    """One completion of an evaluation; `rewards` of shape `(functions,)`, NaN where one does not apply."""

    step: int
    prompt: Any
    completion: Any
    proxy: float
    gold: float
    rewards: np.ndarray


class GoldSeries:
    """Means of both rewards over the whole run, and the completions of the latest evaluations.

    At most 64 evaluations are kept: those of five steps are one, and when there are 64, each two become one. The trend
    is judged over the last 64, 32 and 16 of them, and the one that says most is given: what was learnt honestly at
    first does not hide what is hacked later. A fall that is far and fast is looked for in the last 64 as they came,
    too. Once the two have parted that trend stands until the gold reward has come back by half of what matters: a fall
    that is over is no recovery.

    Attributes:
        evaluations: oldest first.
        latest: the last 256 completions.
        level: mean of the gold reward at the latest evaluation; `None` before the first.
        silent: how often in a row the gold reward gave no number to any completion.
    """

    def __init__(self) -> None:
        self.evaluations: list[Evaluation] = []
        self.level: float | None = None
        self.silent = 0
        self._width = _WIDTH
        self._recent: deque[Evaluation] = deque(maxlen=KEPT)  # as they came
        self.latest: deque[Example] = deque(maxlen=256)
        self._parted: tuple[GoldTrend, float] | None = None  # the worst trend, and the gold level that is to be reached

    def add(
        self,
        step: int,
        prompts: list,
        completions: list,
        proxy: np.ndarray,
        gold: np.ndarray,
        rewards: np.ndarray | None = None,
    ) -> None:
        """One evaluation.

        Args:
            proxy, gold: shape `(completions,)`, NaN where one does not apply.
            rewards: what the proxy is made of, shape `(completions, functions)`; kept with the examples.
        """
        self.silent = 0 if np.isfinite(gold).any() else self.silent + 1
        known = np.isfinite(proxy) & np.isfinite(gold)
        if not known.any():
            return
        rows = np.flatnonzero(known)
        parts = np.empty((len(proxy), 0)) if rewards is None else rewards
        self.latest.extend(
            Example(step, prompts[i], completions[i], float(proxy[i]), float(gold[i]), parts[i]) for i in rows
        )
        p, g = _tamed(proxy[known]), _tamed(gold[known])
        new = Evaluation(step, step, len(p), float(p.mean()), float(p.var()), float(g.mean()), float(g.var()))
        self.level = new.gold
        self._recent.append(new)
        kept = self.evaluations
        if kept and step - kept[-1].first < self._width:
            kept[-1] = kept[-1].joined(new)
            return
        if len(kept) == KEPT:
            self.evaluations = kept = [kept[i].joined(kept[i + 1]) for i in range(0, KEPT, 2)]
            self._width = kept[1].first - kept[0].first
        kept.append(new)

    def trend(self) -> GoldTrend | None:
        """The one that says most; `None` for too few evaluations."""
        found: GoldTrend | None = None
        rows: Sequence[Evaluation] = []
        for window in self._windows():
            trend = trend_of(window)
            if found is None or _says(trend) < _says(found):
                found, rows = trend, window
        if found is None or not found.parted():
            fallen = since_best(list(self._recent)) or since_best(self.evaluations, FAR)
            if fallen:
                found, rows = trend_of(fallen)._replace(dropped=True), fallen
        level = self._level()
        if found is not None and found.parted() and level > found.recovery(rows):
            found = found._replace(over=True)
        if self._parted is not None and level > self._parted[1]:
            self._parted = None
        worst = 0.0 if self._parted is None else self._parted[0].gold_change
        if found is not None and found.parted() and found.gold_change < worst:
            self._parted = found, found.recovery(rows)
        return found if self._parted is None else self._parted[0]

    def _windows(self) -> list[list[Evaluation]]:
        return [self.evaluations[-size:] for size in (KEPT, KEPT // 2, MANY)] if len(self.evaluations) >= _LEAST else []

    def _level(self) -> float:
        """Of the gold reward now; a resumed run has to see some evaluations first."""
        levels = levels_of([row.gold for row in self._recent])
        return float(levels[-1]) if len(levels) else -np.inf

    def correlation(self) -> float | None:
        """Spearman's, over the latest completions; `None` for fewer than 128."""
        if len(self.latest) < _COMPARED:
            return None
        return spearman(*_both(self.latest))

    def examples(self, count: int) -> list[Example]:
        """Of the latest completions those that the proxy likes best beside what the gold reward says of them."""
        if len(self.latest) < 2:
            return []
        proxy, gold = _both(self.latest)
        gap = _standard(proxy) - _standard(gold)
        return [self.latest[i] for i in np.argsort(-gap, kind="stable")[:count]]

    def state_dict(self) -> dict[str, Any]:
        """JSON. Completions are not in it: the next evaluations bring new ones."""
        parted = None if self._parted is None else [*self._parted[0], self._parted[1]]
        return {"evaluations": [list(row) for row in self.evaluations], "width": self._width, "parted": parted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        rows = state["evaluations"][-KEPT:]
        self.evaluations = [Evaluation(int(row[0]), float(row[1]), int(row[2]), *map(float, row[3:7])) for row in rows]
        self._width = int(state["width"])
        parted = state.get("parted")
        self._parted = None if parted is None else (GoldTrend(*parted[:-1]), float(parted[-1]))


def _says(trend: GoldTrend) -> tuple[bool, float]:
    """Less says more: that they have parted first, then how far the gold reward fell beside a rising proxy."""
    return not trend.parted(), trend.gold_change if trend.proxy_change > 0 else 0.0


def _both(rows: Iterable[Example]) -> tuple[np.ndarray, np.ndarray]:
    """The two rewards."""
    return np.array([row.proxy for row in rows]), np.array([row.gold for row in rows])


def _tamed(values: np.ndarray) -> np.ndarray:
    """Outliers moved to 8 robust standard deviations from the median: one of them must not hide a trend."""
    middle = np.median(values)
    scale = 1.4826 * float(np.median(np.abs(values - middle)))
    return np.clip(values, middle - 8 * scale, middle + 8 * scale) if scale > 0 else values


def _standard(values: np.ndarray) -> np.ndarray:
    scale = values.std()
    return (values - values.mean()) / (scale if scale > 0 else 1.0)
