"""Rewards for people: the registry, what functions give to a few texts, and a report of their reliability."""

import inspect
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trl_ext.reporting.replay_table import SEVERITY_STYLES, plain_console
from trl_ext.rewards.registry import REWARDS
from trl_ext.rewards.reliability.duplicates import LEAST
from trl_ext.rewards.reliability.report import PARTS, ReliabilityReport
from trl_ext.rewards.text import Completion, completion_text

_LONGEST = 300  # characters of a completion


def registry_text() -> str:
    """A table of the reward functions that a configuration can name."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", no_wrap=True, style="bold")
    table.add_column("what it rewards", ratio=3)
    table.add_column("kwargs", ratio=2, style="dim")
    for name, entry in REWARDS.items():
        table.add_row(name, entry.description, ", ".join(arguments_of(name)))
    return _printed(table)


def arguments_of(name: str) -> list[str]:
    """`["minimum=10", "schema"]`: the arguments of a registered reward, with their defaults."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(REWARDS[name].factory).parameters.values()
    return [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters if p.kind in named]


def scores_text(
    completions: Sequence[Completion],
    rewards: Mapping[str, Sequence[float | None]],
    weights: Sequence[float],
    totals: Sequence[float | None],
) -> str:
    """One row a completion: each function's value, and the weighted total."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("completion", ratio=1, overflow="fold")
    for name, weight in zip(rewards, weights, strict=True):
        table.add_column(f"{name}\nx {weight:g}", justify="right")
    table.add_column("total", justify="right", style="bold")
    for i, completion in enumerate(completions):
        text = completion_text(completion)
        shown = text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
        cells = [_number(values[i]) for values in rewards.values()]
        table.add_row(Text(shown), *cells, _number(totals[i]))
    return _printed(table)


def report_text(report: ReliabilityReport, title: str) -> str:
    """Score and parts, the functions, and what is wrong with the advice underneath."""
    console = plain_console()
    with console.capture() as capture:
        score = "unknown" if report.score is None else f"{report.score:.2f}"
        heading = Text(title, style="bold")
        heading.append(f"  {report.completions:,} completions, reliability {score} (0 to 1)", style="not bold")
        console.print(heading, soft_wrap=True)
        console.print(_parts(report))
        console.print(_components(report))
        if report.findings:
            console.print(_findings(report))
        else:
            console.print(_silence(report))
    return capture.get()


def _silence(report: ReliabilityReport) -> Text:
    if report.completions < LEAST:
        return Text(f"too few completions to judge most of it: {LEAST} are needed, hundreds are better", style="yellow")
    known = all(part is not None for part in report.parts.values())
    return Text("nothing to complain about" + ("" if known else ", as far as it was measured"), style="green")


def _parts(report: ReliabilityReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("part", no_wrap=True)
    table.add_column("0 to 1", justify="right")
    table.add_column("0 would say", style="dim")
    for name, meaning in PARTS.items():
        value = report.parts[name]
        style = "dim" if value is None else "green" if value > 0.8 else "yellow" if value > 0.4 else "red"
        table.add_row(name, Text("not measured" if value is None else f"{value:.2f}", style=style), meaning)
    return table


def _components(report: ReliabilityReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("function", "weight", "mean", "std", "share of variance", "applies to", "state"):
        table.add_column(name, justify="left" if name in ("function", "state") else "right")
    for c in report.components:
        share = "-" if c.variance_share != c.variance_share else f"{c.variance_share:.0%}"
        table.add_row(
            c.name, f"{c.weight:g}", _number(c.mean), _number(c.std), share, f"{c.applies:.0%}",
            Text(c.state, style="" if c.state in ("live", "unweighted") else "yellow"),
        )  # fmt: skip
    return table


def _findings(report: ReliabilityReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, leading=1)
    table.add_column("severity", no_wrap=True)
    table.add_column("rule", no_wrap=True)
    table.add_column("what is wrong, and what to do", ratio=1)
    for rule, finding in report.findings.items():
        table.add_row(
            Text(finding.severity.value, style=SEVERITY_STYLES[finding.severity]), Text(rule),
            Text(finding.message) + Text(f"\n{finding.advice}", style="dim"),
        )  # fmt: skip
    return table


def _printed(table: Table, console: Console | None = None) -> str:
    console = console or plain_console()
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def _number(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:.3f}"
