"""The value of a run: the mean of a metric over the last tenth of its logs."""

import math
from pathlib import Path
from typing import NamedTuple

from trl_ext.errors import UserError
from trl_ext.monitor.rows import metric_value
from trl_ext.reporting.log_sources import open_log

_KEYS_NAMED = 12


class Value(NamedTuple):
    """`value` is `None` where there is none, and `note` says why."""

    value: float | None
    note: str = ""


def value_of(folder: Path, metric: str) -> Value:
    """From the logs that a run left in `folder`: `metrics.jsonl` of the monitor, or else what its trainer wrote."""
    try:
        rows = list(open_log(folder).rows)
    except (UserError, OSError) as error:
        return Value(None, f"no {metric}: {error}")
    values = [value for row in rows if (value := metric_value(metric, row.step, row.logs)) is not None]
    if not values:
        keys = sorted({str(key) for row in rows for key in row.logs})
        more = f" and {len(keys) - _KEYS_NAMED} more" if len(keys) > _KEYS_NAMED else ""
        return Value(None, f"no {metric} was logged; there are {', '.join(keys[:_KEYS_NAMED])}{more}")
    last = values[-max(len(values) // 10, 1) :]
    mean = math.fsum(last) / len(last) if all(map(math.isfinite, last)) else math.nan
    return Value(mean) if math.isfinite(mean) else Value(None, f"{metric} is not finite at the end")
