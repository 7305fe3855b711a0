"""The last logs of a run, packed: a dictionary of thirty numbers each would cost ten times the memory."""

from array import array
from collections import deque
from collections.abc import Mapping
from typing import Any

_KEY_SETS = 256


class MetricsHistory:
    """Args:
    size: logs that are kept.
    """

    def __init__(self, size: int) -> None:
        self._logs: deque[tuple[int, tuple[str, ...], array[float]]] = deque(maxlen=size)
        self._keys: dict[tuple[str, ...], tuple[str, ...]] = {}  # one tuple for all logs alike

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        keys = tuple(metrics)
        if len(self._keys) > _KEY_SETS:
            self._keys.clear()
        self._logs.append((step, self._keys.setdefault(keys, keys), array("d", list(metrics.values()))))

    def to_list(self) -> list[dict[str, Any]]:
        """`{"step": 3, "reward": 0.5, ...}` for each log, oldest first."""
        return [{"step": step, **dict(zip(keys, numbers, strict=True))} for step, keys, numbers in self._logs]
