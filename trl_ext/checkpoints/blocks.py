"""The numbers of stored tensors, a few megabytes at a time, in several threads: each reads and computes in turn.

Files are read and not mapped into memory: a mapped file that another process cuts off ends this one with SIGBUS, and
its pages count as memory of the process.
"""

import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import torch

from trl_ext.checkpoints.errors import UnreadableError
from trl_ext.checkpoints.folder import CheckpointFolder
from trl_ext.checkpoints.stored import Piece, StoredTensor

_BLOCK = 8 << 20  # bytes: coming back to Python after each costs some 50 microseconds
_JOB = 16 << 20  # bytes that a thread is handed at once, which costs more than that
_MOST_PARTS = 16  # of small tensors in it
_LARGE_PAGE = 2 << 20  # bytes
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Joinable(Protocol):
    def joined(self, other: Self) -> Self:
        """Of this block and the one after it."""
        ...


Result = TypeVar("Result", bound=Joinable)


def joined_where_both(one: Result | None, other: Result | None) -> Result | None:
    """Of two parts; the one there is where the other has nothing."""
    if one is None or other is None:
        return one if other is None else other
    return one.joined(other)


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

    def __init__(self, memory: memoryview, dtype: torch.dtype, elements: int) -> None:
        self.buffer = memory[: elements * dtype.itemsize]
        self.values = torch.frombuffer(self.buffer, dtype=dtype)
        self.integers = self.values.view(_INTEGERS[dtype.itemsize])
        self.array = self.integers.numpy()

    def numbers(self) -> torch.Tensor:
        """`values`; a complex number as two."""
        return torch.view_as_real(self.values).flatten() if self.values.is_complex() else self.values


class _Memory(threading.local):
    """Of this thread: new memory for every block would cost more than what is computed in it."""

    def __init__(self) -> None:
        self._of: dict[str, memoryview] = {}

    def block(self, use: str, dtype: torch.dtype, elements: int) -> Block:
        """In the memory for this use, whose last block must not be needed any more."""
        if use not in self._of:
            self._of[use] = _in_large_pages(_BLOCK)
        return Block(self._of[use], dtype, elements)


def _in_large_pages(size: int) -> memoryview:
    """Measured: a tenth less time for copying into it and computing with it."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return memoryview(bytearray(size))
    memory = mmap.mmap(-1, size + _LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without
        memory.madvise(mmap.MADV_HUGEPAGE)
    start = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % _LARGE_PAGE
    return memoryview(memory)[start : start + size]


_MEMORY = _Memory()


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

    def joined(self, other: "Done[Result]") -> "Done[Result]":
        return Done(self.tensor, joined_where_both(self.result, other.result), self.error or other.error)


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
    waiting: deque[Future[list[Done[Result]]]] = deque()
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(workers, "checkpoint"))
        _on_one_core_each(pool, workers)
        stack.callback(files.close)
        stack.callback(lambda: pool.shutdown(cancel_futures=True))  # where nobody reads to the end
        started: Done[Result] | None = None  # a tensor of which the last job has done a part
        for job in _jobs(tensors, others):
            waiting.append(_submitted(pool, _several, files, work, job))
            if len(waiting) > 2 * workers:
                *done, started = _continued(started, waiting.popleft().result())
                yield from done
        while waiting:
            *done, started = _continued(started, waiting.popleft().result())
            yield from done
        if started is not None:
            yield started


def _on_one_core_each(pool: ThreadPoolExecutor, workers: int) -> None:
    """`torch.set_num_threads` is of the thread that calls it, and of all that are started later: so it is given back as
    soon as the workers have it."""
    before, arrived = torch.get_num_threads(), threading.Barrier(workers + 1)

    def arrive() -> None:
        torch.get_num_threads()  # the first call of a thread, whichever it is, gives it the number of the process
        torch.set_num_threads(1)
        arrived.wait()

    try:
        for _ in range(workers):
            pool.submit(arrive)
        arrived.wait()
        torch.set_num_threads(before)
    except RuntimeError:  # `_submitted`
        arrived.abort()


def _submitted(pool: ThreadPoolExecutor, call: Callable[..., Any], *arguments: Any) -> Future:
    """Done here where the interpreter is ending, and no thread takes work any more: after an error in a training, its
    last checkpoint is still looked at."""
    try:
        return pool.submit(call, *arguments)
    except RuntimeError:
        done: Future = Future()
        done.set_result(call(*arguments))
        return done


def _continued(started: Done[Result] | None, done: list[Done[Result]]) -> list[Done[Result]]:
    if started is None:
        return done
    if started.tensor is done[0].tensor:
        return [started.joined(done[0]), *done[1:]]
    return [started, *done]


class _Part(NamedTuple):
    """A block to be read.

    Attributes:
        start: index of its first element.
        piece: where it lies; `None` of a tensor without elements.
    """

    tensor: StoredTensor
    other: Other | None
    start: int
    piece: Piece | None


def _jobs(tensors: Iterable[StoredTensor], others: Mapping[str, Other]) -> Iterator[list[_Part]]:
    """What a thread is handed at once: some megabytes of one tensor, or of several."""
    job: list[_Part] = []
    size = 0
    for tensor in tensors:
        for part in _parts_of(tensor, others.get(tensor.name)):
            job.append(part)
            size += part.piece.size if part.piece else 0
            if size >= _JOB or len(job) >= _MOST_PARTS:
                yield job
                job, size = [], 0
    if job:
        yield job


def _parts_of(tensor: StoredTensor, other: Other | None) -> Iterator[_Part]:
    if not any(piece.size for piece in tensor.pieces):
        yield _Part(tensor, other, 0, None)
    width = tensor.read_as.itemsize
    most = _BLOCK if other is None else _BLOCK * width // max(width, other.tensor.read_as.itemsize)
    start = 0
    for piece in tensor.pieces:
        for at in range(0, piece.size, most):
            size = min(most, piece.size - at)
            yield _Part(tensor, other, start, Piece(piece.file, piece.offset + at, size))
            start += size // width


def _several(files: "_Files", work: Work[Result], job: list[_Part]) -> list[Done[Result]]:
    """Of each tensor what has come of its blocks."""
    found: list[Done[Result]] = []
    for tensor, other, start, piece in job:
        result, error = None, None
        if piece is not None:
            try:
                result = _one(files, work, tensor, other, start, piece)
            except UnreadableError as failure:
                error = failure
        done = Done(tensor, result, error)
        if found and found[-1].tensor is tensor:
            found[-1] = found[-1].joined(done)
        else:
            found.append(done)
    return found


def _one(
    files: "_Files", work: Work[Result], tensor: StoredTensor, other: Other | None, start: int, piece: Piece
) -> Result:
    elements = piece.size // tensor.read_as.itemsize
    block = _MEMORY.block("own", tensor.read_as, elements)
    block.tensor, block.start = tensor, start
    block.other = None if other is None else _MEMORY.block("other", other.tensor.read_as, elements)

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
