"""The learning rate's way up, in which little is to be expected."""

from typing import Any

from trl_ext.monitor.rows import Row
from trl_ext.monitor.statistics import Statistic


class AfterWarmup(Statistic):
    """Counts logs in which the learning rate is no longer on its way up."""

    def __init__(self) -> None:
        self.count = 0
        self._last: float | None = None

    def push(self, row: Row) -> int:
        rate = row.metrics.get("learning_rate")
        if rate is None or (self._last is not None and rate <= self._last):
            self.count += 1
        self._last = rate
        return self.count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "last": self._last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self._last = int(state["count"]), state["last"]
