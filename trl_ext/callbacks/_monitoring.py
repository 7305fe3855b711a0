"""What the monitor's callbacks share: the trainer's events, handed to the run they belong to."""

import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from trl_ext.callbacks._checkpoint_state import read_state, write_state
from trl_ext.callbacks._guard import never_raises
from trl_ext.callbacks._run import MonitoredRun
from trl_ext.callbacks._stop import StopDecision
from trl_ext.callbacks._threshold_file import read_thresholds
from trl_ext.errors import UserError
from trl_ext.monitor.alerts import Alert
from trl_ext.monitor.engine import Engine
from trl_ext.monitor.names import unknown_name
from trl_ext.monitor.rules import Rule

# fp16's loss scaler skips a step whose gradient overflowed, so a NaN grad_norm now and then is its normal work
_FP16_THRESHOLDS = {"nonfinite_metric.grad_norm_logs": 3}


class MonitoringCallback(TrainerCallback, ExportableState):
    """Arguments as in `PPOMonitoringCallback`. A subclass has a constructor of its own, with keywords alone."""

    def __init__(
        self,
        output_dir: str | os.PathLike[str] | None,
        rules: Iterable[str | Rule] | None,
        thresholds: Mapping[str, Any] | str | os.PathLike[str] | None,
        on_critical: str,
        on_alert: Callable[[Alert], Any] | None,
        window: int,
        warmup_steps: int,
        log_system_metrics: bool,
    ):
        if on_critical not in ("warn", "stop"):
            raise unknown_name("on_critical", on_critical, ("warn", "stop"))
        if on_alert is not None and not callable(on_alert):
            raise UserError(f"on_alert must be a function that takes an Alert, not {on_alert!r}")
        self._output_dir = None if output_dir is None else Path(output_dir)
        self._rules = rules if rules is None or isinstance(rules, str) else list(rules)
        self._thresholds = read_thresholds(thresholds)
        self._on_critical = on_critical
        self._on_alert = on_alert
        self._window, self._warmup_steps, self._log_system_metrics = window, warmup_steps, log_system_metrics
        self._run = self._new_run({})
        self._untouched = self._run.engine.state_dict()
        self._stop = StopDecision()
        self._step = 0
        self.restored: dict[str, Any] | None = None  # set by Transformers, when asked to restore callbacks

    @property
    def alerts(self) -> list[Alert]:
        """All alerts so far, oldest first; an open one has `closed is None`."""
        return self._run.engine.alerts

    def summary(self) -> dict[str, Any]:
        """What `summary.json` says, as of now."""
        return self._run.summary()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._begin(args, state)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **_: Any
    ) -> TrainerControl:
        self._observe(state, logs or {})
        if self._on_critical == "stop":
            self._stop.decide(self._run, args, state)
        return self._stop.ask(control)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        self._step = state.global_step
        return self._stop.ask(control)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._save(args, state)
        if (stopped := self._stop.to_raise(state)) is not None:
            self._finish(completed=False)
            raise stopped

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._finish(completed=True)

    def state(self) -> dict[str, Any]:
        """For `trainer_state.json`: the arguments that JSON can hold, and the state of the run."""
        arguments = {
            "output_dir": None if self._output_dir is None else str(self._output_dir),
            "rules": [rule for rule in self._rules or () if isinstance(rule, str)] or None,
            "thresholds": self._thresholds, "on_critical": self._on_critical, "window": self._window,
            "warmup_steps": self._warmup_steps, "log_system_metrics": self._log_system_metrics,
        }  # fmt: skip
        return {"args": arguments, "attributes": {"restored": self._run.state_dict(self._step)}}

    def _new_run(self, thresholds: Mapping[str, Any]) -> MonitoredRun:
        thresholds = {**thresholds, **self._thresholds}
        engine = Engine(self._rules, thresholds, warmup_steps=self._warmup_steps, window=self._window)
        return MonitoredRun(engine, self._log_system_metrics)

    @never_raises
    def _begin(self, args: TrainingArguments, state: TrainerState) -> None:
        name = type(self).__name__
        self._stop = StopDecision()
        self._run.finish(completed=False)  # of an earlier train() that raised
        self._run = self._new_run(_FP16_THRESHOLDS if args.fp16 else {})
        self._run.engine.load_state_dict(self._untouched)  # rule instances may have seen an earlier run
        if state.global_step > 0:
            stored = self.restored or read_state(args, state, name)
            if stored is not None:
                self._run.load_state_dict(stored)
        self.restored = None
        # Transformers fails to save when a callback was added after the trainer was built, or after the checkpoint
        state.stateful_callbacks.setdefault(name, self.state())
        if state.is_world_process_zero:
            self._run.open_files(self._output_dir or Path(str(args.output_dir)) / "trl_ext")
            # when training raises there is no on_train_end: written when this object goes, at the latest at exit
            weakref.finalize(self, self._run.finish, completed=False)

    @never_raises
    def _observe(self, state: TrainerState, logs: Mapping[str, Any]) -> None:
        for alert in self._run.observe(state.global_step, logs):
            if self._on_alert is not None and state.is_world_process_zero:
                self._notify(alert)

    @never_raises
    def _notify(self, alert: Alert) -> None:
        assert self._on_alert is not None
        self._on_alert(alert)

    @never_raises
    def _save(self, args: TrainingArguments, state: TrainerState) -> None:
        if state.is_world_process_zero:
            write_state(args, state, self._run.state_dict(state.global_step))

    @never_raises
    def _finish(self, completed: bool) -> None:
        self._run.finish(completed)
