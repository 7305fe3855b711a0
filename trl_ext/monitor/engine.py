"""Feeds the rules and keeps one alert a root cause."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from trl_ext.errors import UserError
from trl_ext.monitor.alerts import Alert, Severity
from trl_ext.monitor.names import unknown_name
from trl_ext.monitor.rows import Row, read_row
from trl_ext.monitor.rules import RULES, Finding, Rule, Verdict
from trl_ext.monitor.thresholds import resolve_thresholds

logger = logging.getLogger(__name__)


class Engine:
    """The rules over one run.

    Args:
        rules: names or `Rule` instances; all rules by default.
        thresholds: changes to the defaults, see `thresholds.resolve_thresholds`.
        warmup_steps: logs during which rules that judge against the run's own history stay quiet (they learn).
        window: logs a rolling statistic remembers.
        max_alerts: beyond this many (more than there are rules) the oldest closed one is forgotten: constant memory.
    Raises:
        UserError: unknown rule or threshold (the message names the nearest), or a number that makes no sense.

    Attributes:
        alerts: oldest first; open ones have `closed is None`.
        row: the latest log as the rules saw it.
        severity: the worst verdict on the latest log itself, `None` when nothing is wrong now.
    """

    def __init__(
        self,
        rules: Iterable[str | Rule] | None = None,
        thresholds: Mapping[str, Any] | None = None,
        *,
        warmup_steps: int = 10,
        window: int = 64,
        max_alerts: int = 1000,
    ):
        for name, number, least in (("window", window, 8), ("warmup_steps", warmup_steps, 0)):
            if not isinstance(number, int) or number < least:
                raise UserError(f"{name} must be a whole number of at least {least}, not {number!r}")
        limits = resolve_thresholds(thresholds)
        self._rules: dict[str, Rule] = {}
        for rule in RULES if rules is None else [rules] if isinstance(rules, str) else rules:
            instance = rule if isinstance(rule, Rule) else _build(rule, limits, window)
            self._rules[instance.name] = instance
        self._warmup_steps = warmup_steps
        self._max_alerts = max_alerts
        self._logs = 0
        self._healthy_logs: dict[str, int] = {}
        self._disabled: set[str] = set()
        self._open: dict[str, Alert] = {}
        self.alerts: list[Alert] = []
        self.row: Row | None = None
        self.severity: Severity | None = None

    def observe(self, step: int, logs: Mapping[str, Any]) -> list[Alert]:
        """Judges one log, without changing it. Returns the alerts that opened, rose in severity or closed."""
        self.severity = None
        self.row = row = read_row(step, logs)
        if any(not name.startswith("eval/") for name in row.metrics):
            self._logs += 1
        changed = []
        for name, rule in self._rules.items():
            if name in self._disabled:
                continue
            try:
                verdict = rule.check(row)
            except Exception:
                self._disabled.add(name)
                logger.exception("Rule %s failed and is off for the rest of this run; training goes on.", name)
                continue
            if rule.statistical and self._logs <= self._warmup_steps:
                continue
            alert = self._apply(rule, step, verdict)
            if alert is not None:
                changed.append(alert)
        return changed

    def _apply(self, rule: Rule, step: int, verdict: Finding | Verdict) -> Alert | None:
        """The rule's alert if `verdict` is news about it."""
        alert = self._open.get(rule.name)
        if isinstance(verdict, Finding):
            self._healthy_logs[rule.name] = 0
            self.severity = max(self.severity or verdict.severity, verdict.severity)
            return self._raise(rule.name, step, alert, verdict)
        if alert is None or verdict is not Verdict.HEALTHY:
            return None
        self._healthy_logs[rule.name] += 1
        if self._healthy_logs[rule.name] < rule.close_after:
            return None
        alert.closed = step
        return self._open.pop(rule.name)

    def _raise(self, rule: str, step: int, alert: Alert | None, found: Finding) -> Alert | None:
        """Opens an alert, or updates the open one; returns it when that is news."""
        follow = {"logs": 1, "last_step": step, "last_value": found.value}
        news = {**vars(found), "step": step}
        if alert is None:
            alert = Alert(rule=rule, opened=step, **{**news, "evidence": {**found.evidence, **follow}})
            self._open[rule] = alert
            self.alerts.append(alert)
            if len(self.alerts) > self._max_alerts:
                del self.alerts[next(i for i, old in enumerate(self.alerts) if old.closed is not None)]
            return alert
        follow["logs"] = alert.evidence["logs"] + 1
        if found.severity <= alert.severity:
            alert.evidence.update(follow)
            return None
        for field, value in news.items():
            setattr(alert, field, value)
        alert.evidence = {**found.evidence, **follow}
        return alert

    def state_dict(self) -> dict[str, Any]:
        """JSON (an alert's value may be NaN: write it with `to_strict_json`)."""
        return {
            "logs": self._logs,
            "healthy_logs": dict(self._healthy_logs),
            "alerts": [alert.to_dict() for alert in self.alerts],
            "rules": {name: rule.state_dict() for name, rule in self._rules.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """A rule whose state does not fit (its options changed meanwhile) starts afresh, and the log says so."""
        self._logs = state["logs"]
        self._healthy_logs = dict(state["healthy_logs"])
        self.alerts = [Alert.from_dict(record) for record in state["alerts"]]
        self._open = {alert.rule: alert for alert in self.alerts if alert.closed is None}
        for name, rule in self._rules.items():
            if name not in state["rules"]:
                continue
            fresh = rule.state_dict()
            try:
                rule.load_state_dict(state["rules"][name])
            except (AttributeError, KeyError, TypeError, ValueError):
                rule.load_state_dict(fresh)
                logger.warning("The stored state of rule %s does not fit; it starts afresh.", name)


def _build(name: str, limits: Mapping[str, Mapping[str, float]], window: int) -> Rule:
    if not isinstance(name, str) or name not in RULES:
        raise unknown_name("rule", name, RULES)
    return RULES[name](limits.get(name, {}), window)
