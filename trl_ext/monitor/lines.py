"""One line of `metrics.jsonl`."""

import json
from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter
from typing import Any

from trl_ext.monitor.rows import Layout, Row
from trl_ext.monitor.strict_json import to_strict_json

OWN_KEYS = ("step", "session")
# Twelve digits tell any two float32 apart and take half the time of all seventeen: most of a line is formatting
_FORMATS = {float: "%.12g", int: "%d"}


def metrics_line(row: Row, session: int) -> str:
    """Strict JSON: `step`, `session`, every scalar as logged and under its canonical name.

    A number has twelve significant digits at least, an integer all of its digits. `None` becomes `null`; NaN and
    infinities become `null` and are named in `nonfinite`.
    """
    if row.plain is not None:
        numbers, places, line = _formats(row.plain)
        return line % places((numbers % (row.step, session, *row.logged.values())).split())
    record: dict[str, Any] = {"step": row.step, "session": session}
    record.update(row.logged)
    record.update(row.metrics)
    record.update(dict.fromkeys(row.absent))
    record.update(row.nonfinite)
    record["step"], record["session"] = row.step, session
    return to_strict_json(record)


@lru_cache(maxsize=256)
def _formats(layout: Layout) -> tuple[str, Callable[[list[str]], tuple[str, ...]], str]:
    """A format of the numbers, each once; which of them goes to each place of the line; a format of the line.

    A metric stands there under two names, but is formatted once.
    """
    labels, sources = list(OWN_KEYS), [0, 1]
    for i, (key, name) in enumerate(zip(layout.keys, layout.names, strict=True), start=len(OWN_KEYS)):
        for label in [key] if name is None or name in layout.keys else [key, name]:
            if label not in OWN_KEYS:
                labels.append(label)
                sources.append(i)
    numbers = " ".join(["%d %d", *(_FORMATS[kind] for kind in layout.types)])
    line = ",".join(f"{json.dumps(label)}:".replace("%", "%%") + "%s" for label in labels)
    return numbers, itemgetter(*sources), "{" + line + "}"
