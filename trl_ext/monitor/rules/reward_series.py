"""What several rules ask about the reward, kept once."""

import math
from collections import deque
from typing import Any

from trl_ext.monitor.rows import Row
from trl_ext.monitor.rules.base import Rule
from trl_ext.monitor.statistics import Noise, Start, Statistic, finite

SIZES = (8, 16, 32)


class RewardSeries(Statistic):
    """The reward of a run: where it began, where it is, and how much one log varies.

    Attributes:
        start: median of the first ten logs, `None` before.
        noise: standard deviation of one log.
        latest: the last 32, oldest first.
    """

    def __init__(self, window: int):
        self._start, self._noise = Start(10), Noise(window)
        self.latest: deque[float] = deque(maxlen=SIZES[-1])
        self._sums = dict.fromkeys(SIZES, 0.0)
        self._pushes = 0
        self._row: Row | None = None

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
        if self._pushes % SIZES[-1] == 0:  # so that rounding cannot add up
            self._sums = {size: math.fsum(list(latest)[-size:]) for size in SIZES}

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
            "sums": list(self._sums.values()), "pushes": self._pushes,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start.load_state_dict(state["start"])
        self._noise.load_state_dict(state["noise"])
        self.latest.clear()
        self.latest.extend(map(finite, state["latest"]))
        self._sums = dict(zip(SIZES, map(finite, state["sums"]), strict=True))
        self._pushes = int(state["pushes"])


def reward_series(rule: Rule, row: Row) -> RewardSeries:
    """The series that all rules of an engine share, with this row in it. The row has a reward."""
    series = rule.shared.get("reward")
    if series is None:
        series = rule.shared["reward"] = RewardSeries(rule.window)
    series.push(row)
    return series
