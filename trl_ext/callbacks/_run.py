"""One monitored run: the engine, the files and the summary, without the trainer's events."""

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from trl_ext.callbacks._alert_log import log_alert
from trl_ext.callbacks._history import MetricsHistory
from trl_ext.callbacks._ppo_view import PPOView
from trl_ext.callbacks._system_metrics import SystemMetrics
from trl_ext.callbacks._trackers import Trackers
from trl_ext.monitor.alerts import Alert, Severity
from trl_ext.monitor.engine import Engine
from trl_ext.monitor.files import ALERTS_FILE, METRICS_FILE, SUMMARY_FILE, RunFiles
from trl_ext.monitor.run_summary import RunSummary, flat_summary
from trl_ext.monitor.strict_json import to_strict_json
from trl_ext.ranks import text_of_any

logger = logging.getLogger("trl_ext.monitor")

_SHARED = 1000  # characters of a message, or an advice, that other processes are told
SUMMARIZED_AT_ONCE = 100  # news; a run with more waits for its next checkpoint, since the summary holds all alerts


class MonitoredRun:
    """Holds no reference to the callback, so that it can write the summary when that is gone.

    Args:
        engine: of this run.
        history_size: logs that `history` keeps.
        view: what the PPO view derives, `None` without it.
        on_alert: hears in the main process what is written to `alerts.jsonl`.
    """

    def __init__(
        self,
        engine: Engine,
        history_size: int,
        view: PPOView | None = None,
        on_alert: Callable[[Alert], Any] | None = None,
    ):
        self.engine = engine
        self.history = MetricsHistory(history_size)
        self.stopped: str | None = None
        self.alerts_open: dict[str, int] = {"alerts_open": 0}
        self._view = view
        self._on_alert = on_alert
        self._on_alert_failed = False
        self._completed = False
        self._notes: list[str] = []
        self._told = 0
        self._told_as: dict[str, tuple[int, Severity]] = {}  # by rule: its latest alert, and how severe
        self._totals = RunSummary()
        self._files: RunFiles | None = None
        self._trackers = Trackers()
        self._system: SystemMetrics | None = None
        self._keys: tuple[Any, ...] = ()  # of the latest log
        self._training = False  # whether that was one of training
        self._process = os.getpid()

    def start(
        self, folder: Path, replayable: dict[str, Any], system_metrics: bool, gpu_index: int | None, trackers: Trackers
    ) -> None:
        """For the main process; the others judge the same logs, write nothing, send nothing and measure nothing.

        Args:
            replayable: of `MonitorOptions.replayable`, for `facts.json`.
        """
        self._trackers = trackers
        self._files = RunFiles(folder)
        self._files.facts(self.engine.facts, replayable)
        self.write_summary()  # what an earlier run left here is not said of this one
        self._system = SystemMetrics(gpu_index) if system_metrics else None

    def observe(self, step: int, epoch: float | None, logs: Mapping[str, Any]) -> dict[str, float]:
        """Judges and records one log, and tells what is news. Returns the numbers that are to be added to the log: none
        to an evaluation's, which the trainer hands to its user."""
        extra: dict[str, float] = {}
        keys = tuple(logs)
        if keys != self._keys:
            self._keys, self._training = keys, is_training_log(keys)
        training = self._training
        if training:
            extra = self._view.derive(logs, keys) if self._view is not None else {}
            if self._system is not None:
                extra.update(self._system.latest)
        news = self.engine.observe(step, {**logs, **extra})
        row = self.engine.row
        assert row is not None
        self._totals.add(step, row.metrics)
        self.history.append(step, row.metrics)
        if training and self._view is not None:
            self._view.add(step, epoch, row.metrics)
        if self._files is not None:
            self._files.log(row)
        self._tell(news)
        return {**extra, **self.alerts_open} if training else {}

    def flush(self) -> None:
        """Tells what the patient rules say of the latest logs."""
        self._tell(self.engine.flush())

    def _tell(self, news: list[Alert]) -> None:
        if not news:
            return
        if self._files is not None:
            for alert in news:
                self._report(self._files, alert)
                self._notify(alert)
        self._count_open()
        self._told += len(news)
        if self._told <= SUMMARIZED_AT_ONCE:
            self.write_summary()

    def _notify(self, alert: Alert) -> None:
        if self._on_alert is None:
            return
        try:
            self._on_alert(alert.copy())  # what the user does to it is not done to the monitor
        except Exception:
            if not self._on_alert_failed:
                logger.exception("on_alert failed; training goes on.")
            self._on_alert_failed = True

    def _count_open(self) -> None:
        self.alerts_open = dict.fromkeys(self.alerts_open, 0)  # one that was above 0 goes back to 0
        for alert in self.engine.open_alerts:
            for name in ("alerts_open", f"alerts_open/{alert.severity}"):
                self.alerts_open[name] = self.alerts_open.get(name, 0) + 1

    def _report(self, files: RunFiles, alert: Alert) -> None:
        if alert.closed is not None:
            files.alert(alert, "recovered")
            log_alert(logger, alert)
            return
        before, self._told_as[alert.rule] = self._told_as.get(alert.rule), (alert.opened, alert.severity)
        again = before == (alert.opened, alert.severity)  # came back within a few logs: said once
        files.alert(alert, "reopened" if again else "opened" if alert.step == alert.opened else "raised")
        log_alert(logger, alert, again)
        if not again:
            self._trackers.alert(alert)

    def share_critical(self, args: TrainingArguments) -> tuple[Alert | None, int]:
        """What is critical now in any process, and in which; a collective. Those that did not see it take it over:
        files and screen are the main process's, and the reason of a stop stands there."""
        own = next((alert for alert in self.engine.open_alerts if alert.severity is Severity.CRITICAL), None)
        text, rank = text_of_any(None if own is None else _as_text(own), args)
        if rank == args.process_index or text is None:
            return own, rank
        try:
            found = Alert.from_dict(json.loads(text))
        except (ValueError, KeyError):  # of letters that take too much room
            return None, rank
        seen = replace(found, message=f"process {rank}: {found.message}")
        news = self.engine.adopt(seen)
        if news is not None:
            self._tell([news])
        return found, rank

    def conclude(self) -> None:
        """At the end of training: what the user named and never came. Logged once, and in the summary."""
        if self._files is not None and not self._files.closed:
            self._notes = self.engine.finish()
            for note in self._notes:
                logger.warning("%s", note)

    def summary(self) -> dict[str, Any]:
        """What `summary.json` holds."""
        alerts = [alert.to_dict() for alert in self.engine.alerts]
        names = {"metrics": METRICS_FILE, "alerts": ALERTS_FILE, "summary": SUMMARY_FILE}
        return {
            "completed": self._completed and self.stopped is None,
            "stopped": self.stopped,
            **self._totals.to_dict(),
            **(self._view.summary() if self._view is not None else {}),
            "alert_counts": {s.value: sum(alert["severity"] == s for alert in alerts) for s in Severity},
            "alerts": alerts,
            "notes": self._notes,
            "files": {k: str(self._files.folder / name) for k, name in names.items()} if self._files else {},
        }

    def finish(self, completed: bool) -> None:
        """Tells what is left to tell, writes the summary, closes the files, ends the thread. A second call does
        nothing, nor does one in a forked child, which inherits the exit handlers."""
        if os.getpid() != self._process:
            return
        if self._system is not None:
            self._system.stop()
        if self._files is not None and not self._files.closed:
            self._completed = completed
            self.flush()  # training may have raised
            self.write_summary()
            self._files.close()

    def send_summary(self, prefix: str) -> None:
        """To the trackers, once the run is over."""
        if self._files is not None and self._trackers:
            summary = self.summary()
            self._trackers.summary(prefix, flat_summary(summary), summary["last_step"])

    def write_summary(self) -> None:
        """Now and then, since training that raises has no end that a callback hears of."""
        if self._files is not None and not self._files.closed:
            self._files.summary(self.summary())

    def state_dict(self, step: int) -> dict[str, Any]:
        """Strict JSON."""
        state = {"step": step, "engine": self.engine.state_dict(), "totals": self._totals.to_dict()}
        if self._view is not None:
            state["view"] = self._view.state_dict()
        return json.loads(to_strict_json(state))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.engine.load_state_dict(state["engine"])
        self._totals.load(state["totals"])
        self._told_as = {alert.rule: (alert.opened, alert.severity) for alert in self.engine.alerts}
        if self._view is not None and "view" in state:
            self._view.load_state_dict(state["view"])
        self._count_open()


def _as_text(alert: Alert) -> str:
    """As much of it as the others need."""
    short = replace(alert, message=alert.message[:_SHARED], advice=alert.advice[:_SHARED], evidence={})
    return to_strict_json(short.to_dict())


def is_training_log(keys: tuple[Any, ...]) -> bool:
    """Whether a log is of training, neither of an evaluation nor the closing one."""
    return "train_loss" not in keys and not any(
        isinstance(key, str) and key.startswith(("eval_", "test_")) for key in keys
    )
