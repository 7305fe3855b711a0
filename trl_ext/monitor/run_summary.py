"""What a run came to, in constant memory."""

import math
from collections.abc import Mapping
from typing import Any

MAIN_METRICS = (
    "reward", "reward_std", "reward_with_kl", "kl_per_sequence", "kl_per_token", "entropy_per_token", "loss",
    "policy_loss", "value_loss", "explained_variance", "approx_kl", "ratio_mean", "clip_fraction", "grad_norm",
    "learning_rate", "completion_length", "truncated_fraction", "zero_std_fraction", "eval/loss", "eval/reward",
)  # fmt: skip
_BATCH = 64  # logs added up at once: in one go over a metric's values, which costs a third of one go over each log


class RunSummary:
    """First, last, mean, least and largest of the main metrics; only finite numbers count."""

    def __init__(self) -> None:
        self._logs = 0
        self._last_step = 0
        self._metrics: dict[str, dict[str, float]] = {}
        self._waiting: list[Mapping[str, float]] = []

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """One log: `Row.metrics`, which must not change afterwards."""
        self._logs += 1
        self._last_step = step
        self._waiting.append(metrics)
        if len(self._waiting) >= _BATCH:
            self._add_up()

    def _add_up(self) -> None:
        for name in MAIN_METRICS:
            values = [metrics[name] for metrics in self._waiting if name in metrics]
            if values:
                first = {"first": values[0], "min": values[0], "max": values[0], "mean": 0.0, "logs": 0}
                seen = self._metrics.setdefault(name, first)
                seen["last"] = values[-1]
                seen["min"] = min(seen["min"], *values)
                seen["max"] = max(seen["max"], *values)
                seen["logs"] += len(values)
                seen["mean"] += (sum(values) - len(values) * seen["mean"]) / seen["logs"]
        self._waiting = []

    def to_dict(self) -> dict[str, Any]:
        """`{"logs", "last_step", "metrics": {name: {"first", "last", "min", "max", "mean", "logs"}}}`; a copy, JSON."""
        self._add_up()
        metrics = {name: dict(seen) for name, seen in self._metrics.items()}
        return {"logs": self._logs, "last_step": self._last_step, "metrics": metrics}

    def load(self, state: dict[str, Any]) -> None:
        """From `to_dict`."""
        self._logs, self._last_step = int(state["logs"]), state["last_step"]
        self._metrics = {name: {k: math.nan if v is None else v for k, v in seen.items()}  # null: not finite
                         for name, seen in state["metrics"].items()}  # fmt: skip
        self._waiting = []


def flat_summary(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What `summary.json` says, for a tracker: one value a name, such as `metrics/reward/last`, `alerts/error` (how
    many), `alert/kl_high` (the latest one in words) and `trends/reward`; `stopped` where a run was."""
    flat: dict[str, Any] = {"completed": summary["completed"], "logs": summary["logs"], "steps": summary["last_step"]}
    if summary["stopped"]:
        flat["stopped"] = summary["stopped"]
    flat |= {f"alerts/{severity}": count for severity, count in summary["alert_counts"].items()}
    for alert in summary["alerts"]:
        gone = f", gone since step {alert['closed']}" if alert["closed"] is not None else ""
        flat[f"alert/{alert['rule']}"] = f"{alert['severity']} at step {alert['step']}{gone}: {alert['message']}"
    for name, seen in summary["metrics"].items():
        flat |= {f"metrics/{name}/{which}": seen[which] for which in ("first", "last", "mean", "min", "max")}
    return flat | {f"trends/{name}": slope for name, slope in summary.get("trends", {}).items()}
