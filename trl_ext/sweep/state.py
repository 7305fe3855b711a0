"""What a sweep has done: `sweep.jsonl` in its folder, a line an event, appended only.

The first line is the sweep itself, then for each job `started` (with its process) and `ended`. A job that started and
did not end was cut short with the sweep.
"""

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from trl_ext.errors import UserError
from trl_ext.monitor.files import LineFile
from trl_ext.monitor.reading import read_records
from trl_ext.monitor.strict_json import NUMBER, is_strict_json
from trl_ext.sweep.definition import Sweep

STATE_FILE = "sweep.jsonl"
_JOB = {"type": "integer", "minimum": 1}
_EVENT = Draft202012Validator({"type": "object", "oneOf": [
    {"properties": {"event": {"const": "sweep"}, "sweep": {"type": "object"}}, "required": ["event", "sweep"]},
    {"properties": {"event": {"const": "started"}, "job": _JOB, "pid": _JOB, "created": NUMBER,
                    "parameters": {"type": "object"}, "seed": {"type": ["integer", "null"]}},
     "required": ["event", "job", "parameters"]},
    {"properties": {"event": {"const": "ended"}, "job": _JOB, "status": {"type": "string"}, "note": {"type": "string"},
                    "seconds": NUMBER, "value": {**NUMBER, "type": ["number", "null"]}},
     "required": ["event", "job", "status", "note", "seconds", "value"]},
]})  # fmt: skip


class SweepState:
    """Attributes:
    ended: job -> its last `ended` event.
    started: job -> its last `started` event.
    """

    def __init__(self, sweep: Sweep):
        """Opens the folder's file, or begins it; one process at a time.

        Raises:
            UserError: another sweep is in the folder, one runs there now, its file is none, or it cannot be written.
        """
        self.folder = Path(sweep.output_dir)
        path = self.folder / STATE_FILE
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.folder / ".lock", "w")  # noqa: SIM115 - held as long as the sweep runs
            lock_folder(self._lock, self.folder, "sweep")
            events = _events(path)
        except OSError as error:
            raise UserError(f"cannot write into {self.folder}: {error.strerror}") from error
        self.ended = {event["job"]: event for event in events if event.get("event") == "ended"}
        self.started = {event["job"]: event for event in events if event.get("event") == "started"}
        self._file = LineFile(path, _cannot_write)
        definition = json.loads(json.dumps(sweep.to_dict()))
        known = [event["sweep"] for event in events if event.get("event") == "sweep"]
        if not known:
            self._append({"event": "sweep", "sweep": definition})
        elif known[0] != definition:
            differ = [name for name in definition if known[0].get(name) != definition[name]]
            raise UserError(
                f"{self.folder} holds another sweep, which differs in {', '.join(differ) or 'its keys'}: give another "
                "output_dir"
            )

    def start(self, job: int, **facts: Any) -> None:
        """A job runs now."""
        self.started[job] = {"event": "started", "job": job, "time": time.time(), **facts}
        self._append(self.started[job])

    def end(self, job: int, **facts: Any) -> None:
        """A job is over, in whatever way."""
        self.ended[job] = {"event": "ended", "job": job, "time": time.time(), **facts}
        self._append(self.ended[job])

    def close(self) -> None:
        self._file.close()
        self._lock.close()

    def _append(self, event: dict[str, Any]) -> None:
        self._file.append(json.dumps(event, allow_nan=False))


def _events(path: Path) -> list[dict[str, Any]]:
    """A line that was cut short by a kill is left out; what was never written by a sweep is not taken for one."""
    if not path.exists():
        return []
    events: list[dict[str, Any]] = []
    for line in path.read_bytes().splitlines():
        found = read_records(line)
        if not (found or _is_cut(line)) or not all(_EVENT.is_valid(each) and is_strict_json(each) for each in found):
            text = json.dumps(line.decode(errors="replace")[:80])[:80]
            raise UserError(
                f"{path} holds no events of a sweep in the line {text}: mend it, or give another output_dir"
            )
        events += found
    has_jobs = any(other.name.isdigit() for other in path.parent.iterdir())  # not after a kill in mid first line
    if has_jobs and not any(event["event"] == "sweep" for event in events):
        raise UserError(f"{path} does not say of which sweep the jobs beside it are: give another output_dir")
    return events


def _is_cut(line: bytes) -> bool:
    """The beginning of an event as `SweepState` writes it."""
    begin, text = '{"event": "', line.decode(errors="replace").strip()
    return begin.startswith(text) or (text.startswith(begin) and text.isascii() and text.isprintable())


def _cannot_write(path: Path, error: OSError) -> None:
    raise UserError(f"cannot write {path}: {error.strerror}") from error


def lock_folder(file: Any, folder: Path, what: str) -> None:
    """Released with the process, however it ends.

    Raises:
        UserError: another process holds it.
    """
    with contextlib.suppress(ImportError):  # not on Windows
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"a {what} runs in {folder} now: wait for it, or give another output_dir") from error
