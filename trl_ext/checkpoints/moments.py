"""Statistics of a tensor from its blocks: each is looked at once, in parts that stay in the processor's cache."""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce

import torch

from trl_ext.checkpoints.stored import StoredTensor

_PART = 1 << 18  # elements
_SAMPLE = 1 << 12  # elements kept of a tensor for quantiles, whose rank is then right to 1.6% (two standard errors)
_SAFE = 1e15  # magnitude up to which squares of float32 can be added up, and by its inverse from which on
_FAR = 0.01  # of the squares: where the mean makes more of them it is taken off before they are added up

# Integers of the same width, the bits of the magnitude, and from where on these are infinite or NaN: magnitudes of
# floating point numbers are ordered as their bits are, which compare faster.
_BITS: dict[torch.dtype, tuple[torch.dtype, int, int]] = {
    torch.bfloat16: (torch.int16, 0x7FFF, 0x7F80),
    torch.float16: (torch.int16, 0x7FFF, 0x7C00),
    torch.float32: (torch.int32, 0x7FFFFFFF, 0x7F800000),
}
_EXACT = (torch.float64, torch.int64, torch.uint64, torch.int32, torch.uint32)  # what float32 does not hold


@dataclass
class TensorStatistics:
    """Of one tensor; moments and quantiles over its finite elements, as stored.

    Attributes:
        nan, infinite: elements that are.
        zeros: elements that are 0.
        mean, std, abs_max, norm: NaN where there is no finite element. `std` of the population; `norm` is Frobenius'.
        constant: whether all elements are equal (of two or more).
        dead_rows, dead_columns: all of whose elements are 0; `None` where the tensor has fewer than two dimensions or
            is not stored in order. A row is one index of the first dimension.
        sample: finite elements at even distances, for quantiles; shape `(about 4096 at most,)`.
    """

    tensor: StoredTensor
    nan: int = 0
    infinite: int = 0
    zeros: int = 0
    mean: float = math.nan
    std: float = math.nan
    abs_max: float = math.nan
    norm: float = math.nan
    constant: bool = False
    dead_rows: int | None = None
    dead_columns: int | None = None
    sample: torch.Tensor | None = None

    def quantiles(self, at: Sequence[float]) -> list[float]:
        """Estimated from the sample."""
        if self.sample is None or not len(self.sample):
            return [math.nan] * len(at)
        return torch.quantile(self.sample.double(), torch.tensor(at, dtype=torch.float64)).tolist()


@dataclass
class Moments:
    """Of a part of a tensor; of two parts `joined`.

    Attributes:
        finite: elements that are.
        mean, squares: of these; the latter the sum of squared deviations from the mean.
        lowest, highest: infinite where the part is known not to be constant.
        samples: elements at even distances.
        zeros_of_rows, zeros_of_columns: zeros in each; empty where there is none.
    """

    nan: int = 0
    infinite: int = 0
    zeros: int = 0
    finite: int = 0
    mean: float = 0.0
    squares: float = 0.0
    abs_max: float = 0.0
    lowest: float = math.inf
    highest: float = -math.inf
    samples: tuple[torch.Tensor, ...] = ()
    zeros_of_rows: torch.Tensor | None = None
    zeros_of_columns: torch.Tensor | None = None

    def joined(self, other: "Moments") -> "Moments":
        """Chan, Golub and LeVeque's update, https://doi.org/10.1080/00031305.1983.10483115."""
        count = self.finite + other.finite
        between = other.mean - self.mean
        share = other.finite / count if count else 0.0
        return Moments(
            self.nan + other.nan,
            self.infinite + other.infinite,
            self.zeros + other.zeros,
            count,
            self.mean + between * share,
            self.squares + other.squares + between**2 * share * self.finite,
            max(self.abs_max, other.abs_max),
            min(self.lowest, other.lowest),
            max(self.highest, other.highest),
            self.samples + other.samples,
            _added(self.zeros_of_rows, other.zeros_of_rows),
            _added(self.zeros_of_columns, other.zeros_of_columns),
        )


