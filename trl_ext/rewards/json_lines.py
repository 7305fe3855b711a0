"""Completions in a JSON Lines file of the user."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from trl_ext.errors import UserError

_NO_COLUMNS = frozenset(
    {"step", "seen_at", "prompt", "completion", "text", "completion_ids", "reward", "rewards", "gold"}
)
_TAKEN = frozenset({"prompts", "completions", "trainer_state", "log_metric", "log_extra", "environments"})
_EXAMPLE = '{"prompt": "Was it good?", "completion": "A great film."}'


def read_json_lines(path: str) -> Iterator[dict[str, Any]]:
    """The objects of a file, one a line; empty lines are skipped.

    Raises:
        UserError: a file that cannot be read, or a line that is no JSON object; the line is named.
    """
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _object(path, number, line)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'no UTF-8 text'}") from error


def _object(path: str, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}, line {number}: no JSON; write an object a line, such as {_EXAMPLE}") from error
    if not isinstance(row, dict):
        raise UserError(f"{path}, line {number}: write an object a line, such as {_EXAMPLE}")
    return row


def completion_of(row: dict[str, Any], where: str) -> str | list:
    """Of a row its `completion`, or else its `text`: a string or a list of messages.

    Raises:
        UserError: there is none, or it is something else.
    """
    completion = row.get("completion", row.get("text"))
    if isinstance(completion, str):
        return completion
    if isinstance(completion, list) and all(isinstance(message, dict) for message in completion):
        return completion
    raise UserError(f"{where}: no completion, text or a list of messages; write {_EXAMPLE}")


def columns_of(rows: Sequence[dict[str, Any]], where: str) -> dict[str, list]:
    """The dataset columns in rows of completions, `None` where a row lacks one.

    Raises:
        UserError: a row with a name that trainers give something else under.
    """
    names = dict.fromkeys(name for row in rows for name in row if name not in _NO_COLUMNS)
    taken = next((name for name in names if name in _TAKEN), None)
    if taken is not None:
        raise UserError(f"{where}: {taken!r} is no column, trainers pass their own under this name: rename it")
    return {name: [row.get(name) for row in rows] for name in names}
