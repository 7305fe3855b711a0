"""Judges saved checkpoints one after the other, in a thread of its own."""

import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trl_ext.callbacks._alert_log import log_alert, write_alert
from trl_ext.callbacks._last_healthy import LastHealthy
from trl_ext.callbacks._watched_rule import WatchedRule
from trl_ext.checkpoints.errors import UnreadableError
from trl_ext.checkpoints.health.finding import HealthFinding
from trl_ext.checkpoints.health.judging import CheckpointHealth, judge
from trl_ext.checkpoints.reader import Checkpoint, open_checkpoint
from trl_ext.checkpoints.reference import find_reference
from trl_ext.checkpoints.trend import Point, Trend
from trl_ext.errors import UserError
from trl_ext.monitor.alert_book import AlertBook
from trl_ext.monitor.alerts import Alert, Severity
from trl_ext.monitor.files import ALERTS_FILE, LineFile, WriteWarning
from trl_ext.monitor.rules.base import Finding, Verdict
from trl_ext.monitor.strict_json import to_strict_json

logger = logging.getLogger("trl_ext.checkpoints")

_KEPT_WAITING = 16
HEALTH_FILE, KEPT_FOLDER = "checkpoint_health.jsonl", "last_healthy"


class CheckpointJudge:
    """
    Args:
        folder: of the files.
        session: number of the run in `alerts.jsonl`; its own by default.
        reference: the base model, as a path or a hub id.
        keep: whether the last healthy checkpoint is kept.
        on_alert: hears of each alert that opened, rose or closed, in the judge's thread.
    """

    def __init__(
        self,
        folder: Path,
        session: int | None,
        reference: str | None,
        keep: bool,
        on_alert: Callable[[Alert], Any] | None,
    ) -> None:
        self.folder = folder
        self.critical: str | None = None
        self.latest: dict[str, float] = {}
        self.kept: Path | None = None
        self._reference_name, self._reference = reference, None  # type: str | None, Checkpoint | None
        self._last_healthy = LastHealthy(folder / KEPT_FOLDER) if keep else None
        self._on_alert, self._on_alert_failed = on_alert, False
        self._warn = WriteWarning(logger)
        self._alert_file = LineFile(folder / ALERTS_FILE, self._warn)
        self._health_file = LineFile(folder / HEALTH_FILE, self._warn)
        own = max(self._alert_file.session, self._health_file.session)
        self._session = own if session is None else session
        self._book = AlertBook([], max_alerts=100)
        self._rules: dict[str, WatchedRule] = {}
        self._lock = threading.Lock()
        self._trend = Trend()
        self._looks = 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-health")
        self._waiting: list[Future] = []
        self._failed = False

    @property
    def alerts(self) -> list[Alert]:
        with self._lock:
            return [alert.copy() for alert in self._book.to_list()]

    @property
    def busy(self) -> bool:
        return any(not future.done() for future in self._waiting)

    def submit(self, step: int, path: Path) -> None:
        """Judges it as soon as those before are done. A run that saves faster than checkpoints can be read must not
        gather them: one waits, or, where the last healthy one is to be kept, a few, since they are safe meanwhile."""
        self._waiting = [future for future in self._waiting if not future.done()]
        if len(self._waiting) > (_KEPT_WAITING if self._last_healthy else 1):
            oldest = next((future for future in self._waiting if future.cancel()), None)
            if oldest is not None:
                logger.info("A checkpoint is not judged: later ones were saved before its turn came.")
        safe = self._take(path)
        future = self._pool.submit(self._work, step, path, safe)
        if safe is not None:
            future.add_done_callback(lambda done: self._forget(safe) if done.cancelled() else None)
        self._waiting.append(future)

    def _take(self, path: Path) -> Path | None:
        try:
            return None if self._last_healthy is None else self._last_healthy.take(path)
        except OSError as error:
            self._warn(path, error)
            return None

    def _forget(self, safe: Path) -> None:
        if self._last_healthy is not None:
            self._last_healthy.drop(safe)

    def wait(self) -> None:
        """Until the last one is judged."""
        for future in self._waiting:
            with contextlib.suppress(CancelledError):
                future.result()

    def close(self) -> None:
        self.wait()
        self._pool.shutdown()
        if self._last_healthy is not None:
            self._last_healthy.close()
        self._alert_file.close()
        self._health_file.close()

    def _work(self, step: int, path: Path, safe: Path | None) -> None:
        try:
            self._judge(step, path, safe)
        except UnreadableError as error:
            logger.info("%s is gone before it could be judged: %s", path.name, error)
        except OSError as error:
            self._warn(path, error)
        except Exception:
            if not self._failed:
                logger.exception("%s could not be judged; training goes on.", path.name)
            self._failed = True
        finally:
            if safe is not None:
                self._forget(safe)  # unless it was kept, and has moved

    def _judge(self, step: int, path: Path, safe: Path | None) -> None:
        # one thread: training needs the others
        health = judge(safe or path, self._reference_checkpoint(), workers=1)
        if safe is None and not path.is_dir():
            logger.info("%s was deleted while it was judged.", path.name)
            return
        point = self._trend.add(step, health)
        findings = [*health.findings, *self._trend.findings()]
        self._tell(step, path, health, findings)
        self._write(step, path, health, point, findings)
        is_healthy = all(finding.severity < Severity.ERROR for finding in findings)
        if self._last_healthy is not None and safe is not None and is_healthy:
            self.kept = self._last_healthy.keep(safe)
        worst = next((finding for finding in health.findings if finding.severity is Severity.CRITICAL), None)
        if worst is not None:
            self.critical = f"{path.name} is unusable, {worst.rule}: {worst.message}"

    def _reference_checkpoint(self) -> Checkpoint | None:
        """Opened here, since the hub may take its time."""
        if self._reference_name is not None:
            name, self._reference_name = self._reference_name, None
            try:
                self._reference = open_checkpoint(find_reference(name))
            except UserError as error:
                logger.warning("Checkpoints are judged without their reference: %s", error)
        return self._reference

    def _tell(self, step: int, path: Path, health: CheckpointHealth, findings: list[HealthFinding]) -> None:
        worst: dict[str, HealthFinding] = {}
        for finding in findings:
            if finding.severity > Severity.INFO and (
                finding.rule not in worst or finding.severity > worst[finding.rule].severity
            ):
                worst[finding.rule] = finding
        self._looks += 1
        for name in worst:
            self._rules.setdefault(name, WatchedRule(name, close_after=1))
        for name, rule in self._rules.items():
            found = worst.get(name)
            if found is None and health.severity is Severity.CRITICAL:
                continue  # weights that are NaN, or not there, say nothing of what was wrong with them before
            verdict: Finding | Verdict = Verdict.HEALTHY
            if found is not None:
                evidence = {"checkpoint": str(path), "tensor": found.tensor, **found.numbers}
                message = f"{path.name}: {found.message}"
                verdict = Finding(
                    found.severity, "checkpoint_health/score", health.score, message, found.advice, evidence
                )
            with self._lock:
                alert = self._book.apply(rule, step, self._looks, verdict)
                alert = None if alert is None else alert.copy()
            if alert is not None:
                self._say(alert)

    def _say(self, alert: Alert) -> None:
        write_alert(self._alert_file, self._session, alert)
        log_alert(logger, alert)
        if self._on_alert is None:
            return
        try:
            self._on_alert(alert)
        except Exception:
            if not self._on_alert_failed:
                logger.exception("on_alert failed; training goes on.")
            self._on_alert_failed = True

    def _write(
        self, step: int, path: Path, health: CheckpointHealth, point: Point, findings: list[HealthFinding]
    ) -> None:
        latest = {"checkpoint_health/score": health.score}
        if point.previous is not None and point.first is not None:
            latest["checkpoint_health/drift_previous"] = point.previous.relative
            latest["checkpoint_health/drift_first"] = point.first.relative
        self.latest = latest
        self._health_file.append(
            to_strict_json(
                {
                    "session": self._session,
                    "step": step,
                    "checkpoint": str(path),
                    "score": health.score,
                    "status": health.status,
                    "drift_previous": latest.get("checkpoint_health/drift_previous"),
                    "drift_first": latest.get("checkpoint_health/drift_first"),
                    "norm": health.whole.norm,
                    "layers": {name: drift.relative for name, drift in point.layers.items()},
                    "findings": [finding.to_dict() for finding in findings],
                }
            )
        )