def _added(a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor | None:
    return b if a is None else a if b is None else a + b


def moments_of(tensor: StoredTensor, start: int, values: torch.Tensor) -> Moments:
    """Of the elements from `start` on, shape `(elements,)`. In parts that stay in the processor's cache."""
    found = Moments()
    stride = _prime(-(-tensor.elements // _SAMPLE))  # lest the sample comes from one column
    for at in range(0, len(values), _PART):
        part = values[at : at + _PART]
        found = found.joined(_moments_of_part(tensor, start + at, part))
        first = -(start + at) % stride
        if first < len(part):
            found.samples += (part[first::stride].to(torch.float64, copy=True),)  # the block is overwritten
    return found


def _moments_of_part(tensor: StoredTensor, start: int, part: torch.Tensor) -> Moments:
    if part.is_complex():
        part = torch.view_as_real(part).flatten()
    found = Moments()
    numbers, low, high, all_finite = _magnitudes(part)
    if not all_finite:
        found.nan, found.infinite = int(torch.isnan(numbers).sum()), int(torch.isinf(numbers).sum())
        numbers = numbers[torch.isfinite(numbers)].double()
        if not len(numbers):
            return found
        low, high = _ends(numbers.abs()).tolist()
    if low == 0.0:
        _count_zeros(found, tensor, start, part)
    if not 1 / _SAFE < high < _SAFE:
        numbers = numbers.double()
    found.finite, found.abs_max = len(numbers), high
    found.lowest, found.highest = -math.inf, math.inf
    if low == high:  # perhaps the same everywhere
        found.lowest, found.highest = _ends(numbers).tolist()
    found.mean, squares = float(numbers.sum()) / len(numbers), float(torch.dot(numbers, numbers))
    if found.mean**2 * len(numbers) > _FAR * squares:  # the squares would lose what the deviations are
        numbers = numbers.double()
        found.mean = float(numbers.mean())
        numbers = numbers - found.mean
        found.squares = float(torch.dot(numbers, numbers))
    else:
        found.squares = squares - found.mean**2 * len(numbers)
    return found


def _count_zeros(found: Moments, tensor: StoredTensor, start: int, part: torch.Tensor) -> None:
    is_zero = part == 0
    found.zeros = int(is_zero.sum())
    if tensor.rows_and_columns is None:
        return
    rows, width = tensor.rows_and_columns
    at = torch.nonzero(is_zero).flatten() + start
    found.zeros_of_rows = torch.bincount(at // width, minlength=rows)
    found.zeros_of_columns = torch.bincount(at % width, minlength=width)


def statistics_of(tensor: StoredTensor, parts: Sequence[Moments]) -> TensorStatistics:
    """Of all parts of a tensor."""
    whole = reduce(Moments.joined, parts, Moments())
    found = TensorStatistics(tensor, whole.nan, whole.infinite, whole.zeros)
    if whole.finite:
        found.mean, found.abs_max = whole.mean, whole.abs_max
        found.std = (whole.squares / whole.finite) ** 0.5
        found.norm = (whole.finite * (found.std**2 + found.mean**2)) ** 0.5
        found.constant = whole.finite == tensor.elements > 1 and whole.lowest == whole.highest
    if tensor.rows_and_columns is not None:
        rows, width = tensor.rows_and_columns
        found.dead_rows = 0 if whole.zeros_of_rows is None else int((whole.zeros_of_rows == width).sum())
        found.dead_columns = 0 if whole.zeros_of_columns is None else int((whole.zeros_of_columns == rows).sum())
    if whole.samples:
        sample = torch.cat(whole.samples)
        found.sample = sample[torch.isfinite(sample)].float()
    return found


def _magnitudes(part: torch.Tensor) -> tuple[torch.Tensor, float, float, bool]:
    """As float32 or float64; the smallest and the largest magnitude, and whether all is finite, without which they mean
    nothing."""
    if part.dtype in _BITS:
        integers, mask, end = _BITS[part.dtype]
        bits = torch.bitwise_and(part.view(integers), mask, out=_scratch(integers, len(part)))
        ends = _ends(bits)
        numbers = _scratch(torch.float32, len(part)).copy_(part)
        if int(ends[1]) >= end:
            return numbers, 0.0, 0.0, False
        low, high = ends.view(part.dtype).tolist()
        return numbers, low, high, True
    numbers = part.double() if part.dtype in _EXACT else part.float()
    low, high = _ends(numbers.abs()).tolist()  # NaN where there is one
    return numbers, low, high, math.isfinite(low) and math.isfinite(high)


def _ends(values: torch.Tensor) -> torch.Tensor:
    """The smallest and the largest; shape `(2,)`."""
    return torch.stack(list(torch.aminmax(values)))


class _Scratch(threading.local):
    """Of each thread: new memory for every part would cost more than what is computed in it."""

    def __init__(self) -> None:
        self.tensors: dict[torch.dtype, torch.Tensor] = {}


_SCRATCH = _Scratch()


def _scratch(dtype: torch.dtype, length: int) -> torch.Tensor:
    """Shape `(length,)`, of any content; used until it is asked for again."""
    if dtype not in _SCRATCH.tensors:
        _SCRATCH.tensors[dtype] = torch.empty(_PART, dtype=dtype)
    return _SCRATCH.tensors[dtype][:length]


@lru_cache(maxsize=1024)
def _prime(least: int) -> int:
    """The smallest one that is not less."""
    found = max(least, 1)
    while any(found % i == 0 for i in range(2, math.isqrt(found) + 1)):
        found += 1
    return found
