"""A tracker that fails ends its curves, not the run."""

import functools
import logging
from collections.abc import Callable, Iterable
from typing import Any

from transformers import TrainerCallback
from transformers.integrations import INTEGRATION_TO_CALLBACK

from trl_ext.callbacks.stopping import TrainingStopped

logger = logging.getLogger(__name__)

_FAILED = "_trl_ext_failed"  # on the tracker's callback, which all that report to it share
_EVENTS = [name for name in dir(TrainerCallback) if name.startswith("on_")]


def guard_reporting(trainer: Any) -> None:
    """From its first error on (a full disk, no network, no login) a tracker is left alone, with one warning.

    W&B, TensorBoard and their like raise into the training: TensorBoard even hands an error of its writing thread to
    the next log. The monitors do this by themselves; call it for a trainer without one, and for stock PPO, which tells
    callbacks of nothing before the trackers have begun.
    """
    guard_trackers(trainer.callback_handler.callbacks)


def guard_trackers(callbacks: Iterable[TrainerCallback]) -> None:
    """`guard_reporting`, for a list of callbacks; a second time it does nothing."""
    kinds = tuple(INTEGRATION_TO_CALLBACK.values())
    for callback in callbacks:
        if isinstance(callback, kinds) and not hasattr(callback, _FAILED):
            setattr(callback, _FAILED, False)
            for event in _EVENTS:
                if getattr(type(callback), event) is not getattr(TrainerCallback, event):
                    setattr(callback, event, _guarded(callback, getattr(callback, event)))


def attempt(tracker: TrainerCallback, action: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`action(...)`, which sends something to `tracker`; `None` when that fails, and nothing once it has."""
    if getattr(tracker, _FAILED, False):
        return None
    try:
        return action(*args, **kwargs)
    except TrainingStopped:
        raise
    except Exception as error:  # whatever a tracker raises is about the tracker
        setattr(tracker, _FAILED, True)
        logger.warning(
            "%s failed (%s): no more curves there, training goes on.",
            _name(tracker), str(error) or type(error).__name__,
            exc_info=not isinstance(error, OSError),  # a full disk needs no traceback
        )  # fmt: skip
        return None


def _guarded(tracker: TrainerCallback, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarded(args: Any, *event: Any, **kwargs: Any) -> Any:
        result = attempt(tracker, method, args, *event, **kwargs)
        if getattr(tracker, _FAILED):
            _take_from_report_to(args, tracker)
        return result

    return guarded


def _take_from_report_to(args: Any, tracker: TrainerCallback) -> None:
    """Since TRL's trainers also report by themselves (timings, completions) to whatever is named there."""
    names = [name for name, kind in INTEGRATION_TO_CALLBACK.items() if isinstance(tracker, kind)]
    if isinstance(reported := getattr(args, "report_to", None), list) and not set(names).isdisjoint(reported):
        args.report_to = [name for name in reported if name not in names]


def _name(tracker: TrainerCallback) -> str:
    kinds = [kind for kind in type(tracker).__mro__ if kind in INTEGRATION_TO_CALLBACK.values()]
    return (kinds or [type(tracker)])[0].__name__.removesuffix("Callback")
