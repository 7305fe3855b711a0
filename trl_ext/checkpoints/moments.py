"""Statistics of a tensor from its blocks, each of which is looked at once."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from trl_ext.checkpoints.blocks import Block, Span
from trl_ext.checkpoints.stored import StoredTensor

PART = 1 << 17  # elements computed with at once in float64
_SAMPLE = 1 << 12  # elements kept of a tensor for quantiles, whose rank is then right to 1.6% (two standard errors)
_TINY, _HUGE = 1e-30, 1e30  # mean squares that float32 can add up
_FAR = 0.01  # of the squares: where the mean makes more of them it is taken off before they are added up
_RARE = 64  # one zero among more elements than this is rare

# The bits of the magnitude: magnitudes of floating point numbers are ordered as their bits are, which compare faster.
_MAGNITUDE = {torch.bfloat16: 0x7FFF, torch.float16: 0x7FFF, torch.float32: 0x7FFFFFFF}


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
        sample: finite elements at even distances, for quantiles; shape `(about 4096 at most,)`.
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


def _added(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    return b if a is None else a if b is None else a + b


def moments_of(span: Span) -> Moments:
    """Of the blocks of a span."""
    found = fast_moments(span)
    return exact_moments(span) if found is None else found


def fast_moments(span: Span, look: Callable[[Block], None] | None = None) -> Moments | None:
    """In float32; `None` where that does not hold the sums, something is not finite, or the dtype is another.

    Each block stays in the processor's cache; what comes of it is looked at after the last one, since small operations
    take as long here as large ones.

    Args:
        look: is shown each block before its values are overwritten.
    """
    mask = _MAGNITUDE.get(span.tensor.read_as)
    if mask is None:
        return None
    found = Moments()
    sums, ends = Sums(), []
    for block in span.blocks():
        found.samples += (block.array[sampled(span.tensor, block, _SAMPLE)].copy(),)
        if look is not None:
            look(block)
        sums.add(block)
        low, high = torch.aminmax(block.integers.bitwise_and_(mask))
        ends += [low, high]
        if low.item() == 0:
            found = found.joined(_zeros(span.tensor, block.start, block.array == 0))
    whole = sums.whole()
    if whole is None:
        return None
    found.finite, found.mean, found.squares = whole
    magnitudes = torch.stack(ends).view(span.tensor.read_as).tolist()
    found.abs_max = max(magnitudes)
    found.lowest, found.highest = -math.inf, math.inf
    if min(magnitudes) == found.abs_max:  # the same everywhere, if the signs are, which are gone
        found.lowest = found.highest = math.copysign(found.abs_max, found.mean)
        if found.squares > 1e-9 * found.mean**2 * found.finite:
            found.lowest = -found.highest
    return found


class Sums:
    """Of blocks of bfloat16, float16 or float32."""

    def __init__(self) -> None:
        self._counts: list[int] = []
        # Shape `(channels,)`: means and variances, or sums and sums of squares
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._are_sums = False

    def add(self, block: Block) -> None:
        values = block.values
        self._counts.append(len(values))
        if values.dtype is torch.float32:
            self._are_sums = True
            self._pairs.append((values.sum().view(1), values.dot(values).view(1)))
            return
        # The statistics of batch normalization: mean and variance in two passes, which convert in registers, where
        # converting to float32 first takes twice the time
        unused = _unused(block.channels.shape[1])
        self._pairs.append(torch.batch_norm_update_stats(block.channels, unused, unused, 0.0))

    def whole(self) -> tuple[int, float, float] | None:
        """Elements, their mean and the sum of squared deviations from it; `None` where float32 does not hold it."""
        firsts, seconds, of_each = self._arrays()
        if self._are_sums:
            if (np.square(firsts) > _FAR * seconds).any():  # the squares would lose what the deviations are
                return None
            seconds = seconds - np.square(firsts)
        if not self._held(seconds + np.square(firsts)):
            return None
        count = sum(self._counts)
        mean = float(firsts @ of_each) / count
        return count, mean, float((seconds + np.square(firsts - mean)) @ of_each)

    def squares(self) -> float | None:
        """Their sum; 0 of no block, `None` where float32 does not hold it."""
        if not self._counts:
            return 0.0
        firsts, seconds, of_each = self._arrays()
        squares = seconds if self._are_sums else seconds + np.square(firsts)
        return float(squares @ of_each) if self._held(squares) else None

    @staticmethod
    def _held(squares: np.ndarray) -> bool:
        return bool(((squares > _TINY) & (squares < _HUGE)).all())

    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of each channel of each block: its mean, its variance or mean square, and its elements."""
        channels = [len(first) for first, _ in self._pairs]
        of_each = np.repeat(np.array(self._counts) / channels, channels)
        firsts, seconds = (torch.cat(side).double().numpy() for side in zip(*self._pairs, strict=True))
        return (firsts / of_each, seconds / of_each, of_each) if self._are_sums else (firsts, seconds, of_each)


@lru_cache(maxsize=16)
def _unused(channels: int) -> torch.Tensor:
    """Running statistics that are asked for, so that the result is float32, and never looked at."""
    return torch.zeros(channels)


def sampled(tensor: StoredTensor, block: Block, most: int) -> slice:
    """The elements of a block that are among about `most` of the tensor, at even distances."""
    stride = _prime(-(-tensor.elements // most))  # lest the sample comes from one column
    return slice(-block.start % stride, None, stride)


def exact_moments(span: Span) -> Moments:
    """In float64, a part at a time."""
    found = Moments()
    for block in span.blocks():
        found.samples += (block.array[sampled(span.tensor, block, _SAMPLE)].copy(),)
        tensor = None if block.values.is_complex() else span.tensor  # a complex number is two, which have no rows
        numbers = block.numbers()
        for at in range(0, len(numbers), PART):
            part = numbers[at : at + PART]
            found = found.joined(_exact_moments_of_part(tensor, block.start + at, part))
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
        found.norm = (whole.finite * (found.std**2 + found.mean**2)) ** 0.5
        found.constant = whole.finite == tensor.elements > 1 and whole.lowest == whole.highest
    if tensor.rows_and_columns is not None:
        rows, width = tensor.rows_and_columns
        found.dead_rows = 0 if whole.zeros_of_rows is None else int((whole.zeros_of_rows == width).sum())
        found.dead_columns = 0 if whole.zeros_of_columns is None else int((whole.zeros_of_columns == rows).sum())
    if whole.samples:
        sample = torch.from_numpy(np.concatenate(whole.samples)).view(tensor.read_as)
        sample = (sample.real if sample.is_complex() else sample).float()
        found.sample = sample[torch.isfinite(sample)]
    return found


@lru_cache(maxsize=1024)
def _prime(least: int) -> int:
    """The smallest one that is not less."""
    found = max(least, 1)
    while any(found % i == 0 for i in range(2, math.isqrt(found) + 1)):
        found += 1
    return found
