"""One monitored run: the engine, the files and the summary, without the trainer's events."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trl_ext.callbacks._system_metrics import SystemMetrics
from trl_ext.monitor.alerts import Alert, Severity
from trl_ext.monitor.engine import Engine
from trl_ext.monitor.files import ALERTS_FILE, METRICS_FILE, SUMMARY_FILE, RunFiles
from trl_ext.monitor.run_summary import RunSummary
from trl_ext.monitor.strict_json import to_strict_json

logger = logging.getLogger("trl_ext.monitor")

_LEVELS = {
    Severity.INFO: logging.INFO, Severity.WARNING: logging.WARNING,
    Severity.ERROR: logging.ERROR, Severity.CRITICAL: logging.CRITICAL,
}  # fmt: skip


class MonitoredRun:
    """Holds no reference to the callback, so that it can write the summary when that is gone.

    Args:
        engine: of this run.
        system_metrics: whether to add memory to the metrics file.
    """

    def __init__(self, engine: Engine, system_metrics: bool):
        self.engine = engine
        self.stopped: str | None = None
        self._totals = RunSummary()
        self._files: RunFiles | None = None
        self._system = SystemMetrics() if system_metrics else None

    def open_files(self, folder: Path) -> None:
        """For the main process; the others judge the same logs and write nothing."""
        self._files = RunFiles(folder)

    def observe(self, step: int, logs: Mapping[str, Any]) -> list[Alert]:
        """Judges and records one log. Returns the alerts that opened, rose or closed."""
        news = self.engine.observe(step, logs)
        row = self.engine.row
        assert row is not None
        self._totals.add(row)
        if self._files is not None:
            self._files.log(row, self._system.sample() if self._system else None)
            for alert in news:
                self._report(self._files, alert)
        return news

    def _report(self, files: RunFiles, alert: Alert) -> None:
        if alert.closed is not None:
            files.alert(alert, "recovered")
            logger.info("%s (step %d) is gone since step %d.", alert.rule, alert.opened, alert.closed)
            return
        files.alert(alert, "opened" if alert.step == alert.opened else "raised")
        logger.log(
            _LEVELS[alert.severity], "[%s] %s at step %d: %s. What to do: %s",
            alert.severity, alert.rule, alert.step, alert.message, alert.advice,
        )  # fmt: skip

    def note_stop(self, step: int) -> str:
        """Why this run is being stopped; the summary says it too."""
        critical = [a for a in self.engine.alerts if a.severity is Severity.CRITICAL and a.closed is None]
        what = f"{critical[0].rule}: {critical[0].message}" if critical else "another process saw a critical fault"
        self.stopped = f"stopped at step {step} by on_critical='stop'. {what}"
        return self.stopped

    def summary(self, completed: bool = False) -> dict[str, Any]:
        """What `summary.json` holds."""
        alerts = [alert.to_dict() for alert in self.engine.alerts]
        names = {"metrics": METRICS_FILE, "alerts": ALERTS_FILE, "summary": SUMMARY_FILE}
        return {
            "completed": completed and self.stopped is None,
            "stopped": self.stopped,
            **self._totals.to_dict(),
            "alert_counts": {s.value: sum(alert["severity"] == s for alert in alerts) for s in Severity},
            "alerts": alerts,
            "files": {k: str(self._files.folder / name) for k, name in names.items()} if self._files else {},
        }

    def finish(self, completed: bool) -> None:
        """Writes the summary and closes the files; a second call does nothing."""
        if self._files is not None and not self._files.closed:
            self._files.summary(self.summary(completed))
            self._files.close()

    def state_dict(self, step: int) -> dict[str, Any]:
        """Strict JSON."""
        state = {"step": step, "engine": self.engine.state_dict(), "totals": self._totals.to_dict()}
        return json.loads(to_strict_json(state))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.engine.load_state_dict(state["engine"])
        self._totals.load(state["totals"])
