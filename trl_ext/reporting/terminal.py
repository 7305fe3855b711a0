"""Text for the terminal and for log files. What is printed while a run goes on is made beside its callback."""

import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from trl_ext.callbacks.console import log_line
from trl_ext.monitor.alerts import Alert
from trl_ext.rewards.samples import samples_table

__all__ = ["closing_summary", "log_line", "samples_table"]

_LABELS = {
    "reward": ("reward", "{:.3f}"),
    "loss": ("loss", "{:.3f}"),
    "kl": ("KL to the reference", "{:.2f}"),
    "entropy": ("entropy", "{:.2f}"),
    "explained_variance": ("explained variance", "{:.2f}"),
    "length": ("completion length", "{:.1f}"),
}
_ALERTS_SHOWN = 8
_LOG_FILE_WIDTH = 120


def closing_summary(
    summary: Mapping[str, Any],
    alerts: Iterable[Alert | dict[str, Any]] | None = None,
    files: Mapping[str, str] | None = None,
    next_commands: Mapping[str, str] | None = None,
) -> str:
    """What to read when a run is over: how far it came, what was wrong, where things are, what to try next.

    Args:
        summary: of `run_summary`.
        alerts: the worst are shown first; as objects, or as the dictionaries of `summary.json`. `None`: no monitor ran.
        files: path -> what it is.
        next_commands: command -> what it does.
    """
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _LOG_FILE_WIDTH
    sections = [(f"After {summary['step']} steps", _quantities(summary))]
    if alerts is not None:
        sections.append(_alerts([a if isinstance(a, Alert) else Alert.from_dict(a) for a in alerts], width))
    if files:
        sections.append(("Files", _pairs(files)))
    if next_commands:
        sections.append(("Try next", _pairs(next_commands)))
    return "\n\n".join("\n".join([_bold(title), *lines]) for title, lines in sections)


def _quantities(summary: Mapping[str, Any]) -> list[str]:
    lines, count = [], 0
    for name, (label, form) in _LABELS.items():
        quantity = summary.get(name)
        if quantity is None or (name == "loss" and "reward" in summary):  # a policy-gradient loss shows no progress
            continue
        if quantity["count"]:
            first, last = form.format(quantity["first"]), form.format(quantity["last"])
            change = f"  ({quantity['last'] - quantity['first']:+.3f})" if name == "reward" else ""
            line = f"  {label:<20}{first:>8}  ->{last:>8}{change}"
        else:
            line = f"  {label:<20}   never a finite number"
        if quantity["nonfinite"] and quantity["count"]:
            line += f"  (not finite: {quantity['nonfinite']})"
        lines.append(line)
        count = max(count, quantity["count"])
    if not lines:
        return ["  nothing was logged: set logging_steps to fewer steps than the run has"]
    means = f"means of the first and the last {count // 10}" if count >= 20 else "the first and the last"
    return [*lines, f"  {means} of {count} logs"]


def _alerts(alerts: list[Alert], width: int) -> tuple[str, list[str]]:
    if not alerts:
        return "Alerts", ["  none: the monitor found nothing to complain about"]
    lines: list[str] = []
    for alert in sorted(alerts, key=lambda alert: -alert.severity.rank)[:_ALERTS_SHOWN]:
        gone = f", gone since step {alert.closed}" if alert.closed is not None else ""
        text = f"{alert.severity} from step {alert.opened}{gone}, {alert.rule}: {alert.message}. {alert.advice}"
        lines += textwrap.wrap(text, width - 1, initial_indent="  ", subsequent_indent="    ")
    if len(alerts) > _ALERTS_SHOWN:
        lines.append(f"  and {len(alerts) - _ALERTS_SHOWN} more in alerts.jsonl")
    return f"Alerts ({len(alerts)})", lines


def _pairs(entries: Mapping[str, str]) -> list[str]:
    """Two columns, or two lines an entry where the first is long: paths and commands stay whole, to be copied."""
    widest = max(map(len, entries))
    if widest > 44:
        return [line for left, right in entries.items() for line in (f"  {left}", f"      {right}")]
    return [f"  {left:<{widest}}  {right}" for left, right in entries.items()]


def _bold(text: str) -> str:
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() else text
