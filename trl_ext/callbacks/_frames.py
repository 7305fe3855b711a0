"""Who calls a callback. Transformers hands neither the trainer nor its `CallbackHandler` to one.

Both are found in the frames below: `CallbackHandler.call_event`, and the trainer's method that called the handler.
Where that changes, nothing is found and what needs it is left out: `tests/contract/test_callback_order.py` tells.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import CallbackHandler


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def calling_handler(callback: TrainerCallback) -> CallbackHandler | None:
    """The handler that is calling `callback` now, `None` when somebody else does."""
    for frame in _frames():
        handler = frame.f_locals.get("self")
        if isinstance(handler, CallbackHandler) and any(other is callback for other in handler.callbacks):
            return handler
    return None


def calling_trainer(callback: TrainerCallback) -> Any:
    """The trainer whose event `callback` is hearing now, `None` when somebody else calls."""
    handler = calling_handler(callback)
    for frame in _frames():
        trainer = frame.f_locals.get("self")
        if handler is not None and getattr(trainer, "callback_handler", None) is handler:
            return trainer
    return None


def resumed_from(callback: TrainerCallback) -> Path | None:
    """The folder that `trainer.train(resume_from_checkpoint=...)` was given or found, which no argument tells."""
    trainer = calling_trainer(callback)
    for frame in _frames():
        if trainer is not None and frame.f_locals.get("self") is trainer:
            given = frame.f_locals.get("resume_from_checkpoint")
            if isinstance(given, str | os.PathLike) and Path(given).is_dir():
                return Path(given)
    return None


def replaced_callback(new: TrainerCallback) -> Any:
    """The callback in whose place Transformers is putting `new` (`restore_callback_states_from_checkpoint=True`), which
    it builds from stored arguments: what JSON cannot hold is in the old one alone."""
    for frame in _frames():
        if frame.f_code.co_name == "_load_callback_state":
            old = frame.f_locals.get("callback")
            return old if type(old) is type(new) and old is not new else None
    return None


def share_with_replaced(new: TrainerCallback) -> None:
    """Makes `new` and the callback that it replaces one: the user's variable names the old object."""
    replaced = replaced_callback(new)
    if replaced is not None:
        new.__dict__ = replaced.__dict__
