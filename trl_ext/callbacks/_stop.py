"""Stopping a run: after a checkpoint, and also where the trainer does not listen."""

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trl_ext.callbacks._frames import calling_handler
from trl_ext.callbacks.stopping import TrainingStopped, ignores_control


class StopDecision:
    """Taken once, asked for through `control`, and carried out by raising where the trainer ignores that.

    Take it from values that are equal on all ranks (`trl_ext/ranks.py`).
    """

    def __init__(self) -> None:
        self.taken: TrainingStopped | None = None

    def take(self, reason: str) -> None:
        if self.taken is None:
            self.taken = TrainingStopped(reason)

    def ask(self, control: TrainerControl) -> TrainerControl:
        """Stock PPO reads `should_save` right after `on_step_end` and generates nothing before it, so that the stop
        comes at the very log that showed the fault. The others save and stop by themselves."""
        if self.taken is not None:
            control.should_save = control.should_training_stop = True
        return control

    def must_raise(self, state: TrainerState) -> bool:
        """Whether `on_save` has to raise, because the trainer would go on."""
        return self.taken is not None and ignores_control(state)

    def raise_after_the_others(
        self, callback: TrainerCallback, args: TrainingArguments, state: TrainerState, control: TrainerControl,
        event: dict[str, Any],
    ) -> None:  # fmt: skip
        """Raises in `on_save`, once the callbacks behind `callback` have heard of the checkpoint, too."""
        assert self.taken is not None
        handler = calling_handler(callback)
        callbacks = handler.callbacks if handler is not None else [callback]
        place = next(i for i, other in enumerate(callbacks) if other is callback)
        for other in callbacks[place + 1 :]:
            other.on_save(args, state, control, **event)
        raise self.taken
