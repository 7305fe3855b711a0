"""Finds and opens the log of a run, whatever wrote it."""

import os
from collections.abc import Iterable
from pathlib import Path

from trl_ext.errors import UserError
from trl_ext.monitor.files import METRICS_FILE
from trl_ext.monitor.log_files import Log, read_log
from trl_ext.reporting.event_files import read_event_files
from trl_ext.reporting.wandb_files import read_wandb_file

STATE_FILE, EVENTS, WANDB = "trainer_state.json", "events.out.tfevents.*", "*.wandb"


def open_log(path: str | os.PathLike[str]) -> Log:
    """The log in a file or, when `path` is a folder, of the run in it: `metrics.jsonl` of the monitor (the most
    complete), the trainer's state, that of the newest checkpoint, TensorBoard's event files, W&B's newest run.

    Raises:
        UserError: there is none, it cannot be read, or the package that wrote it is not installed.
    """
    path = Path(path)
    if not path.is_dir():
        return _open([path])
    files = _find(path)
    if not files:
        wanted = f"{METRICS_FILE}, {STATE_FILE}, checkpoint-*, event files or .wandb files"
        raise UserError(f"found no log in the folder {path}: no {wanted}")
    log = _open(files)
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    log.notes.insert(0, f"read {files[-1]}{more}")
    return log


def _open(files: list[Path]) -> Log:
    name = files[0].name
    if "tfevents" in name:
        return read_event_files(files)
    return read_wandb_file(files[0]) if name.endswith(".wandb") else read_log(files[0])


def _find(folder: Path) -> list[Path]:
    """The files of the best log there is, oldest first; an empty file is none."""
    checkpoints = sorted(folder.glob(f"checkpoint-*/{STATE_FILE}"), key=lambda path: _number(path.parent.name))
    wandb = _all(folder, WANDB, ("", "*-run-*/", "wandb/*-run-*/"))
    for single in (folder / METRICS_FILE, folder / "trl_ext" / METRICS_FILE, folder / STATE_FILE, *checkpoints[::-1]):
        if single.is_file() and single.stat().st_size:
            return [single]
    events = _all(folder, EVENTS, ("", "*/", "runs/**/", "logs/**/"))
    runs = sorted({str(path.parent) for path in events})
    if len(runs) > 1:
        raise UserError(f"{folder} holds the event files of {len(runs)} runs: give one of {', '.join(runs)}")
    return events or wandb[-1:]


def _all(folder: Path, pattern: str, places: Iterable[str]) -> list[Path]:
    """Oldest first: event files have the second of their start in the name."""
    found = {path for place in places for path in folder.glob(place + pattern) if path.is_file()}
    return sorted(found, key=lambda path: (_number(path.name), path.stat().st_mtime, path))


def _number(name: str) -> int:
    """The number in `checkpoint-100` or `events.out.tfevents.1700000000.host.1.0`; 0 when there is none."""
    return next((int(part) for part in name.replace("-", ".").split(".") if part.isdecimal()), 0)
