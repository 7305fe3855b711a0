"""How far a tensor is from another of the same shape."""

import math
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch

from trl_ext.checkpoints.blocks import Block, Span
from trl_ext.checkpoints.moments import PART, Moments, Sums, fast_moments, moments_of, sampled
from trl_ext.checkpoints.stored import StoredTensor

_SIGNS = 1 << 16  # elements at most whose signs are compared: the share is then right to 0.4% (two standard errors)


@dataclass(frozen=True)
class Drift:
    """Of one tensor from its reference, over the elements that are finite in both.

    Attributes:
        difference: Frobenius norm of what was added to the reference.
        reference: Frobenius norm of the reference.
        relative: the one by the other; infinite where the reference is 0 and the difference is not.
        cosine: of the angle between the two; NaN where one of them is 0.
        sign_flips: share of elements whose sign is the opposite, both being other than 0; of 65,536 elements at even
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
        difference, reference = self.difference**0.5, self.reference**0.5
        return Drift(
            difference,
            reference,
            difference / reference if reference else math.inf if difference else 0.0,
            cosine(self.own, self.reference, self.difference),
            self.flips / self.compared if self.compared else 0.0,
            self.moved,
            self.compared,
        )


def cosine(own: float, reference: float, difference: float) -> float:
    """From sums of squares, which for small differences is more exact than from the product."""
    if not own or not reference:
        return math.nan
    # 1 - |x/|x| - y/|y||^2 / 2, with the lengths' own difference taken out
    between = (difference - (own**0.5 - reference**0.5) ** 2) / (2 * (own * reference) ** 0.5)
    return max(-1.0, min(1.0, 1.0 - between))


class Compared(NamedTuple):
    """Of a part of a tensor: its own numbers, and how far it is from the reference (`None` without one)."""

    moments: Moments
    drift: DriftSums | None

    def joined(self, other: "Compared") -> "Compared":
        drift = self.drift if other.drift is None else other.drift if self.drift is None else None
        if self.drift is not None and other.drift is not None:
            drift = self.drift.joined(other.drift)
        return Compared(self.moments.joined(other.moments), drift)


def compare(span: Span) -> Compared:
    """The moments of a span, and its drift where it is compared with another tensor."""
    if span.other is None:
        return Compared(moments_of(span), None)
    if span.tensor.read_as is span.other.tensor.read_as:
        fast = _Fast(span.tensor)
        moments = fast_moments(span, fast.add)
        drift = None if moments is None else fast.drift(moments)
        if moments is not None and drift is not None:
            return Compared(moments, drift)
    drift = DriftSums()
    for block in span.blocks():
        drift = drift.joined(_exact(block))
    return Compared(moments_of(span), drift)


class _Fast:
    """In the dtype of both: where a weight moved by less than half of itself their difference is exact in it, and
    elsewhere rounded to nearest, which hardly moves the sum of many squares."""

    def __init__(self, tensor: StoredTensor) -> None:
        self._tensor = tensor
        self._difference, self._reference = Sums(), Sums()
        self._compared = self._flips = 0
        self._moved = False

    def add(self, block: Block) -> None:
        other = block.other
        assert other is not None
        at = sampled(self._tensor, block, _SIGNS)
        own, before = block.array[at], other.array[at]
        magnitude = np.iinfo(own.dtype).max  # all bits but the sign
        opposite = ((own ^ before) < 0) & ((own & magnitude) != 0) & ((before & magnitude) != 0)
        self._compared += len(own)
        self._flips += int(np.count_nonzero(opposite))
        self._reference.add(other)
        if not np.array_equal(block.array, other.array):
            self._moved = True
            torch.sub(block.values, other.values, out=other.values)
            self._difference.add(other)

    def drift(self, moments: Moments) -> DriftSums | None:
        """`None` where float32 does not hold it."""
        reference, difference = self._reference.squares(), self._difference.squares()
        if reference is None or difference is None:
            return None
        own = moments.squares + moments.mean**2 * moments.finite
        return DriftSums(own, reference, difference, self._compared, self._flips, self._moved)


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
        flips = int(torch.count_nonzero(x * y < 0))
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
