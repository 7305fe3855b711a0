"""What the monitor's callbacks share: their arguments, and the trainer's events."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from transformers import TrainerControl, TrainerState, TrainingArguments

from trl_ext.callbacks._monitored import MonitoredTraining
from trl_ext.callbacks._options import MonitorOptions
from trl_ext.monitor.alerts import Alert
from trl_ext.monitor.rules import Rule


class MonitoringCallback(MonitoredTraining):
    """The monitor, without a view of its own: use `AnomalyDetectionCallback` or `PPOMonitoringCallback`."""

    def __init__(
        self,
        *,
        output_dir: str | os.PathLike[str] | None = None,
        rules: Iterable[str | Rule] | None = None,
        thresholds: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        preset: str | None = None,
        watch: Mapping[str, Any] | None = None,
        custom_rules: Iterable[Any] | str | os.PathLike[str] | None = None,
        on_critical: str = "warn",
        on_alert: Callable[[Alert], Any] | None = None,
        window: int = 64,
        warmup_steps: int = 10,
        log_system_metrics: bool = True,
        history_size: int = 1000,
    ):
        """
        Args:
            output_dir: folder of the files; `<args.output_dir>/trl_ext` by default (`trl_ext-2` for a second monitor).
            rules: names or `Rule` instances; by default those of `preset`, or all.
            thresholds: `{"kl_high.logs": 5}`, or the path of a YAML file with such a mapping.
            preset: `"ppo_safe"`, `"grpo_safe"`, `"dpo_safe"` or `"sft_safe"`: rules of one kind of trainer, and limits
                that speak earlier than the defaults.
            watch: further metrics to judge by robust z-score:
                `{"my_metric": None, "other": {"z": 6, "severity": "warning", "direction": "up"}}`.
            custom_rules: functions `f(metrics) -> None | message | Finding`, mappings such as `{"metric": "reward",
                "comparison": "<", "value": 0, "logs": 3, "severity": "error"}`, or the path of a YAML file of those.
            on_critical: `"warn"`, or `"stop"` to save a checkpoint and then stop. A trainer that ignores
                `control.should_training_stop` is stopped by `TrainingStopped`, which `trl_ext.train` turns into a
                return.
            on_alert: called with each `Alert` that opened, rose in severity or closed, in the main process.
            window: logs a rolling statistic remembers.
            warmup_steps: logs before rules that judge against the run's own history speak.
            log_system_metrics: adds memory and load of process, machine and GPU, sampled in a thread once a second.
            history_size: logs that `get_metrics_history` returns at most.
        Raises:
            UserError: an unknown name (the message has the nearest), or a value that makes no sense.
        """
        options = MonitorOptions(
            output_dir, rules, thresholds, preset, watch, custom_rules, on_critical, on_alert, window, warmup_steps,
            log_system_metrics, history_size,
        )  # fmt: skip
        super().__init__(options)

    @property
    def alerts(self) -> list[Alert]:
        """All alerts so far as they are now, oldest first; an open one has `closed is None`."""
        return [alert.copy() for alert in self._run.engine.alerts]

    def summary(self) -> dict[str, Any]:
        """What `summary.json` says, as of now."""
        return self._run.summary()

    def get_metrics_history(self) -> list[dict[str, Any]]:
        """The last `history_size` logs since the start or resume, oldest first: `step`, and every finite number under
        its canonical name."""
        return self._run.history.to_list()

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._claim_slot()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any
    ) -> None:
        self._begin(args, state, event)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **_: Any
    ) -> TrainerControl:
        self._observe(state, logs if logs is not None else {})
        if self._options.on_critical == "stop":
            self._decide(args, state)
        return self._stop.ask(control)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        self._step = state.global_step
        return self._stop.ask(control)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any) -> None:
        self._save(args, state)
        if self._stop.must_raise(state):
            self._finish(completed=False)
            self._stop.raise_after_the_others(self, args, state, control, event)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._finish(completed=True)
