"""Detection without torch or TRL: the standard library only, so that it runs on a log file anywhere."""

from trl_ext.monitor.alerts import Alert, Severity
from trl_ext.monitor.engine import Engine
from trl_ext.monitor.files import RunFiles
from trl_ext.monitor.reading import read_alerts, read_metrics
from trl_ext.monitor.rules import RULES, Finding, Rule, Verdict

__all__ = [
    "RULES",
    "Alert",
    "Engine",
    "Finding",
    "Rule",
    "RunFiles",
    "Severity",
    "Verdict",
    "read_alerts",
    "read_metrics",
]
