"""The monitor's own file in a checkpoint, since Transformers restores callbacks only on request."""

import json
import os
from pathlib import Path
from typing import Any

from transformers import TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from trl_ext.monitor.strict_json import to_strict_json

FILE = "trl_ext_monitor.json"


def write_state(args: TrainingArguments, state: TrainerState, record: dict[str, Any]) -> None:
    """Into the checkpoint of this step; skipped where that lies elsewhere (`trainer_state.json` holds the same)."""
    folder = Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
    if folder.is_dir():
        temporary = folder / (FILE + ".tmp")
        temporary.write_text(to_strict_json(record))
        os.replace(temporary, folder / FILE)


def read_state(args: TrainingArguments, state: TrainerState, callback: str) -> dict[str, Any] | None:
    """What was written at the step the run resumes from, or `None`.

    Looks into the checkpoint, then (a run may resume from a folder elsewhere) into what `trainer_state.json` kept of
    the first callback of that class name.
    """
    folders = [Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"]
    if isinstance(args.resume_from_checkpoint, str | os.PathLike):
        folders.insert(0, Path(args.resume_from_checkpoint))
    candidates = []
    for folder in folders:
        if (folder / FILE).is_file():
            candidates.append(json.loads((folder / FILE).read_text()))
    stored = (state.stateful_callbacks or {}).get(callback) or {}
    stored = stored[0] if isinstance(stored, list) else stored
    candidates.append(stored.get("attributes", {}).get("restored"))
    return next((c for c in candidates if isinstance(c, dict) and c.get("step") == state.global_step), None)
