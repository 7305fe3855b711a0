"""Where the evidence about rewards goes: files beside the monitor's, and tables in the trackers."""

import logging
from pathlib import Path
from typing import Any

from trl_ext.callbacks._alert_log import write_alert
from trl_ext.callbacks._monitored import MonitoredTraining
from trl_ext.callbacks._trackers import Trackers
from trl_ext.callbacks._watched_rule import WatchedRule
from trl_ext.monitor.alert_book import AlertBook
from trl_ext.monitor.alerts import Alert
from trl_ext.monitor.files import ALERTS_FILE, LineFile, WriteWarning, replace_json
from trl_ext.monitor.rules.base import Finding, Verdict
from trl_ext.monitor.strict_json import to_strict_json
from trl_ext.rewards.reliability import ReliabilityReport

logger = logging.getLogger("trl_ext.rewards")

SAMPLES_FILE, REPORT_FILE = "reward_samples.jsonl", "reward_reliability.json"
_TABLE = "reward_reliability/samples"
_LOOKS = 2  # in a row that must agree before an alert below an error: one odd window is not a fault


class RewardAlerts:
    """Opens and closes one alert a finding. What a monitor of the same run tells already is not told again."""

    def __init__(self) -> None:
        self._book = AlertBook([], max_alerts=100)
        self._rules: dict[str, WatchedRule] = {}
        self._streaks: dict[str, int] = {}
        self._looks = 0

    @property
    def alerts(self) -> list[Alert]:
        """Oldest first; an open one has `closed is None`."""
        return [alert.copy() for alert in self._book.to_list()]

    def judge(self, report: ReliabilityReport, told: set[str]) -> list[Alert]:
        """The alerts that opened, rose in severity or closed.

        Args:
            told: rules of which another monitor has an open alert.
        """
        self._looks += 1
        news = []
        for name in report.findings:
            self._rules.setdefault(name, WatchedRule(name, close_after=3))
        for name, rule in self._rules.items():
            finding = report.findings.get(name)
            self._streaks[name] = self._streaks.get(name, 0) + 1 if finding is not None else 0
            verdict: Finding | Verdict = Verdict.HEALTHY
            if finding is not None:
                verdict = finding
                early = self._streaks[name] < _LOOKS and finding.severity < "error"
                if name not in self._book.open and (name in told or early):
                    continue
            alert = self._book.apply(rule, report.step, self._looks, verdict)
            if alert is not None:
                news.append(alert.copy())
        return news


class RewardFiles:
    """Appends to `alerts.jsonl` and `reward_samples.jsonl`, replaces `reward_reliability.json`. Main process only."""

    def __init__(self, folder: Path, session: int | None) -> None:
        self.folder = folder
        self._warn = WriteWarning(logger)
        self._alerts = LineFile(folder / ALERTS_FILE, self._warn)
        self._samples = LineFile(folder / SAMPLES_FILE, self._warn)
        self._session = self._alerts.session if session is None else session

    def alert(self, alert: Alert) -> None:
        write_alert(self._alerts, self._session, alert)

    def report(self, report: ReliabilityReport) -> None:
        replace_json(self.folder / REPORT_FILE, report.to_dict(), self._warn)
        for sample in report.samples:
            self._samples.append(to_strict_json({"seen_at": report.step, **sample}))

    def close(self) -> None:
        self._alerts.close()
        self._samples.close()


def monitors_of(handler: Any) -> list[MonitoredTraining]:
    callbacks = handler.callbacks if handler is not None else []
    return [callback for callback in callbacks if isinstance(callback, MonitoredTraining)]


def told_by(monitors: list[MonitoredTraining]) -> set[str]:
    """The rules of which a monitor has an open alert."""
    return {alert.rule for monitor in monitors for alert in monitor._run.engine.open_alerts}


def session_of(monitors: list[MonitoredTraining]) -> int | None:
    """Of the monitor that writes into the same folder, so that one run has one number."""
    files = [monitor._run._files for monitor in monitors if monitor._run._files is not None]
    return files[0].session if files else None


def show_samples(trackers: Trackers, report: ReliabilityReport) -> None:
    """The samples as a table in the trackers."""
    columns = ["kind", "reward", "prompt", "completion", "why"]
    rows = [[s["kind"], s["reward"], s["prompt"][-200:], s["completion"][:500], s["why"]] for s in report.samples]
    if rows:
        trackers.table(_TABLE, columns, rows, report.step)
