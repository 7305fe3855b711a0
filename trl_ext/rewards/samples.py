"""Completions beside their rewards, as a table a person reads."""

import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from io import StringIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trl_ext.rewards.text import Completion, completion_text, prompt_text

_LOG_FILE_WIDTH = 120
_LONGEST_PROMPT, _LONGEST_COMPLETION = 120, 300  # characters shown: a table is glanced at


def samples_table(
    prompts: Sequence[str | list[dict]],
    completions: Sequence[Completion],
    rewards_by_function: Mapping[str, Sequence[float | None]],
    limit: int = 5,
    title: str | None = None,
    width: int | None = None,
) -> str:
    """One row a completion: prompt, completion, and what each reward function gave; without a line break at the end.

    In a terminal it has lines and weight; elsewhere it is plain ASCII, fit for a log file.

    Args:
        prompts, completions: as TRL gives them to reward functions, strings or lists of messages.
        rewards_by_function: name of a function -> its rewards, `None` where it does not apply.
        limit: rows at most. Where there are more they are taken at even distances: neighbours often share a prompt.
        width: columns; by default those of the terminal, 120 elsewhere.
    """
    terminal = sys.stdout.isatty()
    if width is None:
        width = shutil.get_terminal_size().columns if terminal else _LOG_FILE_WIDTH
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.ROUNDED if terminal else box.ASCII2,
        show_lines=True,
    )
    table.add_column("prompt", style="dim", max_width=width // 5, overflow="fold")
    table.add_column("completion", overflow="fold")
    # Several functions share a column, one a line: side by side they would leave the text no room.
    names = list(rewards_by_function)
    table.add_column(names[0] if len(names) == 1 else "rewards", justify="right", overflow="fold")
    for row in evenly(len(completions), limit):
        values = [_reward(rewards[row]) for rewards in rewards_by_function.values()]
        named = [f"{name} {value:>5}" for name, value in zip(names, values, strict=True)]
        table.add_row(
            Text(_end(_visible(prompt_text(prompts[row])))),
            Text(_start(_visible(completion_text(completions[row])))),
            Text("\n".join(values if len(names) == 1 else named)),
        )
    out = StringIO()
    Console(file=out, width=width, force_terminal=terminal).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip("\n").split("\n"))


def evenly(count: int, limit: int) -> list[int]:
    """At most `limit` of the indices `0..count - 1`, the first one and others at even distances."""
    rows = min(count, limit)
    return [i * count // rows for i in range(rows)]


def _visible(text: str) -> str:
    """Line breaks and control characters as code writes them: a policy can emit what garbles a terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text.strip())


def _start(text: str) -> str:
    return text if len(text) <= _LONGEST_COMPLETION else text[: _LONGEST_COMPLETION - 3] + "..."


def _end(text: str) -> str:
    return text if len(text) <= _LONGEST_PROMPT else "..." + text[3 - _LONGEST_PROMPT :]


def _reward(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.3g}" if abs(value) >= 100 else f"{value:.2f}"
