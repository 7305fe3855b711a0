"""The last logs of a run."""

from collections import deque
from collections.abc import Mapping
from typing import Any


class MetricsHistory:
    """Args:
    size: logs that are kept.
    """

    def __init__(self, size: int) -> None:
        self._logs: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=size)

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """`Row.metrics`, which must not change afterwards: kept as it is."""
        self._logs.append((step, metrics))

    def to_list(self) -> list[dict[str, Any]]:
        """`{"step": 3, "reward": 0.5, ...}` for each log, oldest first; copies."""
        return [{"step": step, **metrics} for step, metrics in self._logs]
