"""What several rules ask about the reward, kept once."""

import math
from collections import deque
from typing import Any

from trl_ext.monitor.rows import Row
from trl_ext.monitor.rules.base import Rule
from trl_ext.monitor.statistics import MAD_TO_SIGMA, Noise, Start, Statistic, Window, finite

SIZES = SHORT, MIDDLE, LONG = 8, 16, 32  # logs whose means are compared


class RewardSeries(Statistic):
    """The reward of a run: where it began, where it is, and how much one log varies.

    Attributes:
        start: median of the first ten logs, `None` before.
        noise: standard deviation of one log, from the changes between neighbours.
        wobble: robust standard deviation of the changes between whole means of sixteen, which for independent logs is a
            third of `noise`; 0 before there are six.
        short, middle, long: means of the last 8, 16 and 32 logs, or of all there are.
        latest: the last 32, oldest first.
    """

    def __init__(self, window: int):
        self.start: float | None = None
        self.noise = self.short = self.middle = self.long = 0.0
        self._start, self._noise = Start(10), Noise(window)
        self.latest: deque[float] = deque(maxlen=LONG)
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
        if self.start is None:
            self._start.push(reward)
            self.start = self._start.level
        self._noise.push(reward)
        self.noise = self._noise.value
        latest, sums = self.latest, self._sums
        if len(latest) == LONG:  # nearly always
            sums[SHORT] += reward - latest[-SHORT]
            sums[MIDDLE] += reward - latest[-MIDDLE]
            sums[LONG] += reward - latest[0]
        else:
            for size in SIZES:
                sums[size] += reward - latest[-size] if len(latest) >= size else reward
        latest.append(reward)
        self._pushes += 1
        if self._pushes % MIDDLE == 0:
            self._whole(sums[MIDDLE] / MIDDLE)
        if self._pushes % LONG == 0:  # so that rounding cannot add up
            self._sums = {size: math.fsum(list(latest)[-size:]) for size in SIZES}

        self._means()

    def _means(self) -> None:
        count, sums = len(self.latest), self._sums
        self.short = sums[SHORT] / min(SHORT, count)
        self.middle = sums[MIDDLE] / min(MIDDLE, count)
        self.long = sums[LONG] / count

    def _whole(self, mean: float) -> None:
        if self._mean is not None:
            self._changes.push(mean - self._mean)
        self._mean = mean
        self._update()

    def _update(self) -> None:
        """From the median, since a drop is no noise: of sixteen changes it is one or two."""
        if len(self._changes) >= 6:
            self.wobble = MAD_TO_SIGMA * self._changes.mad()

    def state_dict(self) -> dict[str, Any]:
        return {
            "start": self._start.state_dict(), "noise": self._noise.state_dict(), "latest": list(self.latest),
            "sums": list(self._sums.values()), "pushes": self._pushes, "mean": self._mean,
            "changes": self._changes.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start.load_state_dict(state["start"])
        self._noise.load_state_dict(state["noise"])
        self.start, self.noise = self._start.level, self._noise.value
        self.latest.clear()
        self.latest.extend(map(finite, state["latest"]))
        self._sums = dict(zip(SIZES, map(finite, state["sums"]), strict=True))
        self._pushes = int(state["pushes"])
        if self.latest:
            self._means()
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
