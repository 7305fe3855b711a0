"""The life of one monitor: begins with a training or resumes, observes, saves, ends. None of it ever raises."""

import logging
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from trl_ext.callbacks._checkpoint_state import keep_one, kept_attributes, stored_states, write_state
from trl_ext.callbacks._facts import read_facts
from trl_ext.callbacks._frames import calling_handler, calling_trainer, share_with_replaced
from trl_ext.callbacks._guard import never_raises
from trl_ext.callbacks._options import MonitorOptions
from trl_ext.callbacks._order import move_before_reporting
from trl_ext.callbacks._outlets import Outlets
from trl_ext.callbacks._ppo_view import PPOView
from trl_ext.callbacks._reward_failures import checked_rewards, failed_shares, keep_failures
from trl_ext.callbacks._run import MonitoredRun, is_training_log
from trl_ext.callbacks._slots import claim_late_slot, claim_slot, own_folder
from trl_ext.callbacks._stop import StopDecision
from trl_ext.callbacks.reporting_guard import guard_trackers
from trl_ext.monitor.alerts import Severity
from trl_ext.ranks import largest_over_ranks
from trl_ext.rewards.checking import CheckedReward

logger = logging.getLogger(__name__)

_PREFIX = "trl_ext"  # of what is added to the trainer's logs


def _with_options(kind: type["MonitoredTraining"], options: MonitorOptions) -> "MonitoredTraining":
    monitor = kind.__new__(kind)
    MonitoredTraining.__init__(monitor, options)
    return monitor


