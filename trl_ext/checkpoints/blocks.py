"""The numbers of stored tensors, a few megabytes at a time, in several threads: each reads and computes in turn."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from trl_ext.checkpoints.errors import UnreadableError
from trl_ext.checkpoints.folder import CheckpointFolder
from trl_ext.checkpoints.stored import StoredTensor

Result = TypeVar("Result")
# What is made of consecutive elements of a tensor: the index of the first, in the order in which they lie, and the
# elements, shape `(elements,)`, of its dtype, or bytes where torch has none such. They are valid during the call alone.
Work = Callable[[StoredTensor, int, torch.Tensor], Result]

_BYTES = 4 << 20  # of a block


class Done(NamedTuple, Generic[Result]):
    """One tensor.

    Attributes:
        results: one for each block, in order.
        error: what kept it from being read to the end.
    """

    tensor: StoredTensor
    results: list[Result]
    error: UnreadableError | None


def map_blocks(
    folder: CheckpointFolder, tensors: Iterable[StoredTensor], work: Work[Result], workers: int = 1
) -> Iterator[Done[Result]]:
    """Each tensor with what `work` makes of its blocks, in the order of `tensors`.

    Memory is bounded by a block for each worker, and what `work` needs.

    Args:
        workers: threads. Each uses as many threads of torch as are set: with more than one worker set that to 1
            (`torch.set_num_threads`).
    """
    files = _Files(folder)
    waiting: deque[tuple[StoredTensor, list[Future]]] = deque()
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(workers, thread_name_prefix="checkpoint"))
        stack.callback(files.close)
        stack.callback(lambda: pool.shutdown(cancel_futures=True))  # where nobody reads to the end
        submitted = 0
        for tensor in tensors:
            waiting.append((tensor, [pool.submit(_one, files, work, tensor, *block) for block in _blocks_of(tensor)]))
            submitted += len(waiting[-1][1])
            while len(waiting) > 1 and submitted > 8 * workers:
                done = _finish(*waiting.popleft())
                submitted -= len(done.results)
                yield done
        while waiting:
            yield _finish(*waiting.popleft())


def _finish(tensor: StoredTensor, futures: list[Future]) -> Done:
    results, error = [], None
    for future in futures:
        try:
            results.append(future.result())
        except UnreadableError as failure:
            error = error or failure
    return Done(tensor, results, error)


def _blocks_of(tensor: StoredTensor) -> Iterator[tuple[int, str, int, int]]:
    """First element, file, offset and bytes of each."""
    width = tensor.read_as.itemsize
    start = 0
    for piece in tensor.pieces:
        for at in range(0, piece.size, _BYTES):
            size = min(_BYTES, piece.size - at)
            yield start, piece.file, piece.offset + at, size
            start += size // width


_OWN = threading.local()


def _one(files: "_Files", work: Work, tensor: StoredTensor, start: int, file: str, offset: int, size: int) -> Any:
    if not hasattr(_OWN, "buffer"):
        _OWN.buffer = memoryview(bytearray(_BYTES))
    buffer = _OWN.buffer[:size]
    files.read(file, offset, buffer)
    return work(tensor, start, torch.frombuffer(buffer, dtype=tensor.read_as))


class _Files:
    """Opened when they are first read; threads share them."""

    def __init__(self, folder: CheckpointFolder) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._opened: dict[str, Any] = {}

    def read(self, name: str, offset: int, buffer: memoryview) -> None:
        """Fills `buffer`.

        Raises:
            UnreadableError: the file has become shorter, or is gone.
        """
        with self._lock:
            file = self._opened.get(name) or self._opened.setdefault(name, self._folder.open(name))
        done = 0
        while done < len(buffer):
            try:
                count = os.preadv(file.fileno(), [buffer[done:]], offset + done)
            except OSError as error:
                raise UnreadableError(f"'{name}' cannot be read: {error.strerror}", "missing") from error
            if count == 0:
                raise UnreadableError(f"'{name}' became shorter while it was read", "truncated")
            done += count

    def close(self) -> None:
        for file in self._opened.values():
            file.close()
