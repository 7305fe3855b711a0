"""Keeps the last healthy checkpoint, whatever `save_total_limit` deletes."""

import contextlib
import os
import shutil
from pathlib import Path

_WAITING = ".waiting"


class LastHealthy:
    """One `checkpoint-N` in a folder, and those that are not judged yet in a hidden one beside it.

    A second name for every file of a checkpoint: hard links take no time, and no space until the first name is gone.
    Where the file system has none, files are copied.

    Args:
        folder: made with the first checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.rmtree(folder / _WAITING, ignore_errors=True)  # of a run that was killed

    def take(self, checkpoint: Path) -> Path | None:
        """Where it can be judged, and is safe; `None` where it was deleted meanwhile.

        Raises:
            OSError: it cannot be written.
        """
        waiting = self.folder / _WAITING / checkpoint.name
        waiting.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(waiting, ignore_errors=True)
        try:
            shutil.copytree(checkpoint, waiting, symlinks=True, copy_function=_link)
        except (OSError, shutil.Error):
            shutil.rmtree(waiting, ignore_errors=True)
            if not checkpoint.is_dir():
                return None
            raise
        return waiting

    def keep(self, waiting: Path) -> Path:
        """In place of the one kept before, which goes when this one is there."""
        kept = self.folder / waiting.name
        if kept.exists():
            shutil.rmtree(kept)
        os.replace(waiting, kept)
        for other in self.folder.iterdir():
            if other != kept and other.name.startswith("checkpoint-"):
                with contextlib.suppress(OSError):
                    shutil.rmtree(other)
        return kept

    def drop(self, waiting: Path) -> None:
        """One that is not healthy, or not judged."""
        shutil.rmtree(waiting, ignore_errors=True)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            (self.folder / _WAITING).rmdir()


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(source, target)
