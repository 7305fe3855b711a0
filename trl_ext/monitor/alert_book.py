"""Keeps one alert a root cause: opened, raised, closed, and open again when it comes back soon."""

from collections.abc import Mapping
from typing import Any

from trl_ext.monitor.alerts import Alert, Severity
from trl_ext.monitor.rules import Finding, Rule, Verdict

_REOPEN_WITHIN = 10  # logs: what comes back sooner is the same trouble, not another


class AlertBook:
    """The alerts of a run.

    Args:
        order: of the rules' names, for alerts of one step.
        max_alerts: beyond this many the oldest closed one is forgotten.

    Attributes:
        open: those that are, by rule.
        severity: the worst finding since it was last set to `None`.
    """

    def __init__(self, order: list[str], max_alerts: int):
        self._order = {name: i for i, name in enumerate(order)}
        self._max_alerts = max_alerts
        self._alerts: list[Alert] = []
        self._latest: dict[str, Alert] = {}  # by rule
        self._healthy_logs: dict[str, int] = {}
        self._closed_at: dict[str, int] = {}  # count of logs, by rule
        self.open: dict[str, Alert] = {}
        self.severity: Severity | None = None

    def to_list(self) -> list[Alert]:
        """Oldest first."""
        return sorted(self._alerts, key=lambda alert: (alert.opened, self._order.get(alert.rule, 0)))

    def apply(self, rule: Rule, step: int, logs: int, verdict: Finding | Verdict) -> Alert | None:
        """The rule's alert if `verdict` of a log (the training log number `logs`, at `step`) is news about it."""
        alert = self.open.get(rule.name)
        if isinstance(verdict, Finding):
            if alert is None and self._explained(rule, step, verdict):
                return None
            self._healthy_logs[rule.name] = 0
            if self.severity is None or verdict.severity > self.severity:
                self.severity = verdict.severity
            if alert is None and (alert := self._reopened(rule.name, logs)) is not None:
                self._raise(rule.name, step, alert, verdict)
                alert.step = step
                return alert
            return self._raise(rule.name, step, alert, verdict)
        if alert is None:
            return None
        self._healthy_logs[rule.name] = self._healthy_logs.get(rule.name, 0) + 1
        if self._healthy_logs[rule.name] < rule.close_after:
            return None
        alert.closed = step
        self._closed_at[rule.name] = logs
        return self.open.pop(rule.name)

    def adopt(self, alert: Alert) -> Alert | None:
        """Opens an alert that another process found, or raises the one that is open; None where that is no news."""
        own = self.open.get(alert.rule)
        if own is not None:
            if alert.severity <= own.severity:
                return None
            for field in ("severity", "step", "metric", "value", "message", "advice"):
                setattr(own, field, getattr(alert, field))
            return own
        self.open[alert.rule] = self._latest[alert.rule] = alert
        self._healthy_logs[alert.rule] = 0
        self._alerts.append(alert)
        return alert

    def _explained(self, rule: Rule, step: int, found: Finding) -> bool:
        """Whether the alert of a cause, open at that step, says it already."""
        causes = (self._latest[cause] for cause in rule.explained_by if cause in self._latest)
        return any(
            cause.opened <= step and (cause.closed is None or cause.closed > step) and found.severity <= cause.severity
            for cause in causes
        )

    def _reopened(self, rule: str, logs: int) -> Alert | None:
        """The alert of a rule that closed only lately, open again: trouble that comes and goes is one trouble."""
        if logs - self._closed_at.get(rule, -_REOPEN_WITHIN) >= _REOPEN_WITHIN or rule not in self._latest:
            return None
        alert = self.open[rule] = self._latest[rule]
        alert.closed = None
        return alert

    def _raise(self, rule: str, step: int, alert: Alert | None, found: Finding) -> Alert | None:
        """Opens an alert, or updates the open one; returns it when that is news."""
        follow = {"logs": 1, "last_step": step, "last_value": found.value}
        news = {**vars(found), "step": step}
        if alert is None:
            alert = Alert(rule=rule, opened=step, **{**news, "evidence": {**found.evidence, **follow}})
            self.open[rule] = self._latest[rule] = alert
            self._alerts.append(alert)
            if len(self._alerts) > self._max_alerts:
                del self._alerts[next(i for i, old in enumerate(self._alerts) if old.closed is not None)]
            return alert
        follow["logs"] = alert.evidence.get("logs", 0) + 1
        if found.severity <= alert.severity:
            alert.evidence.update(follow)
            return None
        for field, value in news.items():
            setattr(alert, field, value)
        alert.evidence = {**found.evidence, **follow}
        return alert

    def state_dict(self) -> dict[str, Any]:
        return {
            "alerts": [alert.to_dict() for alert in self.to_list()],
            "healthy_logs": dict(self._healthy_logs),
            "closed_at": dict(self._closed_at),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._alerts = [Alert.from_dict(record) for record in state["alerts"]]
        self._latest = {alert.rule: alert for alert in self._alerts}
        self._healthy_logs = {rule: int(logs) for rule, logs in state["healthy_logs"].items()}
        self._closed_at = {rule: int(logs) for rule, logs in state.get("closed_at", {}).items()}
        self.open.clear()
        self.open.update({alert.rule: alert for alert in self._alerts if alert.closed is None})
