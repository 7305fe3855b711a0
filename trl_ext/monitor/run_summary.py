"""What a run came to, in constant memory."""

from typing import Any

from trl_ext.monitor.rows import Row

MAIN_METRICS = (
    "reward", "reward_std", "reward_with_kl", "kl_per_sequence", "kl_per_token", "entropy_per_token", "loss",
    "policy_loss", "value_loss", "explained_variance", "approx_kl", "ratio_mean", "clip_fraction", "grad_norm",
    "learning_rate", "completion_length", "truncated_fraction", "zero_std_fraction", "eval/loss", "eval/reward",
)  # fmt: skip


class RunSummary:
    """First, last, mean, least and largest of the main metrics; only finite numbers count."""

    def __init__(self) -> None:
        self._logs = 0
        self._last_step = 0
        self._metrics: dict[str, dict[str, float]] = {}

    def add(self, row: Row) -> None:
        self._logs += 1
        self._last_step = row.step
        metrics = row.metrics
        for name in MAIN_METRICS:
            if name in metrics:
                value = metrics[name]
                seen = self._metrics.get(name)
                if seen is None:
                    self._metrics[name] = {
                        "first": value, "last": value, "min": value, "max": value, "mean": value, "logs": 1
                    }  # fmt: skip
                    continue
                seen["last"] = value
                if value < seen["min"]:
                    seen["min"] = value
                elif value > seen["max"]:
                    seen["max"] = value
                seen["logs"] += 1
                seen["mean"] += (value - seen["mean"]) / seen["logs"]

    def to_dict(self) -> dict[str, Any]:
        """`{"logs", "last_step", "metrics": {name: {"first", "last", "min", "max", "mean", "logs"}}}`; a copy, JSON."""
        metrics = {name: dict(seen) for name, seen in self._metrics.items()}
        return {"logs": self._logs, "last_step": self._last_step, "metrics": metrics}

    def load(self, state: dict[str, Any]) -> None:
        """From `to_dict`."""
        self._logs, self._last_step = state["logs"], state["last_step"]
        self._metrics = {name: dict(seen) for name, seen in state["metrics"].items()}
