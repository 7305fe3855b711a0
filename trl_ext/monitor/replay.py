"""The monitor over a log that exists already."""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trl_ext.errors import UserError
from trl_ext.monitor.alerts import Alert, Severity
from trl_ext.monitor.engine import Engine
from trl_ext.monitor.files import FACTS_FILE
from trl_ext.monitor.log_files import Log
from trl_ext.monitor.metrics import METRICS, canonical_name
from trl_ext.monitor.rows import Layout
from trl_ext.monitor.trainer_kind import trainer_kind

_PROGRESS = {"epoch", "episode", "num_tokens", "episodes_per_second", "step_time"}
_FAMILIES = ("reward/", "rewards/", "logps/", "logits/")
_KEYS_NAMED = 12
# keyword arguments of `Engine`, as they are stored beside a log
REPLAYABLE = ("rules", "thresholds", "preset", "watch", "custom_rules", "window", "warmup_steps")


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


def engine_for(log: Log, options: Mapping[str, Any]) -> tuple[Engine, list[str]]:
    """An engine that judges as the monitor that wrote the log did, and the metrics that the user's own rules name.

    Args:
        options: keyword arguments of `Engine`; they come before those stored with the log.
    Raises:
        UserError: one of `options` makes no sense. Those stored are used where they do, and `log.notes` says so.
    """
    stored = {name: value for name, value in log.options.items() if name in REPLAYABLE}
    asked = {**stored, **options}
    try:
        engine = Engine(**asked)
    except Exception as error:  # nothing is known of what stands in a file
        engine = Engine(**options)
        log.notes.append(f"judged without the options in {FACTS_FILE}: {error}")
        asked = dict(options)
    if used := sorted(set(asked) - set(options)):
        log.notes.append(f"judged with the options of the run's own monitor: {', '.join(used)}")
    missing = log.options.get("not_stored")
    if missing and isinstance(missing, list):
        log.notes.append(f"not judged here, since a file cannot hold them: {', '.join(map(str, missing))}")
    rules = [rule for rule in asked.get("custom_rules") or () if isinstance(rule, Mapping)]
    return engine, [*(rule["metric"] for rule in rules), *(asked.get("watch") or ())]


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
    for step, logs, resumed, facts in log.rows:
        if resumed:
            engine.resumed()
        if facts:
            engine.set_facts(facts)
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
