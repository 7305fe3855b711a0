"""Streaming statistics: constant time and memory a step, whatever the history.

No statistic takes a number that is not finite: NaN and `None` are facts for a rule to judge, not data, and they raise
here rather than enter silently.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from statistics import median
from typing import Any

MAD_TO_SIGMA = 1.4826  # of a normal distribution, 1 / Phi^-1(3/4)


class Statistic:
    """Something that learns from numbers and survives a resume. The state is JSON."""

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


def finite(value: float) -> float:
    """`value`, or a `ValueError` when it is NaN, infinite or `None`."""
    if value is None or not math.isfinite(value):
        raise ValueError(f"a statistic takes finite numbers only, not {value}")
    return float(value)


class Window(Statistic):
    """The last `size` numbers: robust location and scale, and the slope."""

    def __init__(self, size: int):
        self._values: deque[float] = deque(maxlen=size)
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._values)

    def push(self, value: float) -> None:
        value = finite(value)
        if len(self._values) == self._values.maxlen:
            oldest = self._values[0]
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._values.append(value)
        insort(self._sorted, value)

    def median(self) -> float:
        """Of the numbers held. `IndexError` when there are none."""
        n = len(self._sorted)
        return (self._sorted[n // 2] + self._sorted[(n - 1) // 2]) / 2

    def mad(self) -> float:
        """Median absolute deviation from the median, not scaled."""
        center = self.median()
        return median(abs(value - center) for value in self._sorted)

    def robust_z(self, value: float, scale_floor: float = 0.0) -> float:
        """How many robust standard deviations `value` lies above the median; infinite when the scale is 0."""
        distance = finite(value) - self.median()
        scale = max(MAD_TO_SIGMA * self.mad(), scale_floor)
        if scale == 0.0:
            return 0.0 if distance == 0.0 else math.copysign(math.inf, distance)
        return distance / scale

    def slope(self) -> float:
        """Least-squares slope a step, in units of the values. 0 for fewer than two numbers."""
        n = len(self._values)
        if n < 2:
            return 0.0
        center = (n - 1) / 2
        return sum((i - center) * value for i, value in enumerate(self._values)) * 12 / (n * (n * n - 1))

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self._values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._values.clear()
        self._sorted.clear()
        for value in state["values"]:
            self.push(value)


class Start(Statistic):
    """The median of the first `size` numbers: what a run is compared with."""

    def __init__(self, size: int):
        self._size = size
        self._values: list[float] = []

    def push(self, value: float) -> None:
        value = finite(value)
        if len(self._values) < self._size:
            self._values.append(value)

    @property
    def level(self) -> float | None:
        """`None` until `size` numbers have come."""
        return median(self._values) if len(self._values) == self._size else None

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self._values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._values = [finite(value) for value in state["values"]][: self._size]


class Streak(Statistic):
    """How often in a row something held."""

    def __init__(self) -> None:
        self.count = 0

    def push(self, holds: bool) -> int:
        self.count = self.count + 1 if holds else 0
        return self.count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = int(state["count"])


class Largest(Statistic):
    """The largest number so far, 0 before the first (for magnitudes)."""

    def __init__(self) -> None:
        self.value = 0.0

    def push(self, value: float) -> None:
        self.value = max(self.value, finite(value))

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = finite(state["value"])


class LowestLevel(Statistic):
    """The lowest median a window has had, and the median absolute deviation it had then.

    Unlike the window itself it does not follow a slow rise.
    """

    def __init__(self) -> None:
        self.location: float | None = None
        self.scale = 0.0

    def push(self, window: Window) -> None:
        level = window.median()
        if self.location is None or level <= self.location:
            self.location, self.scale = level, window.mad()

    def state_dict(self) -> dict[str, Any]:
        return {"location": self.location, "scale": self.scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.location = None if state["location"] is None else finite(state["location"])
        self.scale = finite(state["scale"])
