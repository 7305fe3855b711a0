"""Whether the chat template writes what each role says."""

import itertools
from collections.abc import Iterator
from typing import Any

from jinja2 import TemplateError

from .subject import Subject

ROWS, PATTERNS = 200, 8  # rows that are looked through, and orders of roles in them that are rendered


def unwritten_roles(subject: Subject) -> tuple[list[str], list[str]]:
    """Roles of which no message is ever written: those that have the last word of a prompt or a conversation, and
    others. A role counts only if neither a rendered mark nor what it really says can be found."""
    written: set[str] = set()
    silent: set[str] = set()
    last: set[str] = set()
    rows = list(itertools.islice(subject.dataset, ROWS))
    for row in _one_of_each_pattern(rows):
        for messages, ends in _conversations(row):
            heard, unheard = _rendered(subject, row, messages)
            written |= heard
            silent |= unheard
            last |= ends
    missing = sorted(role for role in silent - written if not _found(subject, rows, role))
    return [role for role in missing if role in last], [role for role in missing if role not in last]


def _one_of_each_pattern(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    first: dict[tuple, dict[str, Any]] = {}
    for row in rows:
        first.setdefault(tuple(message["role"] for messages, _ in _conversations(row) for message in messages), row)
    return list(first.values())[:PATTERNS]


def _conversations(row: dict[str, Any]) -> Iterator[tuple[list[dict[str, Any]], set[str]]]:
    """The messages of each text of a row, and who has the last word of its prompt and of the whole."""
    prompt = row["prompt"] if _is_messages(row.get("prompt")) else []
    tails = [row[name] for name in ("messages", "completion", "chosen", "rejected") if _is_messages(row.get(name))]
    for messages in [[*prompt, *tail] for tail in tails] or [prompt]:
        yield messages, {part[-1]["role"] for part in (prompt, messages) if part}


def _is_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and "role" in value[0]


def _rendered(subject: Subject, row: dict[str, Any], messages: list[dict[str, Any]]) -> tuple[set[str], set[str]]:
    """Roles that are written and roles that are not, by marks in place of what they say: a template may cut words off
    (thoughts of earlier turns, white space), but no mark."""
    marks = {i: f"zq{i}zq" for i, message in enumerate(messages) if _says(message)}
    marked = [message | {"content": marks[i]} if i in marks else message for i, message in enumerate(messages)]
    tools = getattr(subject.trainer, "tools", None) or row.get("tools")  # which may be a text, and then is none here
    options = {"tools": tools} if tools and isinstance(tools, list) else {}
    try:
        text = subject.tokenizer.apply_chat_template(
            marked, chat_template=subject.chat_template, tokenize=False,
            **options, **(row.get("chat_template_kwargs") or {}),
        )  # fmt: skip
    except (TemplateError, TypeError, ValueError, KeyError):  # what cannot be rendered fails by itself
        return set(), set()
    heard = {messages[i]["role"] for i, mark in marks.items() if mark in text}
    return heard, {messages[i]["role"] for i in marks} - heard


def _says(message: dict[str, Any]) -> str:
    content = message.get("content")
    return content.strip() if isinstance(content, str) else ""


def _found(subject: Subject, rows: list[dict[str, Any]], role: str) -> bool:
    """Whether what it says is in the tokens, by whatever wrote them: a function that formats, or a rollout_func."""
    if subject.kind == "rl":
        rollouts = subject.rollouts
        masks = rollouts.output["prompt_mask"].bool()
        ids = [row[mask].tolist() for row, mask in zip(rollouts.output["prompt_ids"], masks, strict=True)]
        rows = rollouts.rows
    else:
        names = ("prompt_ids", "input_ids", "chosen_ids", "rejected_ids")
        ids = [[token for name in names for token in row.get(name, [])] for row in rows]
    for row, tokens in zip(rows, ids, strict=True):
        said = [
            _says(message) for messages, _ in _conversations(row) for message in messages if message["role"] == role
        ]
        if any(said) and any(text in subject.tokenizer.decode(tokens) for text in said if text):
            return True
    return False
