"""The monitor's own file in a checkpoint, since Transformers restores callbacks only on request."""

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from trl_ext.callbacks._frames import share_with_replaced
from trl_ext.monitor.strict_json import to_strict_json

logger = logging.getLogger(__name__)


def checkpoint_folder(args: TrainingArguments, state: TrainerState) -> Path:
    """Where the trainer saves, or has saved, at this step."""
    return Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"


def state_file(slot: int) -> str:
    """One file for each monitor of a run."""
    return "trl_ext_monitor.json" if slot == 1 else f"trl_ext_monitor-{slot}.json"


def write_state(args: TrainingArguments, state: TrainerState, record: dict[str, Any]) -> None:
    """Into the checkpoint of this step; skipped where that lies elsewhere (`trainer_state.json` holds the same)."""
    folder = checkpoint_folder(args, state)
    if folder.is_dir():
        path = folder / state_file(record["slot"])
        temporary = path.with_suffix(".tmp")
        temporary.write_text(to_strict_json(record))
        os.replace(temporary, path)


def stored_states(
    args: TrainingArguments, state: TrainerState, slot: int, kept_by_transformers: list[Any]
) -> Iterator[dict[str, Any]]:
    """What monitor `slot` wrote at the step the run resumes from, the best place first.

    Looks into the checkpoint, then (a run may resume from a folder elsewhere) into what `trainer_state.json` kept.
    """
    folders = [checkpoint_folder(args, state)]
    if isinstance(args.resume_from_checkpoint, str | os.PathLike):
        folders.insert(0, Path(args.resume_from_checkpoint))
    paths = [folder / state_file(slot) for folder in folders]
    candidates = [_read(path) for path in paths if path.is_file()]
    for record in [*candidates, *kept_by_transformers]:
        if isinstance(record, dict) and (record.get("step"), record.get("slot")) == (state.global_step, slot):
            yield record


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        logger.warning("%s cannot be read: %s", path, error)
        return None


def kept_attributes(state: TrainerState, callback: str) -> list[dict[str, Any]]:
    """What `trainer_state.json` kept of the callbacks of that class name, one entry each."""
    stored = (state.stateful_callbacks or {}).get(callback) or []
    entries = [entry for entry in (stored if isinstance(stored, list) else [stored]) if isinstance(entry, dict)]
    return [attributes for entry in entries if isinstance(attributes := entry.get("attributes"), dict)]


class KeptInTrainerState:
    """A callback whose exported attribute `kept` is read back from the checkpoint's `trainer_state.json`, there in any
    case, and not from what Transformers, when asked to restore callbacks, sets on a new object."""

    @property
    def kept(self) -> dict[str, Any]:
        return {}

    @kept.setter
    def kept(self, _: dict[str, Any]) -> None:
        share_with_replaced(self)  # type: ignore[arg-type]

    def stored(self, state: TrainerState) -> dict[str, Any] | None:
        """What it exported as `kept` before; `None` where there is nothing."""
        return next((kept.get("kept") for kept in kept_attributes(state, type(self).__name__)), None)


def keep_one(state: TrainerState, callback: str, exported: dict[str, Any]) -> None:
    """Makes `trainer_state.json` hold one entry of that class name.

    Transformers fails to save when a callback was added after the trainer was built, or after the checkpoint was
    written; and of two callbacks of one class it appends both states at every save, so that the file grows.
    """
    if not isinstance(state.stateful_callbacks.get(callback), dict):
        state.stateful_callbacks[callback] = exported
