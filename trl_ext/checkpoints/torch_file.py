"""Where the tensors of a file of `torch.save` lie, without running its pickle.

`torch.load(weights_only=True)` would refuse a file that holds anything but tensors, as files of optimizers and of
DeepSpeed do. Here nothing is made of the pickle, so that any such file can be looked at: `pickled.read_pickle`.
"""

import os
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from trl_ext.checkpoints.errors import UnreadableError
from trl_ext.checkpoints.folder import CheckpointFolder
from trl_ext.checkpoints.imports import is_of_tensors
from trl_ext.checkpoints.pickled import Name, Record, key_of, read_next_pickle, read_pickle
from trl_ext.checkpoints.stored import DTYPES, NAMES, Piece, StoredTensor

_STORAGES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8",
    "BoolStorage": "BOOL", "ComplexFloatStorage": "C64",
}  # fmt: skip
_LEGACY = (0x1950A86A20F9469CFC6C, 1001)  # the first two numbers of a file of torch before 1.6
_DEEPEST = 64
_MOST_VALUES = 5_000_000


@dataclass(frozen=True)
class _Storage:
    """Bytes in the file."""

    offset: int
    size: int


@dataclass(frozen=True)
class TorchFile:
    """What a file of `torch.save` holds.

    Attributes:
        tensors: named by the way to them, `model.layers.0.weight`.
        imports: what loading it would import besides torch's own means, which may be anything.
        left_out: tensors that are neither contiguous nor a permutation, by name.
    """

    tensors: list[StoredTensor]
    imports: list[Name]
    left_out: list[str]


def read_torch_file(folder: CheckpointFolder, name: str, start: int = 0, size: int | None = None) -> TorchFile:
    """One file, or `size` bytes of it from `start` on.

    Raises:
        UnreadableError: no whole file of `torch.save`, or one that would write outside if it were unpacked.
    """
    with folder.open(name) as file:
        whole = os.fstat(file.fileno()).st_size
        if whole == 0:
            raise UnreadableError(f"'{name}' is empty", "empty")
        size = whole - start if size is None else size
        if start < 0 or size < 4 or start + size > whole:
            raise UnreadableError(
                f"'{name}' is cut off: {start + size:,} bytes are asked for, it has {whole:,}", "truncated"
            )
        window = _Window(file, start, size)
        names: list[Name] = []
        beginning = window.read(4)
        window.seek(0)
        if beginning.startswith(b"PK"):
            pickle, storages = _zip(window, name, start)
        elif beginning.startswith(b"\x80"):
            pickle, storages = _legacy(window, name, start, names)
        else:
            raise UnreadableError(f"'{name}' is cut off or no file of torch.save", "format")
        content = read_pickle(pickle, f"'{name}'", names)
        foreign, tensors, left_out = _content(content, names, name, storages)
    return TorchFile(tensors, foreign, left_out)


def _content(
    content: Any, names: list[Name], name: str, storages: dict[str, _Storage]
) -> tuple[list[Name], list[StoredTensor], list[str]]:
    try:
        return _found(content, names, name, storages)
    except UnreadableError:
        raise
    except (TypeError, ValueError, AttributeError, KeyError, IndexError, OverflowError, RecursionError) as error:
        raise UnreadableError(f"'{name}' is damaged: {type(error).__name__} in its tensors", "format") from error


def _found(
    content: Any, names: list[Name], name: str, storages: dict[str, _Storage]
) -> tuple[list[Name], list[StoredTensor], list[str]]:
    foreign = [found for found in dict.fromkeys(names) if not is_of_tensors(found)]
    tensors, left_out = [], []
    for path, record in _tensors(content, "", 0, _Budget(name)):
        found = _stored(path, record, name, storages)
        if found is None:
            left_out.append(path)
        else:
            tensors.append(found)
    return foreign, tensors, left_out


class _Window:
    """A part of a file, as a file."""

    def __init__(self, file: Any, start: int, size: int) -> None:
        self._file, self._start, self.size, self._at = file, start, size, 0

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = {0: 0, 1: self._at, 2: self.size}[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, count: int = -1) -> bytes:
        left = max(self.size - self._at, 0)
        count = left if count is None or count < 0 else min(count, left)
        content = os.pread(self._file.fileno(), count, self._start + self._at)
        self._at += len(content)
        return content

    def readline(self) -> bytes:
        at = self._at
        line, end, _ = self.read(1 << 12).partition(b"\n")
        self._at = at + len(line) + len(end)
        return line + end


