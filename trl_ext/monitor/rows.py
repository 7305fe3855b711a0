"""One log as the rules see it. Reading a log never raises and never changes it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real
from typing import Any

from trl_ext.monitor.metrics import canonical_name, canonical_names

LARGEST = 1e100  # beyond it squares are infinite, and nothing that is measured is as large
UNUSABLE = object()


@dataclass(frozen=True, eq=False, slots=True)
class Layout:
    """What the keys of a log and the types of its values tell: worked out once for the thousands of logs alike.

    Attributes:
        keys: as logged.
        types: of the values.
        names: the canonical name of each key, `None` for one that another key says better.
        every_name: no name is `None`.
        numeric: all keys are strings and all values numbers of Python, as in nearly every log.
    """

    keys: tuple[Any, ...]
    types: tuple[type, ...]
    names: tuple[str | None, ...]
    every_name: bool
    numeric: bool


@lru_cache(maxsize=256)
def _layout(keys: tuple[Any, ...], types: tuple[type, ...]) -> Layout:
    names = canonical_names(keys)
    numeric = {float, int}.issuperset(types) and all(isinstance(key, str) for key in keys)
    return Layout(keys, types, names, None not in names, numeric)


NO_KEYS = Layout((), (), (), True, True)
_last = NO_KEYS


@dataclass(slots=True)
class Row:
    """One log. A metric is in exactly one of the first three; a key that was not logged is in none.

    Attributes:
        metrics: finite numbers by canonical name.
        nonfinite: NaN and infinities by canonical name.
        absent: canonical names that came as `None`, which means no data.
        logged: every scalar under the key it was logged with (number, bool, string or `None`).
        plain: the layout of a log whose values all are finite numbers of Python, in the order of `logged`.
        layout: what its keys and types tell; one object for all logs alike, so that it can be a key of a cache.
    """

    step: int
    metrics: dict[str, float]
    nonfinite: dict[str, float]
    absent: list[str]
    logged: dict[str, Any]
    plain: Layout | None = None
    layout: Layout = NO_KEYS


def read_row(step: int, logs: Mapping[str, Any]) -> Row:
    """Reads one log. Numbers may be Python's, NumPy's or torch's; what is not a scalar is left out."""
    global _last
    keys, values = tuple(logs), tuple(logs.values())
    types = tuple(map(type, values))
    # comparing with the last one spares the hashes: the same objects in nearly every log
    layout = _last if keys == _last.keys and types == _last.types else _layout(keys, types)
    _last = layout
    if layout.numeric and _all_finite(values):  # no loop in Python, since a step pays for it
        metrics: dict[Any, float] = dict(zip(layout.names, values, strict=True))
        if not layout.every_name:
            metrics.pop(None, None)
        return Row(step, metrics, {}, [], dict(logs), layout, layout)
    logged: dict[str, Any] = {}
    row = Row(step, {}, {}, [], logged, None, layout)
    for name, key, found in zip(layout.names, layout.keys, values, strict=True):
        value: Any = scalar(found) if isinstance(key, str) else UNUSABLE
        if value is UNUSABLE:
            continue
        logged[key] = value
        if value is None:
            row.absent.append(name or key)
        elif isinstance(value, bool | str):
            continue
        elif not -LARGEST < value < LARGEST:  # a number that large is an overflow, whatever its type
            row.nonfinite[name or key] = value
        elif name is not None:
            row.metrics[name] = value
    return row


def metric_value(metric: str, step: int, logs: Mapping[str, Any]) -> float | None:
    """The value of `metric` in one log, by the key as logged or its canonical name; `None` for no data."""
    row = read_row(step, logs)
    canonical = canonical_name(metric)
    for values, name in ((row.logged, metric), (row.metrics, canonical), (row.nonfinite, canonical)):
        value = values.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None


def _all_finite(values: tuple[float, ...]) -> bool:
    """Whether all are, by one sum; also false for numbers so large that none of them is a measurement."""
    try:
        return -LARGEST < sum(values, 0.0) < LARGEST
    except OverflowError:  # an integer beyond every float
        return False


def scalar(value: Any) -> Any:
    """A plain number, bool, string or `None`; `UNUSABLE` for anything else."""
    if value is None or type(value) is float:
        return value
    if isinstance(value, str):
        return str(value)
    try:
        if not isinstance(value, Real):
            # NumPy and torch scalars, zero-dimensional or of one element
            value = value.item()
        if isinstance(value, bool):
            return value
        if isinstance(value, int) and abs(value) < 2**63:
            return int(value)
        return float(value) if isinstance(value, Real) else UNUSABLE
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except Exception:  # whatever an object of the user raises
        return UNUSABLE
