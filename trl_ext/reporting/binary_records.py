"""What the binary logs of TensorBoard and W&B share: protocol buffers, one after the other."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from trl_ext.errors import UserError

CUT_OFF = "skipped the last record: it is cut off"


def open_file(path: Path) -> BinaryIO:
    """Raises: UserError: it cannot be opened."""
    try:
        return open(path, "rb")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def parsed_messages(records: Iterable[bytes], message_type: Any, notes: list[str]) -> Iterator[Any]:
    """Each record as a message; `notes` says how many were none."""
    from google.protobuf.message import DecodeError

    broken = 0
    for record in records:
        try:
            message = message_type.FromString(record)
        except DecodeError:
            broken += 1
            continue
        yield message
    if broken:
        notes.append(f"skipped {broken} broken record{'s' * (broken > 1)}")