def _zip(window: _Window, name: str, start: int) -> tuple[bytes, dict[str, _Storage]]:
    try:
        with zipfile.ZipFile(window) as archive:  # type: ignore[arg-type]
            entries = archive.infolist()
            for entry in entries:
                if entry.filename.startswith("/") or ".." in entry.filename.split("/"):
                    raise UnreadableError(f"'{name}' holds '{entry.filename}', which leads out of it", "unsafe")
                if entry.compress_type != zipfile.ZIP_STORED:
                    raise UnreadableError(f"'{name}' is compressed, as torch.save never does", "format")
            if len({entry.filename.lower() for entry in entries}) < len(entries):
                raise UnreadableError(f"'{name}' holds one name twice, of which torch may read the other", "unsafe")
            if _directory(window) != archive.start_dir:
                raise UnreadableError(f"'{name}' has two directories, of which torch may read the other", "unsafe")
            pickles = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
            if len(pickles) != 1:
                raise UnreadableError(f"'{name}' is a zip, but none of torch.save", "format")
            pickle = archive.read(pickles[0])
            orders = [archive.read(entry) for entry in entries if entry.filename.endswith("/byteorder")]
            if any(order.strip() != b"little" for order in orders):
                raise UnreadableError(f"'{name}' was written on a big-endian machine, which is not read", "format")
            storages = {}
            for entry in entries:
                _, slash, key = entry.filename.rpartition("/data/")
                if slash:
                    storages[key] = _Storage(start + _data_offset(window, entry), entry.file_size)
    except UnreadableError:
        raise
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error, EOFError) as error:
        cause = " ".join(str(error).split()) or type(error).__name__
        raise UnreadableError(f"'{name}' is cut off or damaged: {cause}", "truncated") from error
    return pickle, storages


def _directory(window: _Window) -> int:
    """Where the file's own last record says that its directory begins: there torch looks for it, where zipfile looks in
    front of that record, whatever it says. torch writes no comment behind."""
    window.seek(window.size - 22)
    record = window.read(22)
    if record[:4] != b"PK\x05\x06":
        raise UnreadableError("a zip with something behind its end, which torch.save never writes", "unsafe")
    (offset,) = struct.unpack("<I", record[16:20])
    if offset == 0xFFFFFFFF or record[10:12] == b"\xff\xff" or record[12:16] == b"\xff\xff\xff\xff":
        window.seek(window.size - 42)
        locator = window.read(20)
        window.seek(struct.unpack("<Q", locator[8:16])[0])
        (offset,) = struct.unpack("<Q", window.read(56)[48:56])
    return offset


def _data_offset(window: _Window, entry: zipfile.ZipInfo) -> int:
    window.seek(entry.header_offset + 26)
    name_length, extra_length = struct.unpack("<HH", window.read(4))
    return entry.header_offset + 30 + name_length + extra_length


def _legacy(window: _Window, name: str, start: int, names: list[Name]) -> tuple[bytes, dict[str, _Storage]]:
    """Pickles one after the other (magic number, version, machine, content, keys of storages), then each storage with
    its length before it."""
    what = f"'{name}'"
    for number in _LEGACY:
        if read_next_pickle(window, what, names) != number:
            raise UnreadableError(f"{what} is a pickle, but no file of torch.save: it is not read", "unsafe")
    read_next_pickle(window, what, names)
    begin = window.tell()
    content = read_next_pickle(window, what)
    end = window.tell()
    keys = read_next_pickle(window, what, names)
    widths = {key: _width(dtype) for key, dtype in _storages_in(content, 0, _Budget(name))}
    storages = {}
    for key in keys:
        length = window.read(8)
        size = struct.unpack("<q", length)[0] * widths.get(str(key), 1) if len(length) == 8 else -1
        if size < 0 or window.tell() + size > window.size:
            raise UnreadableError(f"{what} is cut off", "truncated")
        storages[str(key)] = _Storage(start + window.tell(), size)
        window.seek(size, 1)
    window.seek(begin)
    return window.read(end - begin), storages


