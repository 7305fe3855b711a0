"""The monitor over a log that exists already."""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from trl_ext.errors import UserError
from trl_ext.monitor.alerts import Alert, Severity
from trl_ext.monitor.engine import Engine
from trl_ext.monitor.log_files import Log
from trl_ext.monitor.metrics import METRICS, canonical_name
from trl_ext.monitor.rows import Layout
from trl_ext.monitor.trainer_kind import trainer_kind

_PROGRESS = {"epoch", "episode", "num_tokens", "episodes_per_second", "step_time"}
_FAMILIES = ("reward/", "rewards/", "logps/", "logits/")
_KEYS_NAMED = 12


@dataclass
class Replay:
    """What the monitor says of one log.

    Attributes:
        path: as given.
        rows: logs judged.
        trainer: of `trainer_kind`.
        alerts: oldest first.
        notes: what else a reader should know, one line each.
    """

    path: str
    rows: int
    trainer: str | None
    alerts: list[Alert]
    notes: list[str] = field(default_factory=list)

    @property
    def severity(self) -> Severity | None:
        """The worst of all alerts, closed ones too; `None` when there is none."""
        return max((alert.severity for alert in self.alerts), default=None)

    def to_dict(self) -> dict[str, Any]:
        """For strict JSON: a value that is not finite is `None`."""
        return {
            "path": self.path, "rows": self.rows, "trainer": self.trainer,
            "alerts": [_alert(alert) for alert in self.alerts], "notes": self.notes,
        }  # fmt: skip


def replay(log: Log, engine: Engine, path: str | os.PathLike[str], wanted: Iterable[str] = ()) -> Replay:
    """Judges a log with a fresh engine, row by row, as the callbacks do while a run goes on.

    Args:
        path: where it came from, for the result and for errors.
        wanted: metrics that the user's own rules name: a log of those alone is worth judging, too.
    Raises:
        UserError: the log holds no row, or nothing that a rule could judge.
        OSError: reading failed half way.
    """
    engine.set_facts(log.facts)
    rows, layouts, numbers = 0, set[Layout](), False
    for step, logs, resumed in log.rows:
        if resumed:
            engine.resumed()
        engine.observe(step, logs)
        rows += 1
        assert engine.row is not None
        layouts.add(engine.row.layout)
        numbers = numbers or bool(engine.row.metrics or engine.row.nonfinite)
    if rows and not numbers:
        raise UserError(f"{path} holds no number in {rows} rows: are decimals written with a comma?")
    keys = {key for layout in layouts for key in layout.keys if isinstance(key, str)}
    metrics = {name for layout in layouts for name in layout.names if name is not None}
    if not rows:
        raise UserError("; ".join([f"{path} holds no log of a run", *log.notes]))
    if metrics.isdisjoint(map(canonical_name, wanted)) and not any(map(_is_known, metrics)):
        some = sorted(keys)[:_KEYS_NAMED]
        more = f" and {len(keys) - len(some)} more" if len(keys) > len(some) else ""
        raise UserError(f"{path} holds no metric of a TRL trainer, only {', '.join(some) or 'empty rows'}{more}")
    return Replay(str(path), rows, trainer_kind(keys), engine.alerts, [*log.notes, *engine.finish()])


def _is_known(name: str) -> bool:
    """Whether a canonical name says how a run is going."""
    name = name.removeprefix("eval/")
    return name not in _PROGRESS and (name in METRICS or name.startswith(_FAMILIES))


def _alert(alert: Alert) -> dict[str, Any]:
    return {
        "step": alert.step, "rule": alert.rule, "severity": alert.severity.value, "metric": alert.metric,
        "value": alert.value if math.isfinite(alert.value) else None, "message": alert.message, "advice": alert.advice,
        "opened": alert.opened, "closed": alert.closed,
    }  # fmt: skip
