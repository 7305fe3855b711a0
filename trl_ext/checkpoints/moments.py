"""Statistics of a tensor from its blocks, each of which is looked at once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch

from trl_ext.checkpoints import kernels
from trl_ext.checkpoints.blocks import Block
from trl_ext.checkpoints.stored import StoredTensor

PART = 1 << 17  # elements computed with at once in float64
_SAMPLE = 1 << 12  # elements kept of a tensor for quantiles, whose rank is then right to 1.6% (two standard errors)
_TINY, _HUGE = 1e-30, 1e30  # mean squares that float32 can add up
_FAR = 0.01  # of the squares: where the mean makes more of them it is taken off before they are added up
_RARE = 64  # one zero among more elements than this is rare

# The bits of the magnitude: magnitudes of floating point numbers are ordered as their bits are, which compare faster.
MAGNITUDE = {torch.bfloat16: 0x7FFF, torch.float16: 0x7FFF, torch.float32: 0x7FFFFFFF}


@dataclass
class TensorStatistics:
    """Of one tensor; moments and quantiles over its finite elements, as stored.

    Attributes:
        nan, infinite: elements that are.
        zeros: elements that are 0.
        finite: elements that are; a complex number counts as two.
        mean, std, abs_max, norm: NaN where there is no finite element. `std` of the population; `norm` is Frobenius'.
        constant: whether all elements are equal (of two or more).
        dead_rows, dead_columns: all of whose elements are 0; `None` where the tensor has fewer than two dimensions or
            is not stored in order. A row is one index of the first dimension.
        bits: of elements at even distances, as integers; about 4096 at most in all.
    """

    tensor: StoredTensor
    nan: int = 0
    infinite: int = 0
    zeros: int = 0
    finite: int = 0
    mean: float = math.nan
    std: float = math.nan
    abs_max: float = math.nan
    norm: float = math.nan
    constant: bool = False
    dead_rows: int | None = None
    dead_columns: int | None = None
    bits: tuple[np.ndarray, ...] = ()

    @cached_property
    def sample(self) -> np.ndarray:
        """The finite ones of these elements, as float64; of complex numbers the real part."""
        if not self.bits:
            return np.empty(0)
        stored = torch.from_numpy(np.concatenate(self.bits)).view(self.tensor.read_as)
        sample = (stored.real if stored.is_complex() else stored).double().numpy()
        return sample[np.isfinite(sample)]

    def quantiles(self, at: Sequence[float]) -> list[float]:
        """Estimated from the sample."""
        return np.quantile(self.sample, at).tolist() if len(self.sample) else [math.nan] * len(at)


@dataclass
class Moments:
    """Of a part of a tensor; of two parts `joined`.

    Attributes:
        finite: elements that are.
        mean, squares: of these; the latter the sum of squared deviations from the mean.
        lowest, highest: infinite where the part is known not to be constant.
        samples: elements at even distances, their bits as integers.
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
    samples: tuple[np.ndarray, ...] = ()
    zeros_of_rows: np.ndarray | None = None
    zeros_of_columns: np.ndarray | None = None

    @property
    def sum_of_squares(self) -> float:
        """Of the elements themselves."""
        return self.squares + self.mean**2 * self.finite

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
            self.squares + other.squares + between * between * share * self.finite,
            max(self.abs_max, other.abs_max),
            min(self.lowest, other.lowest),
            max(self.highest, other.highest),
            self.samples + other.samples,
            _added(self.zeros_of_rows, other.zeros_of_rows),
            _added(self.zeros_of_columns, other.zeros_of_columns),
        )


