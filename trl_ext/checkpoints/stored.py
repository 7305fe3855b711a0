"""A tensor as it lies in files."""

from dataclasses import dataclass
from math import prod

import torch

# As safetensors names them. What is missing here has no type in torch and is not computed with.
DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64, "BOOL": torch.bool,
    "C64": torch.complex64,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Piece:
    """Elements in order in one file.

    Attributes:
        file: from the checkpoint's folder.
        offset: bytes from the start of the file.
        size: bytes.
    """

    file: str
    offset: int
    size: int


@dataclass(frozen=True)
class StoredTensor:
    """One tensor.

    Attributes:
        name: as the file has it.
        dtype: as safetensors names it (`BF16`), or as the file does where safetensors has no name for it.
        shape: of the whole.
        pieces: where it lies, in row-major order where `ordered`.
        ordered: whether the elements come in row-major order; not so of what is sharded along another dimension than
            the first, or stored transposed.
        form: how weights of a quantised model are packed (`nf4`, `int8`, ...); `None` for numbers as they are.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    ordered: bool = True
    form: str | None = None

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(piece.size for piece in self.pieces)

    @property
    def torch_dtype(self) -> torch.dtype | None:
        return DTYPES.get(self.dtype)

    @property
    def read_as(self) -> torch.dtype:
        """What its bytes are read as: themselves where torch has no such type."""
        return DTYPES.get(self.dtype, torch.uint8)

    @property
    def rows_and_columns(self) -> tuple[int, int] | None:
        """A row is one index of the first dimension. `None` for fewer than two dimensions, no elements, or elements in
        another order."""
        if len(self.shape) < 2 or not self.ordered or not self.elements:
            return None
        return self.shape[0], self.elements // self.shape[0]
