"""What several rules ask about the reward, kept once."""

import math
from collections import deque
from typing import Any

from trl_ext.monitor.rows import Row
from trl_ext.monitor.rules.base import Rule
from trl_ext.monitor.statistics import MAD_TO_SIGMA, Noise, Start, Statistic, Window, finite

SIZES = (8, 16, 32)
MIDDLE = SIZES[1]


class RewardSeries(Statistic):
    """The reward of a run: where it began, where it is, and how much one log varies.

    Attributes:
        start: median of the first ten logs, `None` before.
        noise: standard deviation of one log, from the changes between neighbours.
        wobble: robust standard deviation of the changes between whole means of sixteen, which for independent logs is a
            third of `noise`; 0 before there are six.
        latest: the last 32, oldest first.
    """

    def __init__(self, window: int):
        self._start, self._noise = Start(10), Noise(window)
        self.latest: deque[float] = deque(maxlen=SIZES[-1])
        self._sums = dict.fromkeys(SIZES, 0.0)
        self._pushes = 0
        self._row: Row | None = None
        self._mean: float | None = None  # of the last whole sixteen
        self._changes = Window(16)
        self.wobble = 0.0

    def push(self, row: Row) -> None:
        """Of a row that another rule has pushed already nothing happens."""
        if row is self._row:
            return
        self._row = row
        reward = finite(row.metrics["reward"])
        if self._start.level is None:
            self._start.push(reward)
        self._noise.push(reward)
        latest, sums = self.latest, self._sums
        count = len(latest)
        for size in SIZES:
            sums[size] += reward - latest[-size] if count >= size else reward
        latest.append(reward)
        self._pushes += 1
        if self._pushes % MIDDLE == 0:
            self._whole(sums[MIDDLE] / MIDDLE)
        if self._pushes % SIZES[-1] == 0:  # so that rounding cannot add up
            self._sums = {size: math.fsum(list(latest)[-size:]) for size in SIZES}

    def _whole(self, mean: float) -> None:
        if self._mean is not None:
            self._changes.push(mean - self._mean)
        self._mean = mean
        self._update()

    def _update(self) -> None:
        """From the median, since a drop is no noise: of sixteen changes it is one or two."""
        if len(self._changes) >= 6:
            self.wobble = MAD_TO_SIGMA * self._changes.mad()

    @property
    def start(self) -> float | None:
        return self._start.level

    @property
    def noise(self) -> float:
        return self._noise.value

    def mean(self, size: int) -> float:
        """Of the last `size` logs, or of all there are."""
        if size in self._sums:
            return self._sums[size] / min(size, len(self.latest))
        values = list(self.latest)[-size:]
        return sum(values) / len(values)

    def state_dict(self) -> dict[str, Any]:
        return {
            "start": self._start.state_dict(), "noise": self._noise.state_dict(), "latest": list(self.latest),
            "sums": list(self._sums.values()), "pushes": self._pushes, "mean": self._mean,
            "changes": self._changes.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start.load_state_dict(state["start"])
        self._noise.load_state_dict(state["noise"])
        self.latest.clear()
        self.latest.extend(map(finite, state["latest"]))
        self._sums = dict(zip(SIZES, map(finite, state["sums"]), strict=True))
        self._pushes = int(state["pushes"])
        self._mean = None if state["mean"] is None else finite(state["mean"])
        self._changes.load_state_dict(state["changes"])
        self._update()


def reward_series(rule: Rule, row: Row) -> RewardSeries:
    """The series that all rules of an engine share, with this row in it. The row has a reward."""
    series = rule.shared.get("reward")
    if series is None:
        series = rule.shared["reward"] = RewardSeries(rule.window)
    series.push(row)
    return series
