"""A run in a few numbers: where each quantity started and where it ended."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

# The keys that trainers log a quantity under; the first one present in a row counts.
_KEYS = {
    "reward": ("reward", "objective/scores"),
    "kl": ("objective/kl", "kl"),
    "entropy": ("policy/entropy_avg", "entropy"),
    "explained_variance": ("value/explained_variance",),
    "length": ("completions/mean_length",),
    "loss": ("loss",),
}


def run_summary(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """First and last of each quantity over the rows of `metrics.jsonl`, read under the keys of any TRL trainer.

    Returns:
        `{"step": last step, "logs": number of rows, "reward": {...}, "kl": ..., "entropy": ..., "length": ...,
        "explained_variance": ..., "loss": ...}`, where a quantity is `{"first", "last", "count", "nonfinite"}`: the
        means of the first and the last tenth of its `count` finite values (at least one each), and how many others were
        NaN or infinite. A quantity that was never logged is absent; one that never was finite has `None` twice.
    """
    rows = list(rows)
    summary: dict[str, Any] = {
        "step": max((row["step"] for row in rows if isinstance(row.get("step"), int)), default=0),
        "logs": len(rows),
    }
    for name, keys in _KEYS.items():
        values = [value for row in rows for value in _logged(row, keys)]
        if values:
            summary[name] = _first_and_last(values)
    return summary


def _logged(row: Mapping[str, Any], keys: tuple[str, ...]) -> list[float]:
    """The row's value, in a list; NaN where the row lists it as nonfinite; an empty list where it was not logged."""
    for key in keys:
        if key in (row.get("nonfinite") or ()):
            return [math.nan]
        if isinstance(row.get(key), int | float):
            return [float(row[key])]
    return []


def _first_and_last(values: list[float]) -> dict[str, float | int | None]:
    finite = [value for value in values if math.isfinite(value)]
    tenth = max(1, len(finite) // 10)
    return {
        "first": sum(finite[:tenth]) / tenth if finite else None,
        "last": sum(finite[-tenth:]) / tenth if finite else None,
        "count": len(finite),
        "nonfinite": len(values) - len(finite),
    }
