"""A full disk ends the curves, not the run."""

import functools
import logging
from collections.abc import Callable
from typing import Any

from transformers.integrations import TensorBoardCallback

logger = logging.getLogger(__name__)


def guard_reporting(trainer: Any) -> None:
    """From the first `OSError` of TensorBoard's writer on (a full disk, say) it is left alone, with one warning.

    TensorBoard writes from a thread that hands its error to the next log, which would end the training. Call it once,
    after the trainer is built.
    """
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback):
            for event in ("on_train_begin", "on_log", "on_train_end"):
                setattr(callback, event, _until_disk_error(callback, getattr(callback, event)))


def _until_disk_error(callback: Any, method: Callable) -> Callable:
    @functools.wraps(method)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if getattr(callback, "failed", False):
            return None
        try:
            return method(*args, **kwargs)
        except OSError as error:
            callback.failed = True
            logger.warning("TensorBoard cannot write (%s): no more curves, training goes on.", error)
            return None

    return guarded
