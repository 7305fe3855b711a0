"""Statistics of module groups, of layers and of the whole, from those of the tensors."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trl_ext.checkpoints.drift import Drift
from trl_ext.checkpoints.measuring import Measured
from trl_ext.checkpoints.moments import TensorStatistics
from trl_ext.checkpoints.naming import GROUPS, group_of, layer_of

QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)


@dataclass
class GroupStatistics:
    """Of several tensors; over their finite elements, as stored.

    Attributes:
        tensors, elements: how many.
        nan, infinite, zeros: elements that are.
        mean, std, abs_max, norm: as of one tensor; NaN where nothing is finite.
        quantiles: estimated from samples of the tensors, in the order of `QUANTILES`.
        drift: from the reference; `None` without one.
    """

    name: str
    tensors: int = 0
    elements: int = 0
    nan: int = 0
    infinite: int = 0
    zeros: int = 0
    mean: float = math.nan
    std: float = math.nan
    abs_max: float = math.nan
    norm: float = math.nan
    quantiles: list[float] = field(default_factory=list)
    drift: Drift | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON; not finite numbers are left to the writer."""
        found = {name: value for name, value in vars(self).items() if name not in ("name", "drift", "quantiles")}
        found["quantiles"] = dict(zip(map(str, QUANTILES), self.quantiles, strict=False))
        if self.drift is not None:
            found["drift"] = vars(self.drift)
        return found


def by_group(measured: Measured) -> list[GroupStatistics]:
    """One of each group there is; packed weights in groups of their own."""
    found = {group.name: group for group in _grouped(measured, _group)}
    return [found[name] for name in sorted(found, key=lambda name: (GROUPS.index(name.split(" (")[0]), name))]


def members_of(measured: Measured, group: str) -> list[TensorStatistics]:
    """The tensors of one group."""
    return [one for one in measured.tensors.values() if _group(one) == group]


def by_layer(measured: Measured) -> list[GroupStatistics]:
    """One of each layer, in their order; what is outside of layers is left out."""
    found = _grouped(measured, lambda one: layer_of(one.tensor.name) if one.tensor.form is None else None)
    return sorted(found, key=lambda group: int(group.name))


def whole(measured: Measured) -> GroupStatistics:
    """Of all tensors that are not packed."""
    return _joined("whole", [one for one in measured.tensors.values() if one.tensor.form is None], measured)


def _group(one: TensorStatistics) -> str:
    name = group_of(one.tensor.name)
    return f"{name} ({one.tensor.form})" if one.tensor.form else name


def _grouped(measured: Measured, key: Callable[[TensorStatistics], Any]) -> list[GroupStatistics]:
    members: dict[Any, list[TensorStatistics]] = {}
    for one in measured.tensors.values():
        if (name := key(one)) is not None:
            members.setdefault(name, []).append(one)
    return [_joined(str(name), ones, measured) for name, ones in members.items()]


def _joined(name: str, ones: Sequence[TensorStatistics], measured: Measured) -> GroupStatistics:
    found = GroupStatistics(name, len(ones), sum(one.tensor.elements for one in ones))
    found.nan, found.infinite, found.zeros = (
        sum(getattr(one, what) for one in ones) for what in ("nan", "infinite", "zeros")
    )
    finite = [one for one in ones if one.finite]
    if finite:
        counts, means, stds = (np.array([getattr(one, what) for one in finite], dtype=float)
                               for what in ("finite", "mean", "std"))  # fmt: skip
        found.mean = float(means @ counts / counts.sum())
        found.std = float(np.sqrt((np.square(stds) + np.square(means - found.mean)) @ counts / counts.sum()))
        found.abs_max = max(one.abs_max for one in finite)
        found.norm = math.hypot(*(one.norm for one in finite))
        found.quantiles = weighted_quantiles(finite, QUANTILES)
    compared = [(measured.drifts[one.tensor.name], one) for one in ones if one.tensor.name in measured.drifts]
    if compared:
        found.drift = joined_drift(compared)
    return found


def joined_drift(compared: Sequence[tuple[Drift, TensorStatistics]]) -> Drift:
    """Of several tensors, as if they were one."""
    drifts = [drift for drift, _ in compared]
    own = math.hypot(*(one.norm for _, one in compared if one.finite))
    reference = math.hypot(*(one.reference for one in drifts))
    difference = math.hypot(*(one.difference for one in drifts))
    flips = np.average([one.sign_flips for one in drifts], weights=[max(one.finite, 1) for _, one in compared])
    return Drift.of(
        own * own, reference * reference, difference * difference, float(flips), any(one.moved for one in drifts),
        sum(one.compared for one in drifts),
    )  # fmt: skip


def samples_of(ones: Sequence[TensorStatistics]) -> tuple[np.ndarray, np.ndarray]:
    """The samples of tensors, and for how many elements of its tensor each number stands."""
    sampled = [one for one in ones if len(one.sample)]
    if not sampled:
        return np.empty(0), np.empty(0)
    weights = np.repeat([one.finite / len(one.sample) for one in sampled], [len(one.sample) for one in sampled])
    return np.concatenate([one.sample for one in sampled]), weights


def weighted_quantiles(ones: Sequence[TensorStatistics], at: Sequence[float]) -> list[float]:
    """Each sample stands for all elements of its tensor."""
    values, weights = samples_of(ones)
    if not len(values):
        return [math.nan] * len(at)
    order = np.argsort(values)
    cumulated = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    return np.interp(at, cumulated, values[order]).tolist()
