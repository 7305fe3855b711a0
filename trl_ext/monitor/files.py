"""Writes the files of a run: `metrics.jsonl` and `alerts.jsonl`, a line at a time, and `summary.json` at the end."""

import contextlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from trl_ext.monitor.alerts import Alert
from trl_ext.monitor.lines import metrics_line
from trl_ext.monitor.reading import read_records
from trl_ext.monitor.rows import Row
from trl_ext.monitor.strict_json import to_strict_json

logger = logging.getLogger(__name__)

METRICS_FILE, ALERTS_FILE, SUMMARY_FILE = "metrics.jsonl", "alerts.jsonl", "summary.json"
FACTS_FILE = "facts.json"
SESSIONS_KEPT = 50  # before the present one, in `facts.json`
_TAIL_BYTES = 1 << 16


class WriteWarning:
    """Says the first time that something cannot be written."""

    def __init__(self, logger: logging.Logger):
        self._logger = logger
        self._said = False

    def __call__(self, path: Path, error: OSError) -> None:
        if not self._said:
            self._said = True
            self._logger.warning("Cannot write %s (%s); training goes on, what cannot be written is lost.", path, error)


def replace_json(path: Path, content: dict[str, Any], on_error: Callable[[Path, OSError], None]) -> None:
    """Writes strict JSON in one move, so that a reader never sees half of it; never raises."""
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_text(json.dumps(json.loads(to_strict_json(content)), indent=2) + "\n")
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        on_error(path, error)


class LineFile:
    """Appends lines to a file, each in one write, and never raises.

    Unbuffered, so that a killed run leaves at most one broken line, its last; the next append starts on a fresh one.
    """

    def __init__(self, path: Path, on_error: Callable[[Path, OSError], None]):
        self._path = path
        self._on_error = on_error
        self._file: BinaryIO | None = None
        self._fresh = True
        self.session = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - held open for the whole run
            tail = _tail(path)
        except OSError as error:
            on_error(path, error)
            return
        if tail:
            self._fresh = tail.endswith(b"\n")
            sessions = [record.get("session", 0) for record in read_records(tail)]
            self.session = 1 + max((s for s in sessions if isinstance(s, int)), default=0)

    def append(self, line: str) -> None:
        self._open_again_if_deleted()
        if self._file is None:
            return
        data = (line if self._fresh else "\n" + line).encode() + b"\n"
        try:
            self._fresh = self._file.write(data) == len(data)
        except OSError as error:
            self._on_error(self._path, error)
            self._fresh = False

    def _open_again_if_deleted(self) -> None:
        """Somebody may delete the folder of a run that goes on: what is still written would be lost without a word."""
        if self._file is None or os.path.lexists(self._path):
            return
        self._file.close()
        self._file, self._fresh = None, True
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - held open for the rest of the run
        except OSError as error:
            self._on_error(self._path, error)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_facts(path: Path) -> dict[str, Any]:
    """What `RunFiles.facts` wrote; nothing where that cannot be read."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


class RunFiles:
    """Writes the files of one run into `folder`. The main process alone holds one.

    A line of `metrics.jsonl` is flat: `step`, `session`, every scalar as logged, and under its canonical name. A line
    of `alerts.jsonl` is an alert with `event` (`opened`, `raised`, `recovered`) and `session`. `session` is 0 for the
    first run in the folder and one more for each run that appends. Both are strict JSON: NaN is `null` and named in
    `nonfinite`. What cannot be written is lost after one warning; nothing here raises.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        self._warn = WriteWarning(logger)
        self.closed = False
        self._metrics = LineFile(self.folder / METRICS_FILE, self._warn)
        self._alerts = LineFile(self.folder / ALERTS_FILE, self._warn)
        self.session = max(self._metrics.session, self._alerts.session)

    def log(self, row: Row) -> None:
        """Appends one log."""
        self._metrics.append(metrics_line(row, self.session))

    def alert(self, alert: Alert, event: str) -> None:
        self._alerts.append(to_strict_json({"session": self.session, "event": event, **alert.to_dict()}))

    def facts(self, facts: dict[str, Any], options: dict[str, Any]) -> None:
        """Replaces `facts.json`: what was known of the run besides its logs (under `earlier` what was in the sessions
        before this one, whose rows a replay judges by that), and under `monitor` the options of its
        monitor, so that a replay judges alike."""
        earlier: dict[str, Any] = {}
        if self.session > 0:
            before = read_facts(self.folder / FACTS_FILE)
            before.pop("monitor", None)
            earlier = before.pop("earlier", {})
            if type(session := before.pop("session", None)) is int and isinstance(earlier, dict):
                earlier = dict([*earlier.items(), (str(session), before)][-SESSIONS_KEPT:])
        content = {**facts, "session": self.session, "earlier": earlier, "monitor": options}
        replace_json(self.folder / FACTS_FILE, content, self._warn)

    def summary(self, summary: dict[str, Any]) -> None:
        replace_json(self.folder / SUMMARY_FILE, summary, self._warn)

    def close(self) -> None:
        self.closed = True
        self._metrics.close()
        self._alerts.close()


def _tail(path: Path) -> bytes:
    """The last lines of a file, enough of them to hold a whole one; `b""` for what is empty or no regular file."""
    size = path.stat().st_size
    if size == 0 or not path.is_file():
        return b""
    with open(path, "rb") as file:
        file.seek(max(0, size - _TAIL_BYTES))
        return file.read()
