"""The result of a replay for people."""

from typing import IO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trl_ext.monitor.alerts import Alert, Severity
from trl_ext.monitor.replay import Replay

SEVERITY_STYLES = {
    Severity.INFO: "cyan",
    Severity.WARNING: "yellow",
    Severity.ERROR: "red",
    Severity.CRITICAL: "bold red",
}
_FILE_WIDTH = 120  # where there is no terminal


def replay_text(result: Replay, console: Console | None = None) -> str:
    """A heading, and a table of the alerts with the advice underneath each; for the terminal that standard output is,
    or plain and 120 wide where it is none. `result.notes` are not in it."""
    console = console or plain_console()
    with console.capture() as capture:
        console.print(_heading(result), soft_wrap=True)
        if result.alerts:
            console.print(_table(result.alerts))
    return capture.get()


def plain_console(file: IO[str] | None = None) -> Console:
    """For the terminal that standard output (or another file) is, or plain and 120 wide."""
    console = Console(file=file, highlight=False)
    return console if console.is_terminal else Console(file=file, highlight=False, width=_FILE_WIDTH)


def _heading(result: Replay) -> Text:
    heading = Text(result.path, style="bold")
    heading.append(f"  {result.trainer or 'unknown trainer'}, {result.rows:,} logs: ", style="not bold")
    counts = {severity: sum(alert.severity is severity for alert in result.alerts) for severity in Severity}
    found = [Text(f"{counts[s]} {s}", style=SEVERITY_STYLES[s]) for s in reversed(Severity) if counts[s]]
    return heading + (Text(", ").join(found) if found else Text("nothing to complain about", style="green"))


def _table(alerts: list[Alert]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, leading=1)
    for name in ("step", "severity", "rule"):
        table.add_column(name, justify="right" if name == "step" else "left", no_wrap=True)
    table.add_column("what is wrong, and what to do", ratio=1)
    for name in ("opened", "closed"):
        table.add_column(name, justify="right", no_wrap=True)
    for alert in alerts:
        table.add_row(
            str(alert.step), Text(alert.severity.value, style=SEVERITY_STYLES[alert.severity]), Text(alert.rule),
            Text(alert.message) + Text(f"\n{alert.advice}", style="dim"),
            str(alert.opened), "" if alert.closed is None else str(alert.closed),
        )  # fmt: skip
    return table
