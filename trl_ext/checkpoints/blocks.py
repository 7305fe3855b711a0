"""The numbers of stored tensors, a megabyte at a time, in several threads: each reads and computes in turn.

Files are read and not mapped into memory: a mapped file that another process cuts off ends this one with SIGBUS, and
its pages count as memory of the process.
"""

import math
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

_BLOCK = 1 << 21  # bytes; smaller ones stay in the cache, but threads then wait for each other's turn in Python
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_BLOCKS = 4  # in a row by one thread: handing work over costs some 50 microseconds


class Joinable(Protocol):
    def joined(self, other: Self) -> Self:
        """Of this block and the one after it."""
        ...


Result = TypeVar("Result", bound=Joinable)


class Block:
    """Memory for consecutive elements of a tensor, seen in several ways; each thread reads one block after the other
    into the same, and whoever works with it may overwrite it.

    Attributes:
        start: index of the first element, in the order in which they lie.
        values: shape `(elements,)`, of the tensor's dtype, or bytes where torch has none such.
        integers, array: their bits as integers of the same width, for torch and for numpy, which does not know every
            dtype.
        channels: `values`, shape `(1, 64 or a divisor of it, elements of a channel)`.
        other: the same elements of the tensor it is compared with; `None` without one.
    """

    start: int = 0
    other: "Block | None" = None

    def __init__(self, dtype: torch.dtype, elements: int) -> None:
        self.buffer = memoryview(bytearray(elements * dtype.itemsize))
        self.values = torch.frombuffer(self.buffer, dtype=dtype)
        self.integers = self.values.view(_INTEGERS[dtype.itemsize])
        self.array = self.integers.numpy()
        self.channels = self.values.view(1, math.gcd(elements, 64), -1)

    def numbers(self) -> torch.Tensor:
        """`values`; a complex number as two."""
        return torch.view_as_real(self.values).flatten() if self.values.is_complex() else self.values


class _Blocks(threading.local):
    """Of this thread, by use, dtype and elements: new memory for every block would cost more than what is computed in
    it. The last blocks of tensors, which have any length, are not kept."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, torch.dtype, int], Block] = {}

    def get(self, use: str, dtype: torch.dtype, elements: int, keep: bool) -> Block:
        found = self._kept.get((use, dtype, elements))
        if found is None:
            found = Block(dtype, elements)
            if keep:
                self._kept[use, dtype, elements] = found
        return found


_OWN = _Blocks()


class Span:
    """Blocks in a row, which one thread works through.

    Attributes:
        tensor: of which.
        other: what it is compared with.
    """

    def __init__(
        self, files: "_Files", tensor: StoredTensor, piece: Piece, start: int, block: int, other: "Other | None"
    ) -> None:
        self.tensor = tensor
        self._files, self._piece, self._start, self._block, self.other = files, piece, start, block, other

    def blocks(self) -> Iterator[Block]:
        """Reads them. May be called again.

        Raises:
            UnreadableError: a file has become shorter, or is gone.
        """
        piece, dtype = self._piece, self.tensor.read_as
        file = self._files.open(None, piece.file)
        for at in range(0, piece.size, self._block):
            size = min(self._block, piece.size - at)
            block = _OWN.get("own", dtype, size // dtype.itemsize, size == self._block)
            read_into(block.buffer, file, piece.offset + at, piece.file)
            block.start = self._start + at // dtype.itemsize
            block.other = None if self.other is None else self._read_other(self.other, block, size == self._block)
            yield block

    def _read_other(self, other: "Other", block: Block, keep: bool) -> Block:
        """Its elements, which may lie in several pieces."""
        dtype = other.tensor.read_as
        beside = _OWN.get("other", dtype, len(block.values), keep)
        done, skip = 0, block.start * dtype.itemsize
        for piece in other.tensor.pieces:
            size = min(piece.size - skip, len(beside.buffer) - done)
            if size > 0:
                file = self._files.open(other.folder, piece.file)
                read_into(beside.buffer[done : done + size], file, piece.offset + skip, piece.file)
                done += size
            skip = max(skip - piece.size, 0)
        return beside


Work = Callable[[Span], Result]


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
        # of the calling thread, which nothing changes, and of threads yet to come, which the workers' would be
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        pool = stack.enter_context(ThreadPoolExecutor(workers, "checkpoint", torch.set_num_threads, (1,)))
        stack.callback(files.close)
        stack.callback(lambda: pool.shutdown(cancel_futures=True))  # where nobody reads to the end
        gathered = _Gathered()
        for tensor in tensors:
            for span in _spans_of(files, tensor, others.get(tensor.name)):
                waiting.append((tensor, pool.submit(work, span)))
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


def _spans_of(files: "_Files", tensor: StoredTensor, other: Other | None) -> Iterator[Span]:
    width = tensor.read_as.itemsize
    # two tensors, and what they are compared in, share the cache
    block = _BLOCK if other is None else _BLOCK // 2 * width // max(width, other.tensor.read_as.itemsize)
    start = 0
    for piece in tensor.pieces:
        for at in range(0, piece.size, _BLOCKS * block):
            size = min(_BLOCKS * block, piece.size - at)
            yield Span(files, tensor, Piece(piece.file, piece.offset + at, size), start, block, other)
            start += size // width


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
