"""Streaming statistics: constant time and memory a step, whatever the history.

No statistic takes a number that is not finite: NaN and `None` are facts for a rule to judge, not data, and they raise
here rather than enter silently.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from math import isfinite
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
    if value is None or not isfinite(value):
        raise ValueError(f"a statistic takes finite numbers only, not {value}")
    return float(value)


class Recent(Statistic):
    """The last `size` numbers and their mean. Cheap to push to; a median takes time in proportion to `size`."""

    def __init__(self, size: int):
        self.size = size
        self._values: deque[float] = deque(maxlen=size)
        self._sum = 0.0
        self._pushes = 0

    def __len__(self) -> int:
        return len(self._values)

    def push(self, value: float) -> None:
        if value is None or not isfinite(value):
            finite(value)  # raises
        values = self._values
        if len(values) == self.size:
            self._sum -= values[0]
        values.append(value)
        self._sum += value
        self._pushes += 1
        if self._pushes >= self.size:  # so that rounding cannot add up
            self._sum, self._pushes = math.fsum(values), 0

    def values(self) -> list[float]:
        """Oldest first."""
        return list(self._values)

    def mean(self) -> float:
        """`ZeroDivisionError` when there are no numbers."""
        return self._sum / len(self._values)

    def median(self) -> float:
        """`statistics.StatisticsError` (a `ValueError`) when there are no numbers."""
        return median(self._values)

    def stretches(self, count: int) -> list[float]:
        """Medians of `count` equal stretches, oldest first; what does not divide is left out at the old end."""
        values = list(self._values)
        length = len(values) // count
        values = values[len(values) - length * count :]
        return [median(values[i * length : (i + 1) * length]) for i in range(count)]

    def slope(self) -> float:
        """Least-squares slope a step, in units of the values. 0 for fewer than two numbers."""
        n = len(self._values)
        if n < 2:
            return 0.0
        center = (n - 1) / 2
        return sum((i - center) * value for i, value in enumerate(self._values)) * 12 / (n * (n * n - 1))

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self._values), "sum": self._sum, "pushes": self._pushes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._values.clear()
        for value in state["values"]:
            self.push(value)
        self._sum, self._pushes = finite(state["sum"]), int(state["pushes"])


class Window(Recent):
    """The last `size` numbers, kept in order of size as well: robust location and scale in logarithmic time."""

    def __init__(self, size: int):
        super().__init__(size)
        self._sorted: list[float] = []

    def push(self, value: float) -> None:
        if value is None or not isfinite(value):
            finite(value)  # raises
        values, numbers = self._values, self._sorted
        if len(values) == self.size:
            del numbers[bisect_left(numbers, values[0])]
        values.append(value)
        insort(numbers, value)

    def mean(self) -> float:
        """`ZeroDivisionError` when there are no numbers."""
        return math.fsum(self._values) / len(self._values)

    def median(self) -> float:
        """Of the numbers held. `IndexError` when there are none."""
        n = len(self._sorted)
        return (self._sorted[n // 2] + self._sorted[(n - 1) // 2]) / 2

    def quantile(self, share: float) -> float:
        """The value below which `share` (0 to 1) of the numbers lie, interpolated linearly between two of them."""
        at = share * (len(self._sorted) - 1)
        below = int(at)
        above = min(below + 1, len(self._sorted) - 1)
        return self._sorted[below] + (at - below) * (self._sorted[above] - self._sorted[below])

    def mad(self) -> float:
        """Median absolute deviation from the median, not scaled."""
        n = len(self._sorted)
        return (self._deviation((n + 1) // 2) + self._deviation(n // 2 + 1)) / 2

    def _deviation(self, k: int) -> float:
        """The k-th smallest distance from the median, in logarithmic time: the k nearest numbers lie side by side."""
        numbers, center = self._sorted, self.median()
        low, high = 0, len(numbers) - k
        while low < high:
            first = (low + high) // 2
            if center - numbers[first] > numbers[first + k - 1] - center:
                low = first + 1
            else:
                high = first
        distances = [max(center - numbers[i], numbers[i + k - 1] - center) for i in (max(low - 1, 0), low)]
        return min(distances)

    def robust_z(self, value: float, scale_floor: float = 0.0) -> float:
        """How many robust standard deviations `value` lies above the median; infinite when the scale is 0."""
        distance = finite(value) - self.median()
        scale = max(MAD_TO_SIGMA * self.mad(), scale_floor)
        if scale == 0.0:
            return 0.0 if distance == 0.0 else math.copysign(math.inf, distance)
        return distance / scale

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self._values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._values.clear()
        self._sorted.clear()
        for value in state["values"]:
            self.push(value)


class Start(Statistic):
    """The median of the first `size` numbers: what a run is compared with.

    Attributes:
        level: `None` until `size` numbers have come.
    """

    def __init__(self, size: int):
        self._size = size
        self._values: list[float] = []
        self.level: float | None = None

    def push(self, value: float) -> None:
        if value is None or not isfinite(value):
            finite(value)  # raises
        if self.level is None:
            self._values.append(value)
            if len(self._values) == self._size:
                self.level = median(self._values)

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self._values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._values, self.level = [], None
        for value in state["values"][: self._size]:
            self.push(value)


class First(Statistic):
    """The first name that came."""

    def __init__(self) -> None:
        self.first: str | None = None

    def push(self, name: str) -> None:
        self.first = self.first or name

    def state_dict(self) -> dict[str, Any]:
        return {"first": self.first}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first = state["first"]


class Names(Statistic):
    """A set of names."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def state_dict(self) -> dict[str, Any]:
        return {"names": sorted(self.names)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.names = set(state["names"])


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


class Share(Statistic):
    """A share of a few things, log after log: how many things there are, and how large the share usually is.

    Args:
        at_least: so many things there are for sure; more are told from the shares seen (0.125 is one of eight).
    """

    def __init__(self, at_least: int = 1):
        self._at_least = self.parts = at_least
        self._sum, self._count = 0.0, 0

    def push(self, share: float, full_before: int = 0) -> None:
        """One log that was not full, after `full_before` in a row that were."""
        share = min(max(finite(share), 0.0), 1.0)
        self._sum += share + full_before
        self._count += 1 + full_before
        if share == 0 or share == 1 or self.parts >= 64:
            return
        for part in (share, 1 - share):
            if part > 0.001:
                self.parts = max(self.parts, min(round(1 / part), 64))

    def chance(self, streak: int, parts: int) -> float:
        """Of `streak` full logs of `parts` things each, if they are as usual (one half before anything was seen)."""
        return ((self._sum + 1) / (self._count + 2)) ** (parts * streak)

    def state_dict(self) -> dict[str, Any]:
        return {"parts": self.parts, "sum": self._sum, "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.parts, self._sum, self._count = int(state["parts"]), finite(state["sum"]), int(state["count"])


class Noise(Statistic):
    """The standard deviation of one number about its trend, from the changes between neighbours (von Neumann 1941).

    A trend or a step hardly enters, a number with two modes does as it should. The last `size` changes count most.
    """

    def __init__(self, size: int):
        self._size = size
        self._last: float | None = None
        self._mean, self._count = 0.0, 0  # of squared changes

    def push(self, value: float) -> None:
        value = finite(value)
        if self._last is not None:
            self._count = min(self._count + 1, self._size)
            self._mean += ((value - self._last) ** 2 - self._mean) / self._count
        self._last = value

    @property
    def value(self) -> float:
        """0 before the second number."""
        return math.sqrt(self._mean / 2)

    def state_dict(self) -> dict[str, Any]:
        return {"last": self._last, "mean": self._mean, "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._last, self._mean, self._count = state["last"], finite(state["mean"]), int(state["count"])


class Largest(Statistic):
    """The largest number so far, `before` the first (0, for magnitudes)."""

    def __init__(self, before: float = 0.0) -> None:
        self.value = before

    def push(self, value: float) -> None:
        self.value = max(self.value, finite(value))

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value if isfinite(self.value) else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["value"] is not None:
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


class Constant(Statistic):
    """How often in a row the very same number came."""

    def __init__(self) -> None:
        self.value: float | None = None
        self.count = 0

    def push(self, value: float) -> int:
        value = finite(value)
        self.count = self.count + 1 if value == self.value else 1
        self.value = value
        return self.count

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value, self.count = state["value"], int(state["count"])


class Blocks(Statistic):
    """A whole run in constant memory: means of equal blocks of consecutive numbers.

    When all `size` blocks are full they are merged in pairs, so that there are always between `size / 2` and `size`.
    """

    def __init__(self, size: int = 32):
        if size < 2 or size % 2:
            raise ValueError(f"blocks are merged in pairs: an even number of at least 2, not {size}")
        self._size = size
        self.length = 1  # numbers a block
        self.means: list[float] = []
        self._sum, self._count = 0.0, 0

    def push(self, value: float) -> None:
        self._sum += finite(value)
        self._count += 1
        if self._count < self.length:
            return
        self.means.append(self._sum / self._count)
        self._sum, self._count = 0.0, 0
        if len(self.means) == self._size:
            self.means = [(a + b) / 2 for a, b in zip(self.means[::2], self.means[1::2], strict=True)]
            self.length *= 2

    def __len__(self) -> int:
        """Numbers in whole blocks."""
        return self.length * len(self.means)

    def trend(self) -> tuple[float, float]:
        """`(gain, z)`: what Theil-Sen's line rises over the blocks, and the Mann-Kendall statistic (approximately
        standard normal without a trend; Mann 1945, Kendall 1975, Sen 1968). `(0, 0)` for fewer than four blocks.
        """
        n = len(self.means)
        if n < 4:
            return 0.0, 0.0
        pairs = [(self.means[j] - self.means[i], j - i) for i in range(n) for j in range(i + 1, n)]
        s = sum((rise > 0) - (rise < 0) for rise, _ in pairs)
        z = (s - (s > 0) + (s < 0)) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
        return median(rise / run for rise, run in pairs) * (n - 1), z

    def state_dict(self) -> dict[str, Any]:
        return {"length": self.length, "means": list(self.means), "sum": self._sum, "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.length, self.means = int(state["length"]), [finite(value) for value in state["means"]]
        self._sum, self._count = finite(state["sum"]), int(state["count"])


class Cusum(Statistic):
    """Page's one-sided cumulative sum (Page 1954): how far a standardised series has run above its expectation.

    Args:
        slack: standard deviations that count as noise each time, usually half the shift to be found.
    """

    def __init__(self, slack: float = 0.5):
        self._slack = slack
        self.value = 0.0

    def push(self, z: float) -> float:
        self.value = max(0.0, self.value + finite(z) - self._slack)
        return self.value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = finite(state["value"])
