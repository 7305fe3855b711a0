"""What a LoRA adapter adds to a weight: the product of its two matrices, looked at without multiplying them out."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import regex
import torch

from trl_ext.checkpoints.blocks import read_into
from trl_ext.checkpoints.errors import UnreadableError
from trl_ext.checkpoints.folder import CheckpointFolder
from trl_ext.checkpoints.naming import weight_name
from trl_ext.checkpoints.stored import StoredTensor

_A = re.compile(r"^(.*)\.lora_(embedding_)?A(?=\.|$)(.*)$", re.DOTALL)
_MATRIX = re.compile(r"\.lora_([AB](\.\w+)?\.weight|embedding_[AB](\.\w+)?)$")
_SECONDS = 0.05  # for one expression
_LARGEST = 256 << 20  # bytes of a matrix, as float64


@dataclass(frozen=True)
class LoraUpdate:
    """One pair of matrices.

    Attributes:
        target: the weight it is added to, as the base model calls it.
        a, b: names of the two.
        rank: their common dimension.
        effective_rank: exponential of the entropy of the product's singular values, 0 of a product of zeros (Roy and
            Vetterli 2007, https://ieeexplore.ieee.org/document/7098875).
        norm: Frobenius norm of the product with its scaling, `lora_alpha / r` unless the configuration says otherwise.
        relative: `norm` by that of the weight it is added to; `None` where that is not known.
    """

    target: str
    a: str
    b: str
    rank: int
    effective_rank: float
    norm: float
    relative: float | None = None


def lora_pairs(tensors: Sequence[StoredTensor]) -> tuple[list[tuple[StoredTensor, StoredTensor]], list[str]]:
    """The matrices that belong together, A first, and the names of those without a partner."""
    named = {tensor.name: tensor for tensor in tensors}
    pairs, partners = [], set()
    for name, tensor in named.items():
        found = _A.match(name)
        other = f"{found[1]}.lora_{found[2] or ''}B{found[3]}" if found else ""
        if other in named:
            pairs.append((tensor, named[other]))
            partners |= {name, other}
    alone = [name for name in named if _MATRIX.search(name) and name not in partners]
    return pairs, alone


def lora_update(
    folder: CheckpointFolder, a: StoredTensor, b: StoredTensor, configuration: dict[str, Any]
) -> LoraUpdate | None:
    """`None` for what is too large, packed, or not two matrices of one rank.

    Raises:
        UnreadableError: one of them cannot be read.
    """
    found = _A.match(a.name)
    assert found is not None
    if len(a.shape) < 2 or len(b.shape) < 2 or a.shape[0] != b.shape[1] or not (a.ordered and b.ordered):
        return None
    if max(a.elements, b.elements) * 8 > _LARGEST or a.form or b.form or a.torch_dtype is None or b.torch_dtype is None:
        return None
    rank = a.shape[0]
    down, up = read_tensor(folder, a).reshape(rank, -1), read_tensor(folder, b).reshape(b.shape[0], rank)
    if not (torch.isfinite(down).all() and torch.isfinite(up).all()):
        return None
    target = weight_name(found[1]) + ".weight"
    values = singular_values_of_product(up, down)
    norm = float(values.norm()) * _scaling(configuration, target, rank)
    return LoraUpdate(target, a.name, b.name, rank, effective_rank(values), norm)


def singular_values_of_product(up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Those of `up @ down`, shapes `(rows, rank)` and `(rank, columns)`, at most `rank` of them."""
    left, right = torch.linalg.qr(up, mode="r")[1], torch.linalg.qr(down.T, mode="r")[1]
    return torch.linalg.svdvals(left @ right.T)


def effective_rank(singular_values: torch.Tensor) -> float:
    total = float(singular_values.sum())
    if not total:
        return 0.0
    shares = singular_values / total
    return math.exp(float(torch.special.entr(shares).sum()))


def _scaling(configuration: dict[str, Any], target: str, rank: int) -> float:
    """As PEFT computes it."""
    module = target.removesuffix(".weight")
    alpha = _of_module(configuration.get("alpha_pattern"), module, configuration.get("lora_alpha", rank))
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not abs(alpha) < 1e300:
        return 1.0
    return alpha / (math.sqrt(rank) if configuration.get("use_rslora") else rank)


def _of_module(patterns: Any, module: str, otherwise: Any) -> Any:
    """What PEFT's `rank_pattern` and `alpha_pattern` give to a module: the keys are ends of names, or expressions."""
    for key, value in patterns.items() if isinstance(patterns, dict) else ():
        if module == key or module.endswith(f".{key}"):
            return value
        try:
            if regex.match(rf"(.*\.)?({key})$", module, timeout=_SECONDS):
                return value
        except (regex.error, TimeoutError):  # of a file that is not trusted
            continue
    return otherwise


def rank_for(configuration: dict[str, Any], target: str) -> Any:
    """What the configuration says of the rank for a weight; may be anything."""
    return _of_module(configuration.get("rank_pattern"), target.removesuffix(".weight"), configuration.get("r"))


def read_tensor(folder: CheckpointFolder, tensor: StoredTensor) -> torch.Tensor:
    """The whole of it, as float64.

    Raises:
        UnreadableError: it cannot be read.
    """
    if not tensor.size:
        raise UnreadableError(f"'{tensor.name}' has no elements", "empty")
    content = bytearray(tensor.size)
    done = 0
    for piece in tensor.pieces:
        with folder.open(piece.file) as file:
            read_into(memoryview(content)[done : done + piece.size], file, piece.offset, piece.file)
        done += piece.size
    return torch.frombuffer(content, dtype=tensor.read_as).double().reshape(tensor.shape)
