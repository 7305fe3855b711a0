"""One log as the rules see it. Reading a log never raises and never changes it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from trl_ext.monitor.metrics import canonical_names

_UNUSABLE = object()
_NUMBERS = frozenset({float, int})
_STRINGS = frozenset({str})


@dataclass(slots=True)
class Row:
    """One log. A metric is in exactly one of the first three; a key that was not logged is in none.

    Attributes:
        metrics: finite numbers by canonical name.
        nonfinite: NaN and infinities by canonical name.
        absent: canonical names that came as `None`, which means no data.
        logged: every scalar under the key it was logged with (number, bool, string or `None`).
        plain: all of `logged` are finite numbers of Python, as in nearly every log.
    """

    step: int
    metrics: dict[str, float]
    nonfinite: dict[str, float]
    absent: list[str]
    logged: dict[str, Any]
    plain: bool = True


def read_row(step: int, logs: Mapping[str, Any]) -> Row:
    """Reads one log. Numbers may be Python's, NumPy's or torch's; what is not a scalar is left out."""
    keys, values = tuple(logs), tuple(logs.values())
    names = canonical_names(keys)
    if _NUMBERS.issuperset(map(type, values)) and _STRINGS.issuperset(map(type, keys)) and _all_finite(values):
        # nearly every log: no loop in Python, since a step pays for it
        metrics: dict[Any, float] = dict(zip(names, values, strict=True))
        metrics.pop(None, None)
        return Row(step, metrics, {}, [], dict(logs))
    row = Row(step, {}, {}, [], {}, plain=False)
    for name, key, value in zip(names, keys, values, strict=True):
        value = _scalar(value) if isinstance(key, str) else _UNUSABLE
        if value is _UNUSABLE:
            continue
        row.logged[key] = value
        if value is None:
            row.absent.append(name or key)
        elif isinstance(value, bool | str):
            continue
        elif not math.isfinite(value):
            row.nonfinite[name or key] = value
        elif name is not None:
            row.metrics[name] = value
    return row


def _all_finite(values: tuple[float, ...]) -> bool:
    try:
        return all(map(math.isfinite, values))
    except OverflowError:  # an integer beyond every float
        return False


def _scalar(value: Any) -> Any:
    """A plain number, bool, string or `None`; `_UNUSABLE` for anything else."""
    if value is None:
        return None
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
        return float(value) if isinstance(value, Real) else _UNUSABLE
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return _UNUSABLE
