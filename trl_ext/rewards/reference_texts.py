"""Texts that a reward is calibrated on."""

import json
from pathlib import Path
from typing import Any

from trl_ext.errors import UserError
from trl_ext.rewards.text import Completion

Conversation = tuple[Completion, Completion]  # prompt, completion


def read_reference(reference: list | str | Path) -> list[Conversation]:
    """Pairs of prompt and completion.

    Args:
        reference: a list, a JSON Lines file (`.jsonl` or `.json`), or a text file with one text on each line; blank
            lines are none. An entry is a text (its prompt is empty), or a mapping with `completion` and, where there is
            one, `prompt`, or with `text`; a completion may be a list of messages.
    Raises:
        UserError: no such file, a line that is no JSON, or an entry of another form.
    """
    if not isinstance(reference, list | str | Path):
        raise UserError(f"reference needs a list of texts or a file of them, not {reference!r}")
    entries = reference if isinstance(reference, list) else _read(Path(reference).expanduser())
    if not entries:
        raise UserError("reference is empty: give texts, two or more")
    return [_conversation(entry, number) for number, entry in enumerate(entries, start=1)]


def _read(path: Path) -> list:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UserError(f"cannot read the reference {str(path)!r}: {cause}") from error
    filled = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if path.suffix not in (".json", ".jsonl"):
        return [line for _, line in filled]
    return [_parse(line, number, path) for number, line in filled]


def _parse(line: str, number: int, path: Path) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise UserError(f"{path}, line {number}, is no JSON: write one text or mapping on each line") from error


def _conversation(entry: Any, number: int) -> Conversation:
    if isinstance(entry, str):
        return "", entry
    if isinstance(entry, dict):
        prompt: Any = entry.get("prompt", "")
        completion: Any = entry.get("completion", entry.get("text"))
        if _is_completion(prompt) and _is_completion(completion):
            return prompt, completion
    raise UserError(
        f"entry {number} of reference is no text and has no 'completion' or 'text' that is one: {entry!r:.80}"
    )


def _is_completion(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(each, dict) for each in value))
