"""How far a tensor is from another of the same shape."""

import math
import threading
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch

from trl_ext.checkpoints import kernels
from trl_ext.checkpoints.blocks import Block, joined_where_both
from trl_ext.checkpoints.moments import MAGNITUDE, PART, Moments, fast_moments, moments_of, sample_of, sampled

_ALIKE = 100.0  # times that lengths may differ for a cosine from sums of float32; its square for one from float64
_TINY = 1e-14  # of the tensor's squares: below, float32 may have lost some
_SIGNS = 1 << 14  # elements at most whose signs are compared: the share is then right to 0.8% (two standard errors)


@dataclass(frozen=True)
class Drift:
    """Of one tensor from its reference, over the elements that are finite in both.

    Attributes:
        difference: Frobenius norm of what was added to the reference.
        reference: Frobenius norm of the reference.
        relative: the one by the other; infinite where the reference is 0 and the difference is not.
        cosine: of the angle between the two; NaN where one of them is 0, or 10,000 times as long as the other.
        sign_flips: share of elements whose sign is the opposite, both being other than 0; of 16,384 elements at even
            distances where there are more.
        moved: whether any number differs.
        compared: elements whose signs were compared.
    """

    difference: float
    reference: float
    relative: float
    cosine: float
    sign_flips: float
    moved: bool
    compared: int = 0

    @classmethod
    def of(
        cls, own: float, reference: float, difference: float, sign_flips: float, moved: bool, compared: int
    ) -> "Drift":
        """
        Args:
            own, reference, difference: sums of squares.
        """
        relative = (difference / reference) ** 0.5 if reference else math.inf if difference else 0.0
        return cls(
            difference**0.5, reference**0.5, relative, cosine(own, reference, difference), sign_flips, moved, compared
        )


class DriftSums(NamedTuple):
    """Of a part of a tensor; of two parts `joined`. Sums of squares of the tensor, its reference and the difference."""

    own: float = 0.0
    reference: float = 0.0
    difference: float = 0.0
    compared: int = 0
    flips: int = 0
    moved: bool = False

    def joined(self, other: Self) -> "DriftSums":
        return DriftSums(
            self.own + other.own, self.reference + other.reference, self.difference + other.difference,
            self.compared + other.compared, self.flips + other.flips, self.moved or other.moved,
        )  # fmt: skip

    def drift(self) -> Drift:
        flips = self.flips / self.compared if self.compared else 0.0
        return Drift.of(self.own, self.reference, self.difference, flips, self.moved, self.compared)


def cosine(own: float, reference: float, difference: float) -> float:
    """From sums of squares, which for small differences is more exact than from the product."""
    if not own or not reference or not _ALIKE**-4 < own / reference < _ALIKE**4:
        return math.nan
    # 1 - |x/|x| - y/|y||^2 / 2, with the lengths' own difference taken out
    between = (difference - (own**0.5 - reference**0.5) ** 2) / (2 * (own * reference) ** 0.5)
    return max(-1.0, min(1.0, 1.0 - between))


class Compared(NamedTuple):
    """Of a part of a tensor: its own numbers, and how far it is from the reference (`None` without one)."""

    moments: Moments
    drift: DriftSums | None

    def joined(self, other: "Compared") -> "Compared":
        return Compared(self.moments.joined(other.moments), joined_where_both(self.drift, other.drift))


class _Parts(threading.local):
    """Of this thread: a part of a tensor and of its reference as float32."""

    def __init__(self) -> None:
        self.own, self.other = torch.empty(kernels.FLOAT32_PART), torch.empty(kernels.FLOAT32_PART)


_PARTS = _Parts()


def compare(block: Block) -> Compared:
    """The moments of a block, which is overwritten, and its drift where it is compared with another tensor."""
    if block.other is None:
        return Compared(moments_of(block), None)
    own_type, other_type = block.values.dtype, block.other.values.dtype
    if own_type in MAGNITUDE and other_type in MAGNITUDE:
        found = _fast(block, block.other)
        if found is not None:
            return found
        block.read()
    drift = _exact(block)
    return Compared(moments_of(block), drift)


def _fast(block: Block, other: Block) -> Compared | None:
    """In float32; `None` where that does not hold the sums, or something is not finite."""
    at = sampled(block, _SIGNS)
    own, before = _numbers(block, at), _numbers(other, at)
    flips = int(np.count_nonzero(np.sign(own) * np.sign(before) < 0))
    # most blocks that differ do so in the sample, which is looked at in a hundredth of the time
    moved = not (np.array_equal(own, before) and _same(block))
    if not moved:
        moments = moments_of(block)
        squares = moments.sum_of_squares
        if moments.finite < len(block.values):
            return None
        return Compared(moments, DriftSums(squares, squares, 0.0, len(own), flips, False))
    samples = sample_of(block)
    sums, ends = kernels.compared_moments(
        block.values, other.values, block.integers, MAGNITUDE[block.values.dtype], kernels.PART, _PARTS.own,
        _PARTS.other,
    )  # fmt: skip
    found = fast_moments(block, sums[:, :2].T, ends, True, kernels.FLOAT32_PART)
    if found is None:
        return None
    found.samples = samples
    squares = found.sum_of_squares
    reference, difference = sums[:, 2:].sum(dim=0).tolist()
    if not squares / _ALIKE**2 < reference < squares * _ALIKE**2:
        return None  # the cosine would be lost
    if not (_TINY * squares < reference < math.inf and _TINY * squares < difference < math.inf):
        return None
    return Compared(found, DriftSums(squares, reference, difference, len(own), flips, True))


def _numbers(block: Block, at: slice) -> np.ndarray:
    """Some of its values, as float32."""
    return torch.from_numpy(block.array[at].copy()).view(block.values.dtype).float().numpy()


def _exact(block: Block) -> DriftSums:
    """In float64, a part at a time."""
    assert block.other is not None
    drift = DriftSums(moved=not _same(block))
    own, other = block.numbers(), block.other.numbers()
    for at in range(0, len(own), PART):
        x, y = own[at : at + PART].double(), other[at : at + PART].double()
        both = torch.isfinite(x) & torch.isfinite(y)
        x, y = x[both], y[both]
        difference = x - y
        flips = int(torch.count_nonzero(x.sign() * y.sign() < 0))
        drift = drift.joined(
            DriftSums(float(x @ x), float(y @ y), float(difference @ difference), len(x), flips, False)
        )
    return drift


def _same(block: Block) -> bool:
    """Whether it is equal; to a tensor of another dtype where no number differs."""
    assert block.other is not None
    if block.array.dtype == block.other.array.dtype:
        return np.array_equal(block.array, block.other.array)
    return torch.equal(block.numbers().double(), block.other.numbers().double())
