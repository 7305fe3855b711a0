"""Reads the files of a run back: one history, however often the run was killed and resumed."""

import json
import math
import os
from pathlib import Path
from typing import Any

from trl_ext.monitor.alerts import Alert


def read_records(data: bytes) -> list[dict[str, Any]]:
    """The JSON objects among the lines; a broken line is what a killed run left."""
    records = []
    for line in data.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):  # also a line cut inside a character
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The rows of a `metrics.jsonl` in step order, with NaN where `nonfinite` says so (an infinity reads as NaN too).

    A run that was killed may have logged steps after its last checkpoint, and the resumed run logs them again: from the
    first step of a later session on, the rows of the earlier ones are dropped.

    Raises:
        OSError: no such file.
    """
    rows = [row for row in read_records(Path(path).read_bytes()) if isinstance(row.get("step"), int)]
    ends = _session_ends(rows)
    kept = [row for row in rows if row["step"] < ends[row.get("session", 0)]]
    for row in kept:
        row.update(dict.fromkeys(row.pop("nonfinite", ()), math.nan))
    return sorted(kept, key=lambda row: row["step"])


def read_alerts(path: str | os.PathLike[str]) -> list[Alert]:
    """The alerts of an `alerts.jsonl` as last reported, in the order they opened; none when there is no such file.

    What an earlier session said of steps that a later one logged again (see the `metrics.jsonl` beside it) is dropped.
    """
    path = Path(path)
    metrics = path.with_name("metrics.jsonl")
    rows = read_records(metrics.read_bytes()) if metrics.is_file() else []
    ends = _session_ends([row for row in rows if isinstance(row.get("step"), int)])
    latest: dict[tuple[str, int], Alert] = {}
    for record in read_records(path.read_bytes()) if path.is_file() else []:
        alert = Alert.from_dict(record)
        said_at = alert.step if alert.closed is None else alert.closed
        if said_at < ends.get(record.get("session", 0), math.inf):
            latest[alert.rule, alert.opened] = alert
    return sorted(latest.values(), key=lambda alert: alert.opened)


def _session_ends(rows: list[dict[str, Any]]) -> dict[int, float]:
    """For each session the first step that a later one logged, infinite for the last."""
    first: dict[int, int] = {}
    for row in rows:
        session = row.get("session", 0)
        first[session] = min(row["step"], first.get(session, row["step"]))
    return {s: min((step for later, step in first.items() if later > s), default=math.inf) for s in first}
