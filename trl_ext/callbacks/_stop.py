"""Stopping a run for a critical fault: after a checkpoint, and on every rank alike."""

import logging

from transformers import TrainerControl, TrainerState, TrainingArguments

from trl_ext.callbacks._ranks import largest_over_ranks
from trl_ext.callbacks._run import MonitoredRun
from trl_ext.callbacks.stopping import TrainingStopped, ignores_control
from trl_ext.monitor.alerts import Severity

logger = logging.getLogger(__name__)


class StopDecision:
    """Taken at a log, asked for through `control`, and carried out by raising where the trainer ignores that."""

    def __init__(self) -> None:
        self.taken: TrainingStopped | None = None

    def decide(self, run: MonitoredRun, args: TrainingArguments, state: TrainerState) -> None:
        """A collective: one rank may see what the others do not."""
        if self.taken is not None:
            return
        severity = run.engine.severity
        worst = largest_over_ranks(-1 if severity is None else severity.rank, args)
        if worst >= Severity.CRITICAL.rank:
            self.taken = TrainingStopped(run.note_stop(state.global_step))
            logger.error("Saving a checkpoint, then stopping: %s", self.taken)

    def ask(self, control: TrainerControl) -> TrainerControl:
        """Stock PPO reads `should_save` right after `on_step_end` and generates nothing before it, so that the stop
        comes at the very log that showed the fault. The others save and stop by themselves."""
        if self.taken is not None:
            control.should_save = control.should_training_stop = True
        return control

    def to_raise(self, state: TrainerState) -> TrainingStopped | None:
        """What `on_save` has to raise, if anything."""
        return self.taken if ignores_control(state) else None
