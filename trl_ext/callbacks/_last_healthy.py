"""Keeps the last healthy checkpoint, whatever `save_total_limit` deletes."""

import contextlib
import os
import shutil
from pathlib import Path

_WAITING = ".waiting"
_SMALL = 1 << 20  # bytes


class LastHealthy:
    """One `checkpoint-N` in a folder, and those that are not judged yet in a hidden one beside it.

    A second name for every file of a checkpoint: hard links take no time, and no space until the first name is gone.
    Where the file system has none, and for small files, copies.

    Args:
        folder: made with the first checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.rmtree(folder / _WAITING, ignore_errors=True)  # of a run that was killed
        with contextlib.suppress(OSError):
            self._unshare()

    def _unshare(self) -> None:
        """Makes what an earlier run kept independent of its checkpoints, into whose files this run may write anew."""
        for path in self.folder.rglob("*"):
            if path.is_file() and not path.is_symlink() and path.stat().st_nlink > 1:
                temporary = path.with_name(f".{path.name}.tmp")
                shutil.copy2(path, temporary)
                os.replace(temporary, path)

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
        except OSError as error:
            shutil.rmtree(waiting, ignore_errors=True)
            if not checkpoint.is_dir():
                return None
            if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
                _, _, why = error.args[0][0]  # of the first file, and not the list of all
                raise OSError(str(why)) from error
            raise
        return waiting

    def keep(self, waiting: Path) -> Path:
        """In place of the one kept before, which goes when this one is there."""
        kept = self.folder / waiting.name
        before = self._hide(kept) if kept.exists() else None
        os.replace(waiting, kept)
        if before is not None:
            shutil.rmtree(before, ignore_errors=True)
        for other in self.folder.iterdir():
            if other != kept and other.name.startswith("checkpoint-"):
                with contextlib.suppress(OSError):
                    shutil.rmtree(self._hide(other))
        self.close()
        return kept

    def _hide(self, kept: Path) -> Path:
        """Where it can be removed: a run that is killed meanwhile leaves whole checkpoints alone."""
        gone = self.folder / _WAITING / f"{kept.name}.gone"
        shutil.rmtree(gone, ignore_errors=True)
        os.replace(kept, gone)
        return gone

    def drop(self, waiting: Path) -> None:
        """One that is not healthy, or not judged."""
        shutil.rmtree(waiting, ignore_errors=True)
        self.close()

    def close(self) -> None:
        """Leaves no empty folder."""
        with contextlib.suppress(OSError):
            (self.folder / _WAITING).rmdir()


def _link(source: str, target: str) -> None:
    if os.path.getsize(source) <= _SMALL:
        shutil.copy2(source, target)  # written in place by a later run without this callback, it would change here
        return
    try:
        os.link(source, target, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(source, target)
