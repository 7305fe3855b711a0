"""Keeps the last healthy checkpoint, whatever `save_total_limit` deletes."""

import contextlib
import os
import shutil
from pathlib import Path


def keep_as_last_healthy(checkpoint: Path, folder: Path) -> Path | None:
    """A second name for every file of a checkpoint (hard links: no time, and no space until the first name is gone;
    copies where the file system has no links), in place of the one kept before.

    Args:
        folder: holds one `checkpoint-N`.
    Returns:
        Where it is kept; `None` where the checkpoint was deleted meanwhile.
    Raises:
        OSError: it cannot be written.
    """
    kept, unfinished = folder / checkpoint.name, folder / f".{checkpoint.name}.tmp"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        shutil.copytree(checkpoint, unfinished, symlinks=True, copy_function=_link)
    except (OSError, shutil.Error):
        shutil.rmtree(unfinished, ignore_errors=True)
        if not checkpoint.is_dir():
            return None
        raise
    if kept.exists():
        shutil.rmtree(kept)
    os.replace(unfinished, kept)
    for other in folder.iterdir():
        if other != kept and other.name.startswith(("checkpoint-", ".checkpoint-")):
            with contextlib.suppress(OSError):
                shutil.rmtree(other)
    return kept


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(source, target)
