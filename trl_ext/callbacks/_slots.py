"""Several monitors in one run: which of them is which, so that their files and states do not clash."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback


def claim_slot(callback: Any, handler: Any, kind: type[TrainerCallback]) -> int:
    """The least number from 1 that no monitor ahead of `callback` in the handler's list has.

    For `on_init_end`, which comes in the order of the list: a resumed run, built by the same script, gets the same.
    """
    ahead: list[Any] = []
    for other in handler.callbacks if handler is not None else []:
        if other is callback:
            break
        ahead.append(other)
    return _free(_slots(ahead, callback, kind))


def claim_late_slot(callback: Any, handler: Any, kind: type[TrainerCallback]) -> int:
    """The same among all monitors of the list: for one that was added later, or in a trainer without `on_init_end`."""
    return _free(_slots(handler.callbacks if handler is not None else [], callback, kind))


def own_folder(wanted: Path, slot: int, taken: list[Path]) -> Path:
    """`wanted`, or `wanted-2` for the second monitor when the first writes there."""
    return wanted.with_name(f"{wanted.name}-{slot}") if wanted in taken else wanted


def _slots(callbacks: list[Any], callback: Any, kind: type[TrainerCallback]) -> set[int]:
    return {other.slot for other in callbacks if isinstance(other, kind) and other is not callback and other.slot}


def _free(taken: set[int]) -> int:
    return next(slot for slot in range(1, len(taken) + 2) if slot not in taken)