class MonitoredTraining(TrainerCallback, ExportableState):
    """What a monitor does behind the trainer's events, which `MonitoringCallback` hears."""

    def __init__(self, options: MonitorOptions):
        self._options = options
        self.slot = 0  # which of several monitors of a run this is, from 1; 0 before it is known
        self._facts: dict[str, Any] = {}
        self._prefixed: dict[str, str] = {}  # what is added to the logs, under the name it has there
        self._run = self._new_run()
        self._untouched = self._run.engine.state_dict()
        self._stop = StopDecision()
        self._step = 0
        self._restored: dict[str, Any] | None = None
        self._rewards: list[CheckedReward] = []
        self._outlets: Outlets | None = None  # of the main process

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle or a copy is a monitor with the same options, before any run; a subclass keeps its attributes."""
        own = vars(_with_options(type(self), self._options))
        return _with_options, (type(self), self._options), {k: v for k, v in vars(self).items() if k not in own} or None

    def _new_view(self) -> PPOView | None:
        return None

    def _new_run(self) -> MonitoredRun:
        engine = self._options.engine(self._facts)
        return MonitoredRun(engine, self._options.history_size, self._new_view(), self._options.on_alert)

    def _fresh_run(self) -> MonitoredRun:
        run = self._new_run()
        run.engine.load_state_dict(self._untouched)  # rule instances may have seen an earlier run
        return run

    def state(self) -> dict[str, Any]:
        """For `trainer_state.json`: the arguments that JSON can hold, and the state of the run."""
        try:
            return {"args": self._options.to_json(), "attributes": {"restored": self._record(self._step)}}
        except Exception:  # the trainer asks while it saves, and must not fail for it
            logger.exception("The monitor's state cannot be stored in trainer_state.json; training goes on.")
            return {"args": {}, "attributes": {"restored": None}}

    @property
    def restored(self) -> dict[str, Any] | None:
        """Set by Transformers, when asked to restore callbacks, on a new object built from stored arguments."""
        return self._restored

    @restored.setter
    def restored(self, record: dict[str, Any] | None) -> None:
        share_with_replaced(self)  # JSON holds no functions
        self._restored = record

    def _record(self, step: int) -> dict[str, Any]:
        return {"slot": self.slot or 1, "data": self._facts.get("data"), **self._run.state_dict(step)}

    @never_raises
    def _claim_slot(self) -> None:
        handler = calling_handler(self)
        self.slot = claim_slot(self, handler, MonitoredTraining)
        guard_trackers(handler.callbacks if handler is not None else [])  # before they begin

    @never_raises
    def _begin(self, args: TrainingArguments, state: TrainerState, event: dict[str, Any]) -> None:
        self._stop = StopDecision()
        self._run.finish(completed=False)  # of an earlier train() that raised
        self.slot = self.slot or claim_late_slot(self, calling_handler(self), MonitoredTraining)
        trainer = calling_trainer(self)
        self._facts = read_facts(args, state, trainer, **event)
        self._rewards = checked_rewards(trainer)
        keep_failures(self._rewards, self._folder(args))
        self._run = self._fresh_run()
        self._resume(args, state)
        keep_one(state, type(self).__name__, self.state())
        move_before_reporting(self)
        handler = calling_handler(self)
        guard_trackers(handler.callbacks if handler is not None else [])
        self._outlets = None
        if state.is_world_process_zero:
            self._outlets = Outlets(trainer, self.slot, self._run.summary)
            gpu = args.device.index if args.device.type == "cuda" else None
            self._run.start(
                self._folder(args), self._options.replayable(), self._options.log_system_metrics, gpu,
                self._outlets.trackers,
            )  # fmt: skip
            # when training raises there is no on_train_end: written when this object goes, at the latest at exit
            weakref.finalize(self, self._run.finish, completed=False)

    def _resume(self, args: TrainingArguments, state: TrainerState) -> None:
        restored, self._restored = self._restored, None
        if state.global_step == 0:
            return
        kept = [restored, *(kept.get("restored") for kept in kept_attributes(state, type(self).__name__))]
        self._step = state.global_step
        for stored in stored_states(args, state, self.slot, kept):
            try:
                self._run.load_state_dict(stored)
                self._run.engine.set_facts({"data_before": stored.get("data")})
                self._run.engine.resumed()
                return
            except Exception as error:  # damaged, or of another version
                logger.warning("A state of the monitor cannot be used: %s: %s", type(error).__name__, error)
                self._run = self._fresh_run()
        logger.warning("No state of the monitor for step %d: it starts afresh.", state.global_step)

    def _folder(self, args: TrainingArguments) -> Path:
        handler = calling_handler(self)
        others = [other for other in handler.callbacks if isinstance(other, MonitoredTraining)] if handler else []
        taken = [other._wanted_folder(args) for other in others if 0 < other.slot < self.slot]
        return own_folder(self._wanted_folder(args), self.slot, taken)

    def _wanted_folder(self, args: TrainingArguments) -> Path:
        return self._options.output_dir or Path(str(args.output_dir)) / "trl_ext"

    @never_raises
    def _observe(self, state: TrainerState, logs: Mapping[str, Any]) -> None:
        if self._rewards and isinstance(logs, dict) and is_training_log(tuple(logs)):
            logs.update(failed_shares(self._rewards, logs))
        seen, prefix = logs, _PREFIX
        if self.slot > 1:  # what the first one has added is nothing to judge
            seen = {key: value for key, value in logs.items() if not str(key).startswith(_PREFIX)}
            prefix = f"{_PREFIX}-{self.slot}"
        added = self._run.observe(state.global_step, state.epoch, seen)
        if isinstance(logs, dict):
            names = self._prefixed
            for name, value in added.items():
                logs.setdefault(names.get(name) or names.setdefault(name, f"{prefix}/{name}"), value)

        if self._outlets is not None:
            self._outlets.logged(state.global_step, logs)

    def _decide(self, args: TrainingArguments, state: TrainerState) -> None:
        """A collective: one rank may see what the others do not."""
        if self._stop.taken is not None:
            return
        severity = self._run.engine.severity
        worst = largest_over_ranks(-1 if severity is None else severity.rank, args)
        if worst >= Severity.CRITICAL.rank:
            alert, rank = self._run.share_critical(args)
            where = f"Process {rank} saw " if rank != args.process_index else ""
            fault = f"{alert.rule}: {alert.message}" if alert is not None else "a critical fault"
            self._run.stopped = f"stopped at step {state.global_step} by on_critical='stop'. {where}{fault}"
            self._stop.take(self._run.stopped)
            logger.error("Saving a checkpoint, then stopping: %s", self._stop.taken)

    @never_raises
    def _save(self, args: TrainingArguments, state: TrainerState) -> None:
        self._run.flush()
        self._run.write_summary()
        if state.is_world_process_zero:
            write_state(args, state, self._record(state.global_step))

    @never_raises
    def _finish(self, completed: bool) -> None:
        self._run.flush()
        self._run.conclude()
        self._run.finish(completed)
        self._run.send_summary(_PREFIX if self.slot == 1 else f"{_PREFIX}-{self.slot}")
        if self._outlets is not None:
            self._outlets.finished(self._step)
