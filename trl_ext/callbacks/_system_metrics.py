"""Memory of this process."""

import time

import psutil

SECONDS_BETWEEN_SAMPLES = 1.0


class SystemMetrics:
    """`system/rss_mb`: resident memory of this process in MiB, read once a second at most: reading outlasts a rule."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._next = 0.0
        self._latest: dict[str, float] = {}

    def sample(self) -> dict[str, float]:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + SECONDS_BETWEEN_SAMPLES
            self._latest = {"system/rss_mb": round(self._process.memory_info().rss / 2**20, 1)}
        return self._latest
