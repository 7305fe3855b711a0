"""Reads the log of a run from W&B's offline files."""

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trl_ext.errors import UserError
from trl_ext.monitor.log_files import Log
from trl_ext.monitor.log_rows import STEP_KEYS, log_rows
from trl_ext.reporting.binary_records import CUT_OFF, open_file, parsed_messages

_HEADER, _HEADER_BYTES = b":W&B", 7
_BLOCK = 1 << 15  # bytes
_PART_HEADER = 7  # checksum (4), length (2), kind (1)
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def read_wandb_file(path: str | os.PathLike[str]) -> Log:
    """The history of a W&B run, from the `.wandb` file in its folder (`wandb/offline-run-.../`).

    Raises:
        UserError: it cannot be read, or wandb is not installed.
    """
    try:
        from wandb.proto import wandb_internal_pb2
    except ImportError as error:
        raise UserError(f"{path} is a file of W&B: pip install wandb to read it") from error
    notes: list[str] = []
    record_type = getattr(wandb_internal_pb2, "Record")  # noqa: B009 - made at run time, unknown to type checkers
    return Log(log_rows(_rows(Path(path), record_type, notes), notes), {}, notes)


def _rows(path: Path, record_type: Any, notes: list[str]) -> Iterator[dict[str, Any]]:
    for record in parsed_messages(_records(path, notes), record_type, notes):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            media = {
                item.nested_key[0] for item in items if len(item.nested_key) > 1 and item.nested_key[-1] == "_type"
            }
            own = [item for item in items if not item.nested_key or item.nested_key[0] not in media]
            read = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in own}
            row = {key: value for key, value in read.items() if not (isinstance(value, dict) and "_type" in value)}
            if not all(_is_aside(key) for key in row):
                yield row


def _is_aside(key: str) -> bool:
    """Steps and clocks, and the timings that TRL's trainers report by themselves: a row of those alone, or of a table
    beside them, is no log, and would count as one where rules count logs."""
    return key in STEP_KEYS or key.startswith(("_", "profiling/"))


def _records(path: Path, notes: list[str]) -> Iterator[bytes]:
    """LevelDB's log format, which W&B writes after a header of its own: a record in one part or in several, a part in
    one block, the end of a block that has no room for a part's header left empty."""
    with open_file(path) as file:
        if not file.read(_HEADER_BYTES).startswith(_HEADER):
            raise UserError(f"{path} is no W&B file")
        record = b""
        while True:
            left = _BLOCK - file.tell() % _BLOCK
            if left < _PART_HEADER:
                file.read(left)
            header = file.read(_PART_HEADER)
            if not header and not record:
                return
            length, kind = struct.unpack("<4xHB", header) if len(header) == _PART_HEADER else (0, 0)
            part = file.read(length)
            if len(part) < length or kind not in (_FULL, _FIRST, _MIDDLE, _LAST):
                notes.append(CUT_OFF)
                return
            record = part if kind in (_FULL, _FIRST) else record + part
            if kind in (_FULL, _LAST):
                yield record
                record = b""
