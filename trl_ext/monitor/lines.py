"""One line of `metrics.jsonl`."""

import json
from functools import lru_cache
from typing import Any

from trl_ext.monitor.metrics import canonical_names
from trl_ext.monitor.rows import Row
from trl_ext.monitor.strict_json import to_strict_json

OWN_KEYS = ("step", "session")


def metrics_line(row: Row, session: int, extra: dict[str, float]) -> str:
    """Strict JSON: `step`, `session`, every scalar as logged and under its canonical name, then `extra`.

    `None` becomes `null`; NaN and infinities become `null` and are named in `nonfinite`.
    """
    if row.plain:
        # Most of the time goes into formatting floats, so that of two names is formatted once (json uses repr, too).
        numbers = list(map(repr, row.logged.values()))
        labels, sources = _layout(tuple(row.logged))
        parts = [""] * (2 * len(labels))
        parts[::2] = labels
        parts[1::2] = [numbers[source] for source in sources]
        more = "".join(f",{json.dumps(key)}:{value!r}" for key, value in extra.items())
        return f'{{"step":{row.step},"session":{session}{"".join(parts)}{more}}}'
    line: dict[str, Any] = {"step": row.step, "session": session}
    line.update(row.logged)
    line.update(row.metrics)
    line.update(dict.fromkeys(row.absent))
    line.update(row.nonfinite)
    line.update(extra)
    line["step"], line["session"] = row.step, session
    return to_strict_json(line)


@lru_cache(maxsize=256)
def _layout(keys: tuple[str, ...]) -> tuple[list[str], list[int]]:
    """What stands before each number of a line (`,"kl_per_sequence":`), and which of `keys` the number belongs to."""
    labels, sources = [], []
    for i, (key, name) in enumerate(zip(keys, canonical_names(keys), strict=True)):
        for label in [key] if name is None or name in keys else [key, name]:
            if label not in OWN_KEYS:
                labels.append(f",{json.dumps(label)}:")
                sources.append(i)
    return labels, sources
