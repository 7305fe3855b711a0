"""The monitor with the PPO view."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trl_ext.callbacks._monitoring import MonitoringCallback
from trl_ext.monitor.alerts import Alert
from trl_ext.monitor.rules import Rule


class PPOMonitoringCallback(MonitoringCallback):
    """Says within a few steps, and in plain words, that a run goes wrong, why, and what to change.

    Works in `callbacks=[...]` of stock PPO (TRL 1.12) and of every trainer built on `transformers.Trainer`. Writes
    `metrics.jsonl`, `alerts.jsonl` and `summary.json`, and logs each alert. Its state is in every checkpoint and comes
    back on resume by itself; `restore_callback_states_from_checkpoint=True` is not needed and would lose `on_alert` and
    rule instances, which cannot be stored.

    Args:
        output_dir: folder of the files; `<args.output_dir>/trl_ext` by default.
        rules: names or `Rule` instances; all rules by default.
        thresholds: `{"kl_high.logs": 5}`, or the path of a YAML file with such a mapping.
        on_critical: `"warn"`, or `"stop"` to save a checkpoint and then stop. A trainer that ignores
            `control.should_training_stop` is stopped by `TrainingStopped`, which `trl_ext.train` turns into a return.
        on_alert: called with each `Alert` that opened, rose in severity or closed, in the main process.
        window: logs a rolling statistic remembers.
        warmup_steps: logs before rules that judge against the run's own history speak.
        log_system_metrics: adds the memory of this process to `metrics.jsonl`, under `system/`.
    Raises:
        UserError: an unknown rule, threshold or `on_critical`.
    """

    def __init__(
        self,
        *,
        output_dir: str | os.PathLike[str] | None = None,
        rules: Iterable[str | Rule] | None = None,
        thresholds: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        on_critical: str = "warn",
        on_alert: Callable[[Alert], Any] | None = None,
        window: int = 64,
        warmup_steps: int = 10,
        log_system_metrics: bool = True,
    ):
        super().__init__(output_dir, rules, thresholds, on_critical, on_alert, window, warmup_steps, log_system_metrics)
