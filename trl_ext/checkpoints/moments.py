"""Statistics of a tensor from its blocks: each is looked at once, in parts that stay in the processor's cache."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trl_ext.checkpoints.stored import StoredTensor

_PART = 1 << 18  # elements
_SAMPLE = 1 << 12  # elements kept of a tensor for quantiles, whose rank is then right to 1.6% (two standard errors)
_SAFE = 1e15  # magnitude up to which squares of float32 can be added up, and by its inverse from which on
_FAR = 0.1  # of the root mean square: a mean farther from 0 is taken off before squares are added up

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

    @property
    def elements(self) -> int:
        return self.tensor.elements

    def quantiles(self, at: Sequence[float]) -> list[float]:
        """Estimated from the sample."""
        if self.sample is None or not len(self.sample):
            return [math.nan] * len(at)
        return torch.quantile(self.sample.double(), torch.tensor(at, dtype=torch.float64)).tolist()


class Moments:
    """Adds up one tensor, block by block."""

    def __init__(self, tensor: StoredTensor) -> None:
        self.tensor = tensor
        self._nan = self._infinite = self._zeros = self._finite = 0
        self._sum = self._squares = 0.0  # less the shift
        self._shift: float | None = None
        self._abs_max = 0.0
        self._lowest, self._highest = math.inf, -math.inf
        self._stride = _prime(-(-tensor.elements // _SAMPLE))  # lest the sample comes from one column
        self._sample: list[torch.Tensor] = []
        self._zeros_of: tuple[torch.Tensor, torch.Tensor] | None = None
        if len(tensor.shape) > 1 and tensor.ordered and tensor.elements:
            rows = tensor.shape[0]
            self._zeros_of = (
                torch.zeros(rows, dtype=torch.int64),
                torch.zeros(tensor.elements // rows, dtype=torch.int64),
            )

    def add(self, start: int, values: torch.Tensor) -> None:
        """Elements from `start` on; shape `(elements,)`."""
        for at in range(0, len(values), _PART):
            part = values[at : at + _PART]
            self._add(start + at, part)
            first = -(start + at) % self._stride
            if first < len(part):
                self._sample.append(part[first :: self._stride].double())

    def _add(self, start: int, part: torch.Tensor) -> None:
        if part.is_complex():
            part = torch.view_as_real(part).flatten()
        numbers, low, high, all_finite = _magnitudes(part)
        if not all_finite:
            self._nan += int(torch.isnan(numbers).sum())
            self._infinite += int(torch.isinf(numbers).sum())
            numbers = numbers[torch.isfinite(numbers)].double()
            if not len(numbers):
                return
            magnitudes = numbers.abs()
            low, high = float(magnitudes.min()), float(magnitudes.max())
        if low == 0.0:
            self._count_zeros(start, part)
        if not 1 / _SAFE < high < _SAFE:
            numbers = numbers.double()
        if low == high:  # perhaps the same everywhere
            ends = torch.aminmax(numbers)
            self._lowest, self._highest = min(self._lowest, float(ends.min)), max(self._highest, float(ends.max))
        else:
            self._lowest, self._highest = -math.inf, math.inf
        self._abs_max = max(self._abs_max, high)
        if self._shift is None:
            mean, size = float(numbers.mean()), float((torch.dot(numbers, numbers) / len(numbers)) ** 0.5)
            self._shift = mean if abs(mean) > _FAR * size else 0.0
        if self._shift:
            numbers = numbers - self._shift
        self._sum += float(numbers.sum())
        self._squares += float(torch.dot(numbers, numbers))
        self._finite += len(numbers)

    def _count_zeros(self, start: int, part: torch.Tensor) -> None:
        is_zero = part == 0
        count = int(is_zero.sum())
        self._zeros += count
        if self._zeros_of is None:
            return
        rows, columns = self._zeros_of
        width = len(columns)
        at = torch.arange(start, start + len(part)) if count == len(part) else start + torch.nonzero(is_zero).flatten()
        rows += torch.bincount(at // width, minlength=len(rows))
        columns += torch.bincount(at % width, minlength=width)

    def result(self) -> TensorStatistics:
        """Of what was added."""
        found = TensorStatistics(self.tensor, self._nan, self._infinite, self._zeros)
        if self._finite:
            n, shift = self._finite, self._shift or 0.0
            shifted = self._sum / n
            found.mean = shift + shifted
            found.std = max(self._squares / n - shifted**2, 0.0) ** 0.5
            found.norm = (n * (found.std**2 + found.mean**2)) ** 0.5
            found.abs_max = self._abs_max
            found.constant = n > 1 and self._lowest == self._highest and n == self.tensor.elements
        if self._zeros_of is not None:
            rows, columns = self._zeros_of
            found.dead_rows = int((rows == len(columns)).sum())
            found.dead_columns = int((columns == len(rows)).sum())
        if self._sample:
            sample = torch.cat(self._sample)
            found.sample = sample[torch.isfinite(sample)].float()
        return found


def _magnitudes(part: torch.Tensor) -> tuple[torch.Tensor, float, float, bool]:
    """As float32 or float64; the smallest and the largest magnitude, and whether all is finite, without which they mean
    nothing."""
    if part.dtype in _BITS:
        integers, mask, end = _BITS[part.dtype]
        bits = torch.stack(list(torch.aminmax(part.view(integers) & mask)))
        if int(bits[1]) >= end:
            return part.float(), 0.0, 0.0, False
        low, high = bits.view(part.dtype).tolist()
        return part.float(), low, high, True
    numbers = part.double() if part.dtype in _EXACT else part.float()
    low, high = torch.stack(list(torch.aminmax(numbers.abs()))).tolist()  # NaN where there is one
    return numbers, low, high, math.isfinite(low) and math.isfinite(high)


def _prime(least: int) -> int:
    """The smallest one that is not less."""
    found = max(least, 1)
    while any(found % i == 0 for i in range(2, math.isqrt(found) + 1)):
        found += 1
    return found
