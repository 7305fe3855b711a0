"""Reads the log of a run from a text file: `trainer_state.json`, JSON Lines or CSV."""

import io
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from trl_ext.errors import UserError
from trl_ext.monitor.files import FACTS_FILE, read_facts
from trl_ext.monitor.log_lines import csv_records, parsed
from trl_ext.monitor.log_rows import LogRow, log_rows, session_ends

_OWN_LINE = re.compile(rb'\{"step":(\d+),"session":(\d+)[,}]')


@dataclass
class Log:
    """A log, read while it is iterated.

    Attributes:
        rows: in the order they were logged; one pass.
        facts: what the file says of the trainer's options, for `Engine.set_facts`.
        notes: lines for the reader of the result (what was skipped, say); complete after the last row.
        options: of the monitor that wrote it, where one did; for `replay.engine_for`.
    """

    rows: Iterable[LogRow]
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)


def read_log(path: str | os.PathLike[str]) -> Log:
    """Opens a log; its content tells the format. JSON Lines and CSV are streamed: constant memory.

    JSON Lines: our `metrics.jsonl`, a dictionary of logged keys a line, or `{"step":, "logs": {...}}`; `NaN` and
    `Infinity` are read. CSV: one column a metric, an empty cell is a missing one. A broken line is skipped and noted.

    Raises:
        UserError: it cannot be read, is empty, or is none of these.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115 - a stream: closed after the last row
        head = file.peek(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    if not head or b"\0" in head:
        file.close()
        wanted = "a trainer_state.json, a JSON Lines or CSV file, or the folder of a run"
        raise UserError(f"{path} is {'no text' if head else 'empty'}: give {wanted}")
    notes: list[str] = []
    if head[:1] not in b"{[":
        return Log(log_rows(csv_records(_lines(file), path, notes), notes), {}, notes)
    return _json_log(path, file, notes)


def _json_log(path: str | os.PathLike[str], file: BinaryIO, notes: list[str]) -> Log:
    lines = _lines(file)
    first = next((line for line in lines if line.strip()), "")
    value = _json(first)
    opens = first.lstrip()[:1] == "[" or first.strip().endswith(("{", "["))
    if value is None and opens:  # a document over many lines
        value = _json(first + "".join(lines))
        if value is None:
            raise UserError(f"{path} is no complete JSON: cut off while it was written, perhaps")
        value = value if isinstance(value, list) or "log_history" in value else [value]
    if isinstance(value, dict) and isinstance(value.get("log_history"), list):
        file.close()
        return Log(log_rows(_objects(value["log_history"], notes), notes), _facts(value), notes)
    if isinstance(value, list):
        file.close()
        return Log(log_rows(_objects(value, notes), notes), {}, notes)
    own = isinstance(value, dict) and "session" in value
    ends = _session_ends(Path(path)) if own else None
    facts = read_facts(Path(path).with_name(FACTS_FILE)) if own else {}
    options, sessions = facts.pop("monitor", {}), _by_session(facts)
    rows = log_rows(parsed(itertools.chain([first], lines), _object, notes), notes, ends, sessions)
    known = sessions[min(sessions)] if sessions else facts
    return Log(rows, known, notes, options if isinstance(options, dict) else {})


def _lines(file: BinaryIO) -> Iterator[str]:
    # a byte that is no UTF-8 breaks its line alone
    with io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="\n") as text:
        yield from text


def _json(text: str) -> Any:
    """`None` for what is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _object(line: str) -> dict[str, Any] | None:
    value = _json(line)
    return value if isinstance(value, dict) else None


def _objects(values: list[Any], notes: list[str]) -> Iterator[dict[str, Any]]:
    return parsed(values, lambda value: value if isinstance(value, dict) else None, notes)


def _facts(state: Mapping[str, Any]) -> dict[str, Any]:
    """What a `trainer_state.json` says of the trainer's options."""
    return {
        name: value for name in ("max_steps", "logging_steps") if type(value := state.get(name)) is int and value > 0
    }


def _by_session(facts: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The facts of each session that has some; `facts` keeps none of those before it."""
    earlier, session = facts.pop("earlier", {}), facts.pop("session", None)
    sessions = {} if type(session) is not int else {session: facts}
    if sessions and isinstance(earlier, dict):
        sessions.update({int(n): of for n, of in earlier.items() if n.isdigit() and isinstance(of, dict)})
    return sessions


def _session_ends(path: Path) -> dict[int, float]:
    """Where each session of our own file ends, from a first pass over it; nowhere when it cannot be read twice."""
    if not path.is_file():
        return {}
    first: dict[int, int] = {}
    with open(path, "rb") as file:
        for line in file:
            if found := _OWN_LINE.match(line):
                step, session = map(int, found.groups())
                first[session] = min(step, first.get(session, step))
    return session_ends(first)