def _width(dtype: str) -> int:
    return DTYPES.get(dtype, torch.uint8).itemsize


def _storages_in(value: Any, depth: int, budget: "_Budget") -> Iterator[tuple[str, str]]:
    budget.spend()
    if depth > _DEEPEST:
        return
    storage = _storage_of(value)
    if storage is not None:
        yield storage
        return
    parts: list[Any] = []
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, list | tuple):
        parts = list(value)
    elif isinstance(value, Record):
        parts = [value.arguments, value.items, value.state]
    for part in parts:
        yield from _storages_in(part, depth + 1, budget)


def _storage_of(value: Any) -> tuple[str, str] | None:
    """Key and dtype of what the pickle has in place of a storage."""
    if not (isinstance(value, Record) and value.made_by == Name("torch", "persistent")):
        return None
    (persistent,) = value.arguments
    if not (isinstance(persistent, tuple) and len(persistent) >= 5 and persistent[0] == "storage"):
        return None
    kind = persistent[1].name if isinstance(persistent[1], Name) else ""
    return str(persistent[2]), _STORAGES.get(kind, "")


class _Budget:
    """Of what is looked at: a list that holds itself twice has no end."""

    def __init__(self, name: str) -> None:
        self._name, self._left = name, _MOST_VALUES

    def spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise UnreadableError(f"'{self._name}' holds more than {_MOST_VALUES:,} values", "unsafe")


def _tensors(value: Any, path: str, depth: int, budget: _Budget) -> Iterator[tuple[str, Record]]:
    """The records of tensors with the way to them."""
    budget.spend()
    if depth > _DEEPEST:
        return
    if isinstance(value, dict | list | tuple):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _tensors(one, f"{path}.{key_of(key)}" if path else str(key_of(key)), depth + 1, budget)
    elif isinstance(value, Record):
        made_by = str(value.made_by)
        if made_by in ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3"):
            yield path, value
        elif made_by.startswith("torch._utils._rebuild_parameter"):
            yield from _tensors(value.arguments[0] if path else value.arguments[:1], path, depth + 1, budget)
        else:  # an OrderedDict, a DTensor, an object of somebody's own
            yield from _tensors(list(value.arguments), path, depth + 1, budget) if value.arguments else ()
            yield from _tensors(value.items, path, depth + 1, budget)
            yield from _tensors(value.state, path, depth + 1, budget)


def _stored(path: str, record: Record, file: str, storages: dict[str, _Storage]) -> StoredTensor | None:
    """`None` for what is no plain part of a storage."""
    storage, offset, shape, stride, *others = record.arguments
    found = _storage_of(storage)
    if found is None or found[0] not in storages:
        raise UnreadableError(f"'{file}' lacks the bytes of '{path}'", "truncated")
    key, dtype = found
    if str(record.made_by).endswith("v3") and len(others) > 2 and isinstance(others[2], Name):
        known = getattr(torch, others[2].name, None)
        dtype = NAMES.get(known, others[2].name) if isinstance(known, torch.dtype) else others[2].name
    width = _width(dtype)
    shape, stride = tuple(map(int, shape)), tuple(map(int, stride))
    elements = prod(shape)
    if int(offset) < 0 or min((*shape, *stride), default=0) < 0 or len(shape) != len(stride):
        raise UnreadableError(f"'{file}' places '{path}' outside of its bytes", "unsafe")
    place = Piece(file, storages[key].offset + int(offset) * width, elements * width)
    if place.offset + place.size > storages[key].offset + storages[key].size:
        raise UnreadableError(f"'{file}' has fewer bytes than '{path}' needs", "truncated")
    ordered = elements == 0 or stride == _contiguous(shape)
    if not ordered and not _is_permuted(shape, stride):
        return None
    return StoredTensor(path, dtype, shape, (place,), ordered)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def _is_permuted(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether every element of the storage's part belongs to it once. A dimension of length 1 may have any stride."""
    expected = 1
    for step, length in sorted((step, length) for step, length in zip(stride, shape, strict=True) if length != 1):
        if step != expected:
            return False
        expected *= length
    return True
