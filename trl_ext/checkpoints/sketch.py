"""What is kept of a checkpoint when its files may be gone: a few numbers and a sample of each tensor.

The sample's places depend on the number of elements alone, so that those of two checkpoints are of the same weights.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from trl_ext.checkpoints.drift import Drift, cosine
from trl_ext.checkpoints.measuring import Measured
from trl_ext.checkpoints.naming import group_of, layer_of, weight_name

_KEPT = 1024  # numbers of a tensor


@dataclass(frozen=True)
class TensorSketch:
    """
    Attributes:
        numbers: mean, std, largest magnitude and norm; NaN where nothing is finite.
        sample: shape `(1024 or fewer,)`, float32.
    """

    elements: int
    numbers: tuple[float, float, float, float]
    sample: np.ndarray

    def same(self, other: Self) -> bool:
        """Whether nothing tells the two apart: a weight that moved hardly leaves all of these as they were."""
        return self.numbers == other.numbers and np.array_equal(self.sample, other.sample)


@dataclass(frozen=True)
class Sketch:
    """Of a checkpoint, by the model's own names of its tensors."""

    tensors: dict[str, TensorSketch]

    @classmethod
    def of(cls, measured: Measured) -> "Sketch":
        found = {}
        for name, one in measured.tensors.items():
            if one.tensor.form is None and len(one.sample):
                sample = one.sample[:: -(-len(one.sample) // _KEPT)].astype(np.float32)
                numbers = (one.mean, one.std, one.abs_max, one.norm)
                found[weight_name(name)] = TensorSketch(one.tensor.elements, numbers, sample)
        return cls(found)


def estimated_drift(sketch: Sketch, reference: Sketch, names: list[str] | None = None) -> Drift | None:
    """Of all tensors, or of those named: norms are exact, what lies between the two is estimated from the samples.

    `None` where they have nothing in common.
    """
    own = square = difference = flips = compared = 0.0
    moved, common = False, False
    for name in sketch.tensors if names is None else names:
        one, other = sketch.tensors.get(name), reference.tensors.get(name)
        if one is None or other is None or one.elements != other.elements or len(one.sample) != len(other.sample):
            continue
        if math.isnan(one.numbers[3]) or math.isnan(other.numbers[3]):
            continue
        common = True
        moved |= not one.same(other)
        x, y = one.sample.astype(float), other.sample.astype(float)
        scale = one.elements / len(x)
        own += one.numbers[3] ** 2
        square += other.numbers[3] ** 2
        difference += float(np.square(x - y).sum()) * scale
        flips += float(np.count_nonzero(x * y < 0)) * scale
        compared += one.elements
    if not common:
        return None
    relative = (difference / square) ** 0.5 if square else math.inf if difference else 0.0
    between = max(difference, (own**0.5 - square**0.5) ** 2)  # which the estimate may fall short of
    return Drift(
        difference**0.5, square**0.5, relative, cosine(own, square, between), flips / compared, moved, int(compared)
    )


def drift_by_layer(sketch: Sketch, reference: Sketch) -> dict[str, Drift]:
    """Of each layer, and of each group outside of layers."""
    members: dict[str, list[str]] = {}
    for name in sketch.tensors:
        layer = layer_of(name)
        members.setdefault(group_of(name) if layer is None else f"layer {layer}", []).append(name)
    drifts = {key: estimated_drift(sketch, reference, names) for key, names in members.items()}
    return {key: drift for key, drift in drifts.items() if drift is not None}
