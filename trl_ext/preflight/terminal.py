"""The report for people."""

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trl_ext.reporting.replay_table import plain_console

from .check import Check, Report, Status
from .sample import PIECES

MARKS = {
    Status.PASS: ("✓", "green"),
    Status.WARN: ("!", "bold yellow"),
    Status.FAIL: ("✗", "bold red"),
    Status.SKIP: ("-", "dim"),
}


def report_text(report: Report, console: Console | None = None) -> str:
    """Every check with its numbers, advice below those that want something, and a sample with its masks coloured."""
    console = console or plain_console()
    with console.capture() as capture:
        for family in dict.fromkeys(check.family for check in report.checks):
            console.print(family_block(family, [c for c in report.checks if c.family == family], report.sample))
        console.print(closing_line(report))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()).rstrip("\n")


def family_block(family: str, checks: list[Check], sample: tuple = ()) -> Group:
    """The lines of one family."""
    table = Table.grid(padding=(0, 1))
    table.add_column(width=1)
    table.add_column(no_wrap=True, min_width=16)
    table.add_column(overflow="fold")
    for check in checks:
        mark, style = MARKS[check.status]
        skipped = check.status == Status.SKIP
        what = Text(check.message, style="dim" if skipped else "")
        if check.advice:
            what.append(f"\n{check.advice}", style="cyan")
        table.add_row(Text(mark, style=style), Text(check.name, style="dim" if skipped else "bold"), what)
    parts: list[RenderableType] = [Text(family.replace("_", "-"), style="bold underline"), Padding(table, (0, 0, 0, 2))]
    if family == "masks" and sample:
        parts.append(Padding(sample_text(sample), (0, 0, 0, 4)))
    return Group(*parts, Text(""))


def sample_text(sample: tuple) -> Text:
    """A text in the colours of what its tokens are to training, and what the colours mean."""
    text = Text()
    for piece, kind in sample:
        text.append(piece.replace("\n", "↵\n"), style=PIECES[kind][1])
    text.append("\n")
    for i, kind in enumerate(kind for kind in PIECES if any(kind == of for _, of in sample)):
        text.append("  " if i else "")
        text.append(f"[{PIECES[kind][0]}]", style=PIECES[kind][1])
    return text


def closing_line(report: Report) -> Text:
    seconds = sum(report.seconds.values())
    counts = {status: report.count(status) for status in (Status.PASS, Status.WARN, Status.FAIL)}
    style = MARKS[Status.FAIL if counts[Status.FAIL] else Status.WARN if counts[Status.WARN] else Status.PASS][1]
    warnings = "1 warning" if counts[Status.WARN] == 1 else f"{counts[Status.WARN]} warnings"
    return Text(
        f"{report.trainer}: {counts[Status.PASS]} checks passed, {warnings}, {counts[Status.FAIL]} failed "
        f"({seconds:.1f} s)",
        style=style,
    )