def _added(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    return b if a is None else a if b is None else a + b


def moments_of(block: Block) -> Moments:
    """Of one block, which is overwritten."""
    if block.values.dtype in MAGNITUDE:
        samples = sample_of(block)
        sums, ends = kernels.moments(block.values, block.integers, MAGNITUDE[block.values.dtype], kernels.PART)
        found = fast_moments(block, sums, ends, block.values.dtype is torch.float32)
        if found is not None:
            found.samples = samples
            return found
        block.read()
    return exact_moments(block)


def fast_moments(
    block: Block, sums: torch.Tensor, ends: torch.Tensor, are_sums: bool, part: int = kernels.PART
) -> Moments | None:
    """From what `kernels` made of a block in float32, whose bits are those of magnitudes now. `None` where float32 does
    not hold the sums, or something is not finite.

    Args:
        are_sums: whether `sums` are sums and sums of squares of each `part`, or means and variances of its channels.
    """
    of_each = _elements_of_each(len(block.array), part, are_sums)
    means, variances = sums.numpy()
    if are_sums:
        means, variances = means / of_each, variances / of_each
        if (np.square(means) > _FAR * variances).any():  # the squares would lose what the deviations are
            return None
        variances = variances - np.square(means)
    squares = variances + np.square(means)
    if not (squares.min() > _TINY and squares.max() < _HUGE):  # nor are they with NaN
        return None
    found = Moments()
    magnitudes = ends.view(block.values.dtype).tolist()
    for i, lowest in enumerate(magnitudes[::2]):
        if lowest == 0.0:
            at = i * kernels.PART
            found = found.joined(_zeros(block.tensor, block.start + at, block.array[at : at + kernels.PART] == 0))
    found.finite = len(block.array)
    found.mean = float(means @ of_each) / found.finite
    found.squares = float((variances + np.square(means - found.mean)) @ of_each)
    found.abs_max = max(magnitudes)
    found.lowest, found.highest = -math.inf, math.inf
    if min(magnitudes) == found.abs_max:  # the same everywhere, if the signs are, which are gone
        found.lowest = found.highest = math.copysign(found.abs_max, found.mean)
        if found.squares > 1e-9 * found.mean**2 * found.finite:
            found.lowest = -found.highest
    return found


@lru_cache(maxsize=1024)
def _elements_of_each(elements: int, part: int, are_sums: bool) -> np.ndarray:
    """How many elements each sum of `kernels` is of."""
    sizes = [min(part, elements - start) for start in range(0, elements, part)]
    channels = [1 if are_sums else kernels.channels(size) for size in sizes]
    return np.repeat(np.divide(sizes, channels), channels)


def sample_of(block: Block) -> tuple[np.ndarray, ...]:
    return (block.array[sampled(block, _SAMPLE)].copy(),)


def sampled(block: Block, most: int) -> slice:
    """The elements of a block that are among about `most` of the tensor, at even distances."""
    stride = _prime(-(-block.tensor.elements // most))  # lest the sample comes from one column
    return slice(-block.start % stride, None, stride)


def exact_moments(block: Block) -> Moments:
    """In float64, a part at a time."""
    found = Moments(samples=sample_of(block))
    tensor = None if block.values.is_complex() else block.tensor  # a complex number is two, which have no rows
    numbers = block.numbers()
    for at in range(0, len(numbers), PART):
        found = found.joined(_exact_moments_of_part(tensor, block.start + at, numbers[at : at + PART]))
    return found


def _exact_moments_of_part(tensor: StoredTensor | None, start: int, part: torch.Tensor) -> Moments:
    numbers = part.double().numpy()
    found = _zeros(tensor, start, numbers == 0)
    is_finite = np.isfinite(numbers)
    if not is_finite.all():
        found.nan = int(np.isnan(numbers).sum())
        found.infinite = int((~is_finite).sum()) - found.nan
        numbers = numbers[is_finite]
    if len(numbers):
        found.finite = len(numbers)
        found.lowest, found.highest = float(numbers.min()), float(numbers.max())
        found.abs_max = max(abs(found.lowest), abs(found.highest))
        found.mean = float(numbers.mean())
        numbers -= found.mean
        with np.errstate(over="ignore"):
            found.squares = float(numbers.dot(numbers))
    return found


def _zeros(tensor: StoredTensor | None, start: int, is_zero: np.ndarray) -> Moments:
    found = Moments(zeros=int(np.count_nonzero(is_zero)))
    if not found.zeros or tensor is None or tensor.rows_and_columns is None:
        return found
    rows, width = tensor.rows_and_columns
    if found.zeros < len(is_zero) // _RARE:
        at = np.flatnonzero(is_zero) + start
        found.zeros_of_rows = np.bincount(at // width, minlength=rows)
        found.zeros_of_columns = np.bincount(at % width, minlength=width)
        return found
    found.zeros_of_rows, found.zeros_of_columns = np.zeros(rows, dtype=np.int64), np.zeros(width, dtype=np.int64)
    done = 0
    while done < len(is_zero):
        row, column = divmod(start + done, width)
        # the rest of a row, or all whole rows there are
        whole = (len(is_zero) - done) // width if column == 0 else 0
        length = whole * width or min(width - column, len(is_zero) - done)
        part = is_zero[done : done + length].reshape(whole or 1, -1)
        found.zeros_of_rows[row : row + len(part)] += np.count_nonzero(part, axis=1)
        found.zeros_of_columns[column : column + part.shape[1]] += np.count_nonzero(part, axis=0)
        done += length
    return found


def statistics_of(tensor: StoredTensor, whole: Moments | None) -> TensorStatistics:
    """From the moments of all its blocks; `None` where it has none."""
    whole = whole or Moments()
    found = TensorStatistics(tensor, whole.nan, whole.infinite, whole.zeros, whole.finite)
    if whole.finite:
        found.mean, found.abs_max = whole.mean, whole.abs_max
        found.std = (whole.squares / whole.finite) ** 0.5
        found.norm = math.sqrt(whole.finite) * math.hypot(found.std, found.mean)
        found.constant = whole.finite == tensor.elements > 1 and whole.lowest == whole.highest
    if tensor.rows_and_columns is not None:
        rows, width = tensor.rows_and_columns
        found.dead_rows = 0 if whole.zeros_of_rows is None else int((whole.zeros_of_rows == width).sum())
        found.dead_columns = 0 if whole.zeros_of_columns is None else int((whole.zeros_of_columns == rows).sum())
    found.bits = whole.samples
    return found


@lru_cache(maxsize=1024)
def _prime(least: int) -> int:
    """The smallest one that is not less."""
    found = max(least, 1)
    while any(found % i == 0 for i in range(2, math.isqrt(found) + 1)):
        found += 1
    return found
