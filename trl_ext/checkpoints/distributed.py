"""Where the tensors of a `torch.distributed.checkpoint` folder lie: what FSDP2 and Accelerate save, a file a rank.

Its `.metadata` is a pickle, which is taken apart and not run; each piece of a tensor is a file of `torch.save` inside
of a `.distcp` file.
"""

from math import prod
from typing import Any, NamedTuple

from trl_ext.checkpoints.errors import UnreadableError
from trl_ext.checkpoints.folder import CheckpointFolder, inside
from trl_ext.checkpoints.pickled import MOST, Name, Record, key_of, read_pickle
from trl_ext.checkpoints.stored import Piece, StoredTensor
from trl_ext.checkpoints.torch_file import read_torch_file

METADATA = ".metadata"


class _Part(NamedTuple):
    offsets: tuple[int, ...]
    file: str
    start: int
    size: int


def read_distributed(
    folder: CheckpointFolder, under: str, imports: dict[str, list[Name]]
) -> tuple[list[StoredTensor], list[tuple[str, UnreadableError]]]:
    """The tensors, and by name those of which a piece cannot be read.

    Args:
        under: the folder that holds `.metadata`, from the checkpoint's.
        imports: gets what loading its files would import, by file: `.metadata` and what is no tensor are pickles.
    Raises:
        UnreadableError: the metadata cannot be read.
    """
    name = inside(under, METADATA)
    with folder.open(name) as file:
        content = file.read(MOST)
    if not content:
        raise UnreadableError(f"'{name}' is empty", "empty")
    metadata = read_pickle(content, f"'{name}'", imports.setdefault(name, []))
    state = _state(metadata)
    shapes = {str(key_of(key)): _sizes(value) for key, value in _pairs(state.get("state_dict_metadata"))}
    parts: dict[str, list[_Part]] = {}
    others: list[tuple[str, _Part]] = []
    for key, value in _pairs(state.get("storage_data")):
        index, place = _state(key_of(key)), _state(value)
        tensor = str(index.get("fqn"))
        file = inside(under, str(place["relative_path"]))
        part = _Part(_size(index.get("offset")), file, int(place["offset"]), int(place["length"]))
        if shapes.get(tensor) is None:
            others.append((tensor, part))  # no tensor but bytes: a step, the state of a scheduler
        else:
            parts.setdefault(tensor, []).append(part)
    if not shapes:
        raise UnreadableError(f"'{name}' names no tensor: it is none of torch.distributed.checkpoint", "format")
    found, lost = [], []
    for tensor, shape in shapes.items():
        if shape is None:
            continue
        try:
            found.append(_tensor(folder, tensor, shape, sorted(parts.get(tensor, [])), imports))
        except UnreadableError as error:
            lost.append((tensor, error))
    for other, part in others:
        try:
            imports.setdefault(part.file, []).extend(read_torch_file(folder, part.file, part.start, part.size).imports)
        except UnreadableError as error:
            lost.append((other, error))
    return found, lost


def _tensor(
    folder: CheckpointFolder, name: str, shape: tuple[int, ...], parts: list[_Part], imports: dict[str, list[Name]]
) -> StoredTensor:
    pieces: list[Piece] = []
    dtype, ordered, rows = "", True, 0
    for part in parts:
        content = read_torch_file(folder, part.file, part.start, part.size)
        imports.setdefault(part.file, []).extend(content.imports)
        if len(content.tensors) != 1:
            raise UnreadableError(f"'{part.file}' has no tensor where '{name}' should lie", "format")
        (piece,) = content.tensors
        dtype = piece.dtype
        # in row-major order only what is cut along the first dimension, each piece after the one before
        ordered &= piece.ordered and piece.shape[1:] == shape[1:] and (part.offsets or (0,))[0] == rows
        rows += piece.shape[0] if piece.shape else 1
        pieces += piece.pieces
    stored = StoredTensor(name, dtype, shape, tuple(pieces), ordered)
    width = stored.torch_dtype.itemsize if stored.torch_dtype is not None else None
    if width is not None and stored.size != prod(shape) * width:
        raise UnreadableError(
            f"'{name}' has {stored.size:,} of {prod(shape) * width:,} bytes: a rank's file is missing", "missing"
        )
    return stored


def _state(record: Any) -> dict[str, Any]:
    """What an object of a dataclass holds."""
    state = record.state if isinstance(record, Record) else record
    if isinstance(record, Record) and isinstance(record.items, dict):
        state = record.items
    if isinstance(state, tuple) and len(state) == 2:  # (dict, slots)
        state = {**(state[0] or {}), **(state[1] or {})}
    if not isinstance(state, dict):
        raise UnreadableError("the metadata of a distributed checkpoint has another form than torch writes", "format")
    return state


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def _sizes(record: Any) -> tuple[int, ...] | None:
    """The shape of a tensor; `None` for what is no tensor."""
    if not isinstance(record, Record) or not str(record.made_by).endswith("TensorStorageMetadata"):
        return None
    return _size(_state(record).get("size"))


def _size(value: Any) -> tuple[int, ...]:
    """A `torch.Size`."""
    if isinstance(value, Record) and value.arguments:
        (value,) = value.arguments
    return tuple(map(int, value)) if isinstance(value, list | tuple) else ()
