"""The numbers of tensors, a few megabytes at a time, read while the last ones are computed with."""

import os
import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from trl_ext.checkpoints.errors import UnreadableError
from trl_ext.checkpoints.folder import CheckpointFolder
from trl_ext.checkpoints.stored import StoredTensor

_BYTES = 4 << 20  # of a read
_BUFFERS = 3  # one is filled, one computed with, one between


class Block(NamedTuple):
    """Consecutive elements of a tensor.

    Attributes:
        start: index of the first one, in the order in which they lie.
        values: shape `(elements,)`, of the tensor's dtype, or bytes where torch has no such type. Valid until the next
            block is asked for.
    """

    tensor: StoredTensor
    start: int
    values: torch.Tensor


def stream(
    folder: CheckpointFolder, tensors: Iterable[StoredTensor]
) -> Iterator[Block | tuple[StoredTensor, UnreadableError]]:
    """The blocks of all tensors, one after the other; in place of the rest of a tensor what kept it from being read.

    Memory is bounded by three buffers of 4 MiB.
    """
    free: queue.Queue[memoryview] = queue.Queue()
    filled: queue.Queue[Any] = queue.Queue(_BUFFERS)
    for _ in range(_BUFFERS):
        free.put(memoryview(bytearray(_BYTES)))
    stopped = threading.Event()
    reader = threading.Thread(target=_read, args=(folder, list(tensors), free, filled, stopped), daemon=True)
    reader.start()
    try:
        while (item := filled.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            tensor, start, buffer, size = item
            if isinstance(buffer, UnreadableError):
                yield tensor, buffer
                continue
            dtype = tensor.torch_dtype or torch.uint8
            yield Block(tensor, start, torch.frombuffer(buffer[:size], dtype=dtype))
            free.put(buffer)
    finally:
        stopped.set()
        free.put(memoryview(bytearray(1)))  # wakes the reader where it waits
        while reader.is_alive():
            try:
                filled.get(timeout=0.05)
            except queue.Empty:
                continue


def _read(
    folder: CheckpointFolder,
    tensors: list[StoredTensor],
    free: queue.Queue,
    filled: queue.Queue,
    stopped: threading.Event,
) -> None:
    file, opened = None, ""
    try:
        for tensor in tensors:
            start, width = 0, (tensor.torch_dtype or torch.uint8).itemsize
            try:
                for piece in tensor.pieces:
                    if piece.file != opened:
                        if file is not None:
                            file.close()
                        file, opened = folder.open(piece.file), piece.file
                    for at in range(0, piece.size, _BYTES):
                        buffer = free.get()
                        if stopped.is_set():
                            return
                        size = min(_BYTES, piece.size - at)
                        _fill(file, buffer[:size], piece.offset + at, piece.file)
                        filled.put((tensor, start, buffer, size))
                        start += size // width
            except UnreadableError as error:
                opened = ""
                free.put(memoryview(bytearray(_BYTES)))
                filled.put((tensor, start, error, 0))
    except BaseException as error:
        filled.put(error)
    else:
        filled.put(None)
    finally:
        if file is not None:
            file.close()


def _fill(file: Any, buffer: memoryview, offset: int, name: str) -> None:
    done = 0
    while done < len(buffer):
        try:
            count = os.preadv(file.fileno(), [buffer[done:]], offset + done)
        except OSError as error:
            raise UnreadableError(f"'{name}' cannot be read: {error.strerror}", "missing") from error
        if count == 0:
            raise UnreadableError(f"'{name}' became shorter while it was read", "truncated")
        done += count
