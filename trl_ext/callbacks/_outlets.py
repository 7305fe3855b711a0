"""What a monitor tells besides its own files: trackers, tables of samples, the model card."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from trl_ext.callbacks._guard import never_raises
from trl_ext.callbacks._model_card import follow_model_card, write_section
from trl_ext.callbacks._run import is_training_log
from trl_ext.callbacks._sample_tables import SampleTables
from trl_ext.callbacks._trackers import Trackers


class Outlets:
    """For the main process. The first of several monitors alone shows samples and writes into the card.

    Args:
        trainer: that is beginning to train, `None` when somebody else calls.
        summary: of the monitor, as of now.
    """

    def __init__(self, trainer: Any, slot: int, summary: Callable[[], Mapping[str, Any]]) -> None:
        self._summary, self._began = summary, time.time()
        self._samples: SampleTables | None = None
        self.trackers = Trackers()
        if trainer is None:
            return
        self.trackers = Trackers(trainer.callback_handler.callbacks)
        if slot == 1:
            self._samples = SampleTables(trainer, self.trackers)
            follow_model_card(trainer, self._write)

    @never_raises
    def logged(self, step: int, logs: Mapping[str, Any]) -> None:
        samples = self._samples
        if samples is not None and self.trackers and step >= samples.due and is_training_log(tuple(logs)):
            samples.show(step)

    @never_raises
    def finished(self, step: int) -> None:
        """Training is over: the last samples, and the card that the last checkpoint left."""
        if self._samples is not None:
            self._samples.show(step, at_the_end=True)
            if (trainer := self._samples.trainer()) is not None:
                write_section(trainer, self._summary(), only_where_it_is=True, began=self._began)

    @never_raises
    def _write(self, trainer: Any) -> None:
        write_section(trainer, self._summary(), began=self._began)
