"""Reads the log of a run from TensorBoard's event files."""

import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from trl_ext.errors import UserError
from trl_ext.monitor.log_files import Log
from trl_ext.monitor.log_rows import log_rows, session_ends
from trl_ext.reporting.binary_records import CUT_OFF, open_file, parsed_messages

_LONGEST_RECORD = 1 << 30  # bytes; a broken length could ask for all of the memory
_FLOATS = (1, 2)  # DT_FLOAT and DT_DOUBLE of TensorFlow


def read_event_files(paths: Iterable[str | os.PathLike[str]]) -> Log:
    """The scalars in the event files of one run, oldest file first. Each further one is the run resumed: what it logs
    again replaces what the earlier ones said.

    Raises:
        UserError: a file cannot be read, or tensorboard is not installed.
    """
    files = [Path(path) for path in paths]
    try:
        from tensorboard.compat.proto.event_pb2 import Event
    except ImportError as error:
        raise UserError(f"{files[0]} is an event file of TensorBoard: pip install tensorboard to read it") from error
    first_rows = {session: next(_rows(path, Event, []), None) for session, path in enumerate(files)}
    ends = session_ends({session: row["step"] for session, row in first_rows.items() if row is not None})
    notes: list[str] = []
    records = ({"session": session, **row} for session, path in enumerate(files) for row in _rows(path, Event, notes))
    return Log(log_rows(records, notes, ends), {}, notes)


def _rows(path: Path, event_type: Any, notes: list[str]) -> Iterator[dict[str, Any]]:
    """The scalars of one log each: written one after the other, for one step, of training or of evaluation."""
    row: dict[str, Any] = {}
    evaluation = False
    for event in parsed_messages(_records(path, notes), event_type, notes):
        for value in event.summary.value:
            number = _scalar(value)
            if number is None:
                continue
            of_evaluation = value.tag.startswith("eval")
            if row and (row["step"] != event.step or value.tag in row or of_evaluation != evaluation):
                yield row
                row = {}
            evaluation = of_evaluation
            row["step"] = event.step
            row[value.tag] = number
    if row:
        yield row


def _scalar(value: Any) -> float | None:
    kind = value.WhichOneof("value")
    if kind == "simple_value":  # of torch's writer
        return value.simple_value
    if kind == "tensor" and value.tensor.dtype in _FLOATS and not value.tensor.tensor_shape.dim:  # of TensorFlow 2
        from tensorboard.util.tensor_util import make_ndarray

        return float(make_ndarray(value.tensor))
    return None


def _records(path: Path, notes: list[str]) -> Iterator[bytes]:
    """TFRecord: length (8 bytes), its checksum (4), the record, its checksum (4)."""
    with open_file(path) as file:
        while header := file.read(12):
            length = struct.unpack("<Q", header[:8])[0] if len(header) == 12 else _LONGEST_RECORD
            record = file.read(length + 4) if length < _LONGEST_RECORD else b""
            if len(record) < length + 4:
                notes.append(CUT_OFF)
                return
            yield record[:length]
