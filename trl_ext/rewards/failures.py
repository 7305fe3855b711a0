"""What becomes of a completion that a reward function could not score, and the file that keeps it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from trl_ext.errors import UserError
from trl_ext.monitor.strict_json import to_strict_json
from trl_ext.rewards.options import bound_of, is_number, is_seconds, shown
from trl_ext.rewards.text import completion_text, prompt_text

FAILURES_FILE = "reward_failures.jsonl"
LINES_KEPT = 1000  # of one function in one process: a function that always fails must not fill the disk
_LONGEST_TEXT = 20_000  # characters


class Failure(NamedTuple):
    """One completion without a usable reward.

    Attributes:
        row: its place in the batch.
        kind: `exception`, `timeout`, `length` (another number of rewards than completions) or `value` (no finite
            number).
        message: one line.
    """

    row: int
    kind: str
    message: str


def check_policy(policy: Any) -> str | float:
    """`raise`, `none`, or the number that stands in for a missing reward.

    Raises:
        UserError: anything else.
    """
    if policy is None:  # how YAML reads `on_failure: null`
        return "none"
    if policy in ("raise", "none"):
        return policy
    if is_number(policy):
        return float(policy)
    raise UserError(
        f"on_failure must be 'raise', 'none' or a number such as 0.0, not {shown(policy)}{bound_of(policy)}"
    )


def check_timeout(timeout: Any) -> float | None:
    """Seconds, or `None` for no limit.

    Raises:
        UserError: anything else.
    """
    if timeout is None:
        return None
    if is_seconds(timeout):
        return float(timeout)
    raise UserError(
        f"timeout must be a number of seconds above 0, at most 1e7, or null for no limit, not {shown(timeout)}"
    )


class FailureFile:
    """Appends what one function failed at to `reward_failures.jsonl`, a JSON object a line, each in one write.

    Processes other than the main one, which see other completions, have files of their own
    (`reward_failures-rank1.jsonl`). Nothing here raises: a full disk loses the lines, not the run.

    Args:
        folder: where the file lies; it is made with the first failure.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        rank = os.environ.get("RANK", "0")  # set by torchrun and by Accelerate's launcher
        stem, suffix = FAILURES_FILE.split(".")
        self.path = Path(folder) / (FAILURES_FILE if rank == "0" else f"{stem}-rank{rank}.{suffix}")
        self._left = LINES_KEPT

    def append(self, reward: str, step: int | None, failure: Failure, prompts: list, completions: list) -> None:
        if self._left <= 0:
            return
        self._left -= 1
        row = failure.row
        try:
            line = to_strict_json(
                {
                    "step": step, "reward": reward, "kind": failure.kind, "message": failure.message,
                    "prompt": _text(prompt_text, prompts[row])[-_LONGEST_TEXT:],
                    "completion": _text(completion_text, completions[row])[:_LONGEST_TEXT],
                }
            )  # fmt: skip
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab", buffering=0) as file:
                file.write(line.encode() + b"\n")
        except OSError:
            self._left = 0


def _text(read: Callable[[Any], str], value: Any) -> str:
    """What is neither text nor messages is shown as Python writes it."""
    try:
        return read(value)
    except Exception:
        return repr(value)
