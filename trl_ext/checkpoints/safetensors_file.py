"""Where the tensors of a safetensors file lie.

The library checks the header (its length, offsets that overlap or leave the file, sizes that do not fit); only then it
is read here for the offsets, which the library does not tell. The tensors are read by offset and not by the library,
since its memory map would count as memory of the process.
"""

import json
import os
import struct
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from trl_ext.checkpoints.errors import UnreadableError
from trl_ext.checkpoints.folder import CheckpointFolder
from trl_ext.checkpoints.stored import Piece, StoredTensor

_LENGTH = 8  # bytes that say how long the header is
_MOST = 100_000_000  # bytes of a header, as in the library


def read_safetensors(folder: CheckpointFolder, name: str) -> list[StoredTensor]:
    """Its tensors in the order of their bytes.

    Raises:
        UnreadableError: no whole safetensors file.
    """
    with folder.open(name) as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise UnreadableError(f"'{name}' is empty", "empty")
        header, start = _header(file, name, size)
        _check(file, folder, name)
    header.pop("__metadata__", None)
    tensors = []
    for tensor, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors.append(
            StoredTensor(tensor, entry["dtype"], tuple(entry["shape"]), (Piece(name, start + begin, end - begin),))
        )
    tensors.sort(key=lambda tensor: tensor.pieces[0].offset)
    return tensors


def _check(file: Any, folder: CheckpointFolder, name: str) -> None:
    opened = Path(f"/proc/self/fd/{file.fileno()}")  # the very file, whatever its path: the library takes UTF-8 alone
    try:
        with safe_open(opened if opened.exists() else (folder.path / name).resolve(), framework="pt"):
            pass
    except SafetensorError as error:
        raise UnreadableError(f"'{name}' is no sound safetensors file: {_cause(error)}", "header") from error
    except (OSError, RuntimeError) as error:  # deleted since
        cause = getattr(error, "strerror", None) or _cause(error)
        raise UnreadableError(f"'{name}' cannot be read: {cause}", "missing") from error


def _cause(error: Exception) -> str:
    return " ".join(str(error).split()).removeprefix("Error while deserializing header: ")[:160]


def _header(file: Any, name: str, size: int) -> tuple[dict[str, Any], int]:
    """The header, and where the tensors begin."""
    start = file.read(_LENGTH)
    (length,) = struct.unpack("<Q", start) if len(start) == _LENGTH else (0,)
    if len(start) < _LENGTH or length > size - _LENGTH:
        what = f"its header should have {length:,} bytes" if len(start) == _LENGTH else "it has no header"
        raise UnreadableError(f"'{name}' is cut off or no safetensors file: {what}, the file has {size:,}", "truncated")
    if length > _MOST:
        raise UnreadableError(f"'{name}' has a header of {length:,} bytes, which safetensors refuses", "header")
    try:
        header = json.loads(file.read(length))
        end = max((entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"), default=0)
    except (ValueError, RecursionError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise UnreadableError(f"'{name}' has a header that is none of safetensors", "header") from error
    if isinstance(end, int) and _LENGTH + length + end > size:
        raise UnreadableError(
            f"'{name}' is cut off: it should have {_LENGTH + length + end:,} bytes, and has {size:,}", "truncated"
        )
    return header, _LENGTH + length
