"""A run in a few numbers: where each quantity started and where it ended."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from trl_ext.monitor.metrics import METRICS

# Canonical metrics of a quantity; the first one that a row holds counts, under whichever key.
_QUANTITIES = {
    "reward": ("reward",),
    "kl": ("kl_per_sequence", "kl_per_token"),
    "entropy": ("entropy_per_token",),
    "explained_variance": ("explained_variance",),
    "length": ("completion_length",),
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
    for name, metrics in _QUANTITIES.items():
        keys = [key for metric in metrics for key in (*METRICS[metric], metric)]
        values = [value for row in rows for value in _logged(row, keys)]
        if values:
            summary[name] = _first_and_last(values)
    return summary


def _logged(row: Mapping[str, Any], keys: list[str]) -> list[float]:
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
