"""The files of a checkpoint, and of nothing else."""

import json
import os
import stat
from pathlib import Path
from typing import Any

from trl_ext.checkpoints.errors import UnreadableError

_LARGEST_JSON = 64 << 20  # bytes; tokenizer.json of a large vocabulary has 30 million
_MOST_FILES = 20_000


def inside(under: str, name: str) -> str:
    """The path from the checkpoint's folder of what a folder in it holds; that is `""` for the folder itself."""
    return f"{under}/{name}" if under else name


class CheckpointFolder:
    """A folder, or one file of it. Nothing is written, no link is followed out of it.

    A link may lead to another place in the folder, and in a cache of the Hugging Face hub, whose snapshots are links,
    to the `blobs` beside them.

    Args:
        path: the folder.
    Raises:
        UnreadableError: there is no such folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            what = "is no folder" if self.path.exists() else "does not exist"
            raise UnreadableError(f"{self.path} {what}: name the folder of a checkpoint", "missing")
        self._real = self.path.resolve()
        self._allowed = [self._real]
        snapshot = next(
            (place for place in (self._real, *self._real.parents) if place.parent.name == "snapshots"), None
        )
        if snapshot is not None:
            self._allowed.append(snapshot.parent.parent / "blobs")

    def names(self, under: str = "") -> list[str]:
        """The entries of the folder, or of a folder in it, that are files, sorted; as paths from the folder."""
        return sorted(name for name, entry in self._entries(under) if not _is_folder(entry))  # nor links to folders

    def folders(self, under: str = "") -> list[str]:
        return sorted(name for name, entry in self._entries(under) if entry.is_dir(follow_symlinks=False))

    def _entries(self, under: str) -> list[tuple[str, os.DirEntry]]:
        found = []
        try:
            with os.scandir(self.path / under) as entries:
                for entry in entries:
                    found.append((inside(under, entry.name), entry))
                    if len(found) > _MOST_FILES:
                        raise UnreadableError(f"{self.path / under} has more than {_MOST_FILES} entries", "format")
        except OSError as error:  # deleted while we look
            raise UnreadableError(f"{self.path / under} cannot be listed: {error.strerror}", "missing") from error
        return found

    def size(self, name: str) -> int:
        """Bytes.

        Raises:
            UnreadableError: as `open` has it.
        """
        with self.open(name) as file:
            return os.fstat(file.fileno()).st_size

    def open(self, name: str) -> Any:
        """The file, opened for reading bytes without a buffer.

        Raises:
            UnreadableError: it leads out of the folder, is no plain file, or is not there.
        """
        path = self.path / name
        if name.startswith("/") or ".." in Path(name).parts or "\\" in name or "\0" in name:
            raise UnreadableError(f"'{name}' leads out of the checkpoint, and is not read", "unsafe")
        try:
            real = path.resolve(strict=True)
            if not any(real.is_relative_to(place) for place in self._allowed):
                raise UnreadableError(f"'{name}' is a link out of the checkpoint, and is not read", "unsafe")
            if not stat.S_ISREG(os.stat(real).st_mode):  # a pipe would wait for ever
                raise UnreadableError(f"'{name}' is no plain file, and is not read", "unsafe")
            return open(os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb", buffering=0)
        except (OSError, RuntimeError) as error:  # RuntimeError: links that lead in a circle
            cause = getattr(error, "strerror", None) or "links lead in a circle"
            raise UnreadableError(f"'{name}' cannot be read: {cause}", "missing") from error

    def json(self, name: str) -> Any:
        """What a JSON file of the folder holds.

        Raises:
            UnreadableError: it cannot be read, or is no JSON.
        """
        with self.open(name) as file:
            content = file.read(_LARGEST_JSON + 1)
        if len(content) > _LARGEST_JSON:
            raise UnreadableError(f"'{name}' has more than {_LARGEST_JSON >> 20} MiB", "format")
        if not content.strip():
            raise UnreadableError(f"'{name}' is empty", "empty")
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise UnreadableError(f"'{name}' holds no JSON: {' '.join(str(error).split())[:120]}", "format") from error


def _is_folder(entry: os.DirEntry) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # links that lead in a circle
        return False
