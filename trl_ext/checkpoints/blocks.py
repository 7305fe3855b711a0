"""The numbers of stored tensors, a few megabytes at a time, in several threads: each reads and computes in turn.

Files are read and not mapped into memory: a mapped file that another process cuts off ends this one with SIGBUS, and
its pages count as memory of the process.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import torch

from trl_ext.checkpoints.errors import UnreadableError
from trl_ext.checkpoints.folder import CheckpointFolder
from trl_ext.checkpoints.stored import Piece, StoredTensor

_BLOCK = 8 << 20  # bytes: handing work to a thread costs some 50 microseconds
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Joinable(Protocol):
    def joined(self, other: Self) -> Self:
        """Of this block and the one after it."""
        ...


Result = TypeVar("Result", bound=Joinable)


class Block:
    """Memory for consecutive elements of a tensor, seen in several ways; each thread reads one block after the other
    into the same, and whoever works with it may overwrite it.

    Attributes:
        tensor: of which.
        start: index of the first element, in the order in which they lie.
        values: shape `(elements,)`, of the tensor's dtype, or bytes where torch has none such.
        integers, array: their bits as integers of the same width, for torch and for numpy, which does not know every
            dtype.
        other: the same elements of the tensor it is compared with; `None` without one.
        read: reads all of it again.
    """

    tensor: StoredTensor
    start: int = 0
    other: "Block | None" = None
    read: Callable[[], None]

    def __init__(self, dtype: torch.dtype, elements: int) -> None:
        self.buffer = memoryview(bytearray(elements * dtype.itemsize))
        self.values = torch.frombuffer(self.buffer, dtype=dtype)
        self.integers = self.values.view(_INTEGERS[dtype.itemsize])
        self.array = self.integers.numpy()

    def numbers(self) -> torch.Tensor:
        """`values`; a complex number as two."""
        return torch.view_as_real(self.values).flatten() if self.values.is_complex() else self.values


class _Blocks(threading.local):
    """Of this thread, by use, dtype and elements: new memory for every block would cost more than what is computed in
    it. The last blocks of tensors, which have any length, are not kept."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, torch.dtype, int], Block] = {}

    def get(self, use: str, dtype: torch.dtype, elements: int) -> Block:
        found = self._kept.get((use, dtype, elements))
        if found is None:
            found = Block(dtype, elements)
            if elements * dtype.itemsize == _BLOCK:
                self._kept[use, dtype, elements] = found
        return found


_OWN = _Blocks()


Work = Callable[[Block], Result]


class Other(NamedTuple):
    """A tensor that one of the same shape and order is compared with."""

    folder: CheckpointFolder
    tensor: StoredTensor


class Done(NamedTuple, Generic[Result]):
    """One tensor.

    Attributes:
        result: of its blocks, joined in order; `None` where there are none.
        error: what kept it, or the other one, from being read to the end.
    """

    tensor: StoredTensor
    result: Result | None
    error: UnreadableError | None


def map_blocks(
    folder: CheckpointFolder,
    tensors: Iterable[StoredTensor],
    work: Work[Result],
    workers: int = 1,
    others: Mapping[str, Other] | None = None,
) -> Iterator[Done[Result]]:
    """Each tensor with what `work` makes of its blocks, in the order of `tensors`.

    Memory is bounded by a block or two for each worker, and by what `work` needs and returns.

    Args:
        workers: threads, each of which computes on one core.
        others: what tensors are compared with, by name.
    """
    others = others or {}
    files = _Files(folder)
    waiting: deque[tuple[StoredTensor, Future | None]] = deque()  # `None` after the last of a tensor
    with ExitStack() as stack:
        # The calling thread, too, computes on one core meanwhile: torch's own threads wait for it by spinning
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        pool = stack.enter_context(ThreadPoolExecutor(workers, "checkpoint", torch.set_num_threads, (1,)))
        stack.callback(files.close)
        stack.callback(lambda: pool.shutdown(cancel_futures=True))  # where nobody reads to the end
        gathered = _Gathered()
        for tensor in tensors:
            other = others.get(tensor.name)
            for start, piece in _pieces_of(tensor, other):
                waiting.append((tensor, pool.submit(_one, files, work, tensor, other, start, piece)))
            waiting.append((tensor, None))
            while len(waiting) > 4 * workers:
                yield from gathered.take(*waiting.popleft())
        while waiting:
            yield from gathered.take(*waiting.popleft())


class _Gathered:
    """What has come of the tensor that is being read."""

    def __init__(self) -> None:
        self._result: Any = None
        self._error: UnreadableError | None = None

    def take(self, tensor: StoredTensor, future: Future | None) -> Iterator[Done]:
        if future is None:
            yield Done(tensor, self._result, self._error)
            self._result = self._error = None
            return
        try:
            result = future.result()
        except UnreadableError as failure:
            self._error = self._error or failure
        else:
            self._result = result if self._result is None else self._result.joined(result)


def _pieces_of(tensor: StoredTensor, other: Other | None) -> Iterator[tuple[int, Piece]]:
    """The first element of each block, and where it lies."""
    width = tensor.read_as.itemsize
    most = _BLOCK if other is None else _BLOCK * width // max(width, other.tensor.read_as.itemsize)
    start = 0
    for piece in tensor.pieces:
        for at in range(0, piece.size, most):
            size = min(most, piece.size - at)
            yield start, Piece(piece.file, piece.offset + at, size)
            start += size // width


def _one(
    files: "_Files", work: Work[Result], tensor: StoredTensor, other: Other | None, start: int, piece: Piece
) -> Result:
    elements = piece.size // tensor.read_as.itemsize
    block = _OWN.get("own", tensor.read_as, elements)
    block.tensor, block.start = tensor, start
    block.other = None if other is None else _OWN.get("other", other.tensor.read_as, elements)

    def read() -> None:
        read_into(block.buffer, files.open(None, piece.file), piece.offset, piece.file)
        if other is not None and block.other is not None:
            _read_other(files, other, start, block.other.buffer)

    block.read = read
    read()
    return work(block)


def _read_other(files: "_Files", other: Other, start: int, buffer: memoryview) -> None:
    """Its elements from `start` on, which may lie in several pieces."""
    done, skip = 0, start * other.tensor.read_as.itemsize
    for piece in other.tensor.pieces:
        size = min(piece.size - skip, len(buffer) - done)
        if size > 0:
            file = files.open(other.folder, piece.file)
            read_into(buffer[done : done + size], file, piece.offset + skip, piece.file)
            done += size
        skip = max(skip - piece.size, 0)


class _Files:
    """Opened when they are first read; threads share them."""

    def __init__(self, folder: CheckpointFolder) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._opened: dict[tuple[int, str], Any] = {}

    def open(self, folder: CheckpointFolder | None, name: str) -> Any:
        """
        Args:
            folder: another than the one of the checkpoint that is read.
        Raises:
            UnreadableError: it is gone.
        """
        with self._lock:
            key = (id(folder), name)
            return self._opened.get(key) or self._opened.setdefault(key, (folder or self._folder).open(name))

    def close(self) -> None:
        for file in self._opened.values():
            file.close()


def read_into(buffer: memoryview, file: Any, offset: int, name: str) -> None:
    """Fills `buffer`.

    Raises:
        UnreadableError: the file has become shorter.
    """
    done = 0
    while done < len(buffer):
        try:
            count = os.preadv(file.fileno(), [buffer[done:]], offset + done)
        except OSError as error:
            raise UnreadableError(f"'{name}' cannot be read: {error.strerror}", "missing") from error
        if count == 0:
            raise UnreadableError(f"'{name}' became shorter while it was read", "truncated")
        done += count
