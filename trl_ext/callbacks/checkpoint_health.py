"""Looks at every checkpoint as soon as it is saved."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trl_ext.callbacks._checkpoint_judge import CheckpointJudge
from trl_ext.callbacks._checkpoint_state import checkpoint_folder
from trl_ext.callbacks._frames import calling_handler, resumed_from
from trl_ext.callbacks._guard import never_raises
from trl_ext.callbacks._monitored import MonitoredTraining
from trl_ext.callbacks._order import move_before_reporting
from trl_ext.callbacks._reward_evidence import monitors_of, session_of
from trl_ext.callbacks._run import is_training_log
from trl_ext.callbacks._slots import own_folder
from trl_ext.callbacks._trackers import Trackers
from trl_ext.callbacks.stopping import TrainingStopped, ignores_control
from trl_ext.errors import UserError
from trl_ext.monitor.alerts import Alert
from trl_ext.ranks import text_of_any

logger = logging.getLogger("trl_ext.checkpoints")


class CheckpointHealthCallback(TrainerCallback):
    """Reads every checkpoint once it is saved, and the one a run resumes from: files, weights, adapter, configuration,
    and how far the weights moved since the checkpoint before and since the first one. For any trainer, and stock PPO
    (TRL 1.12).

    The main process reads, in a thread of its own, while training goes on; at the end training waits for it. What is
    wrong is said in the log, in `alerts.jsonl` and to `on_alert`; `checkpoint_health.jsonl` has a line for each
    checkpoint, and the next log of training its score and drift as `checkpoint_health/...`. Drift is estimated from
    samples of 1,024 numbers a tensor, since `save_total_limit` may have deleted what it is measured from.

    Args:
        reference: the base model, a folder or a hub id, that weights are compared with; for LoRA what the adapter adds
            to it.
        on_critical: `"warn"`, or `"stop"` to stop when a checkpoint is unusable (weights that are NaN, an adapter that
            was never trained, a file that is cut off); no further checkpoint is saved then. The step is the same on all
            ranks, a few after the save. A trainer that ignores `control.should_training_stop` is stopped by
            `TrainingStopped`, which `trl_ext.train` turns into a return.
        keep_last_healthy: keeps the latest checkpoint without errors in `last_healthy/` of the output folder, by hard
            links, so that `save_total_limit` can never delete it.
        output_dir: folder of the files; `<args.output_dir>/trl_ext` by default.
        on_alert: called with each `Alert` that opened, rose in severity or closed, in the main process and there in the
            thread that reads.
    Raises:
        UserError: a value that makes no sense.
    """

    def __init__(
        self,
        *,
        reference: str | os.PathLike[str] | None = None,
        on_critical: str = "warn",
        keep_last_healthy: bool = False,
        output_dir: str | os.PathLike[str] | None = None,
        on_alert: Callable[[Alert], Any] | None = None,
    ) -> None:
        if on_critical not in ("warn", "stop"):
            raise UserError(f"on_critical must be 'warn' or 'stop', not {on_critical!r}")
        if not isinstance(keep_last_healthy, bool):
            raise UserError(f"keep_last_healthy must be True or False, not {keep_last_healthy!r}")
        if on_alert is not None and not callable(on_alert):
            raise UserError(f"on_alert must be a function that takes an Alert, not {on_alert!r}")
        for name, value in (("reference", reference), ("output_dir", output_dir)):
            if value is not None and not isinstance(value, str | os.PathLike):
                raise UserError(f"{name} must be a path, not {value!r}")
        self._reference = None if reference is None else str(reference)
        self._stops, self._keep = on_critical == "stop", keep_last_healthy
        self._output_dir = None if output_dir is None else Path(output_dir)
        self._on_alert = on_alert
        self._judge: CheckpointJudge | None = None
        self._trackers = Trackers()
        self._pending = False
        self._stopped: TrainingStopped | None = None

    @property
    def alerts(self) -> list[Alert]:
        """All alerts so far as they are now, oldest first; empty in processes other than the main one."""
        return self._judge.alerts if self._judge is not None else []

    @property
    def last_healthy(self) -> Path | None:
        """Where the last healthy checkpoint is kept; `None` without `keep_last_healthy`, or before there is one."""
        return self._judge.kept if self._judge is not None else None

    @never_raises
    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._close()
        self._pending, self._stopped = False, None
        move_before_reporting(self, MonitoredTraining)
        if state.is_world_process_zero:
            handler = calling_handler(self)
            self._judge = CheckpointJudge(
                self._folder(args, handler), session_of(monitors_of(handler)), self._reference, self._keep,
                self._on_alert,
            )  # fmt: skip
            self._trackers = Trackers(handler.callbacks if handler is not None else ())
        if state.global_step > 0:
            self._look(args, state, resumed_from(self) or checkpoint_folder(args, state))

    def _folder(self, args: TrainingArguments, handler: Any) -> Path:
        wanted = self._output_dir or Path(str(args.output_dir)) / "trl_ext"
        callbacks = handler.callbacks if handler is not None else [self]
        same = [other for other in callbacks if isinstance(other, CheckpointHealthCallback) and other is not self]
        taken = [other._judge.folder for other in same if other._judge is not None]
        return own_folder(wanted, len(taken) + 1, taken)

    @never_raises
    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._look(args, state, checkpoint_folder(args, state))

    def _look(self, args: TrainingArguments, state: TrainerState, path: Path) -> None:
        self._pending = self._stops
        if self._judge is not None and path.is_dir():
            self._judge.submit(state.global_step, path)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        if self._pending and self._stopped is None:
            self._decide(args, state)
        if self._stopped is not None:
            if ignores_control(state):
                self._close()
                raise self._stopped
            control.should_training_stop, control.should_save = True, False
        return control

    def _decide(self, args: TrainingArguments, state: TrainerState) -> None:
        """Every rank asks the main process after each step, from a save on until it is judged."""
        news: str | None = None
        if self._judge is not None:
            busy = self._judge.busy
            news = self._judge.critical or ("" if busy else _DONE)
        news, _ = text_of_any(news, args)
        if news == _DONE:
            self._pending = False
        elif news:
            self._stopped = TrainingStopped(f"stopped at step {state.global_step}: {news}")
            if state.is_world_process_zero:
                logger.warning("%s", self._stopped)

    @never_raises
    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **_: Any
    ) -> None:
        if self._judge is not None and self._judge.latest and isinstance(logs, dict) and is_training_log(tuple(logs)):
            for name, value in self._judge.latest.items():
                logs.setdefault(name, value)
            self._judge.latest = {}
            self._tell_trackers()

    @never_raises
    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._close()

    def _tell_trackers(self) -> None:
        """Here and not where they are found: not every tracker takes something from another thread."""
        for alert in self.alerts:
            self._trackers.alert(alert)

    def _close(self) -> None:
        if self._judge is not None:
            self._judge.close()
            self._tell_trackers()


_DONE = "\x00done"
