"""The health of checkpoints for people."""

import math
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trl_ext.checkpoints.drift import Drift
from trl_ext.checkpoints.errors import printable
from trl_ext.checkpoints.groups import GroupStatistics
from trl_ext.checkpoints.health.finding import HealthFinding
from trl_ext.checkpoints.health.judging import CheckpointHealth
from trl_ext.checkpoints.run_folder import RunHealth
from trl_ext.monitor.alerts import Severity
from trl_ext.reporting.replay_table import SEVERITY_STYLES, plain_console

_NARROW = 72  # columns, below which a table would cut the names of tensors
STATUS_STYLES = {"healthy": "green", "suspicious": "yellow", "damaged": "red", "unusable": "bold red"}


def health_text(health: CheckpointHealth, console: Console | None = None) -> str:
    """A heading, the findings with advice, and the groups of weights."""
    console = console or plain_console()
    with console.capture() as capture:
        console.print(_heading(health), soft_wrap=True)
        if health.findings:
            _print_findings(console, health.findings)
        if health.groups:
            groups = [*health.groups, *([health.whole] if len(health.groups) > 1 else [])]
            console.print(groups_table(groups, narrow=console.width < 90))
        if health.measured.lora:
            console.print(_lora(health), soft_wrap=True)
    return capture.get().rstrip("\n")


def run_text(run: RunHealth, console: Console | None = None) -> str:
    """A line for each checkpoint, what is wrong with them, and the trend."""
    console = console or plain_console()
    with console.capture() as capture:
        heading = Text(printable(str(run.path)), style="bold")
        heading.append(f"  {len(run.checkpoints)} checkpoints", style="not bold")
        console.print(heading, soft_wrap=True)
        console.print(_run_table(run, console.width))
        for name, reason in run.unreadable.items():
            console.print(Text(f"{name}: {reason}", style="red"), soft_wrap=True)
        findings = [*run.findings, *_worth_telling(run)]
        if findings:
            _print_findings(console, findings)
    return capture.get().rstrip("\n")


def _worth_telling(run: RunHealth) -> list[HealthFinding]:
    """Of the checkpoints, each rule once: of the first that has it."""
    told: dict[str, HealthFinding] = {}
    for health in run.checkpoints:
        for finding in health.findings:
            if finding.severity > Severity.INFO and finding.rule not in told:
                name = health.checkpoint.path.name
                told[finding.rule] = HealthFinding(
                    finding.rule, finding.severity, f"{name}: {finding.message}", finding.advice, finding.tensor
                )
    return sorted(told.values(), key=lambda finding: -finding.severity.rank)


def _heading(health: CheckpointHealth) -> Text:
    heading = Text(printable(str(health.checkpoint.path)), style="bold")
    whole = health.whole
    heading.append(
        f"  {health.checkpoint.form}, {len(health.measured.tensors):,} tensors, {whole.elements:,} parameters, "
        f"{size_text(sum(health.checkpoint.files.values()))}: ", style="not bold",
    )  # fmt: skip
    heading.append(f"{health.status}, {health.score:.2f}", style=STATUS_STYLES[health.status])
    return heading


def _print_findings(console: Console, findings: Sequence[HealthFinding]) -> None:
    if console.width >= _NARROW:
        console.print(findings_table(findings))
        return
    for finding in findings:
        console.print(Text(f"\n{finding.severity.value} {finding.rule}", style=SEVERITY_STYLES[finding.severity]))
        console.print(Text(finding.message))
        console.print(Text(finding.advice, style="dim"))
    console.print()


def findings_table(findings: Sequence[HealthFinding]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, leading=1)
    table.add_column("severity", no_wrap=True)
    table.add_column("rule", no_wrap=True)
    table.add_column("what is wrong, and what to do", ratio=1)
    for finding in findings:
        table.add_row(
            Text(finding.severity.value, style=SEVERITY_STYLES[finding.severity]), Text(finding.rule),
            Text(finding.message) + Text(f"\n{finding.advice}", style="dim"),
        )  # fmt: skip
    return table


def groups_table(groups: Sequence[GroupStatistics], narrow: bool = False) -> Table:
    drifts = any(group.drift is not None for group in groups)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("weights", no_wrap=True)
    names = ["tensors", "parameters", "zeros", "std", "abs max", "norm"]
    names += ["drift", "cosine", "sign flips"] if drifts else []
    hidden = ("tensors", "zeros", "std", "abs max", "sign flips") if narrow else ()
    for name in names:
        if name not in hidden:
            table.add_column(name, justify="right", no_wrap=True)
    for group in groups:
        cells = [
            f"{group.tensors:,}", f"{group.elements:,}", share_text(group.zeros, group.elements),
            number_text(group.std), number_text(group.abs_max), number_text(group.norm),
        ]  # fmt: skip
        if drifts:
            cells += drift_cells(group.drift)
        style = "red" if group.nan or group.infinite else ""
        cells = [cell for name, cell in zip(names, cells, strict=True) if name not in hidden]
        table.add_row(group.name, *cells, style=style, end_section=group is groups[-2] if len(groups) > 1 else False)
    return table


def run_rows(run: RunHealth) -> list[dict[str, str]]:
    """A row for each checkpoint, by the titles of the columns."""
    rows = []
    for health, point in zip(run.checkpoints, run.trend.points, strict=False):
        rules = dict.fromkeys(finding.rule for finding in health.findings if finding.severity > Severity.INFO)
        rows.append({
            "checkpoint": health.checkpoint.path.name, "score": f"{health.score:.2f}", "status": health.status,
            "norm": number_text(health.whole.norm),
            "drift from previous": "" if point.previous is None else number_text(point.previous.relative),
            "from first": "" if point.first is None else number_text(point.first.relative),
            "findings": ", ".join(rules),
        })  # fmt: skip
    return rows


def drift_cells(drift: Drift | None) -> list[str]:
    """Drift, cosine, sign flips."""
    if drift is None:
        return ["", "", ""]
    return [number_text(drift.relative), f"{drift.cosine:.6f}", f"{drift.sign_flips:.2%}"]


def _run_table(run: RunHealth, width: int) -> Table:
    """On a narrow terminal without the columns that say least."""
    rows = run_rows(run)
    shown = [name for name in rows[0] if width >= 90 or name not in ("norm", "from first", "findings")] if rows else []
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in shown:
        is_text = name in ("checkpoint", "status", "findings")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=name != "findings")
    for row in rows:
        styles = {"status": STATUS_STYLES[row["status"]]}
        table.add_row(*(Text(row[name], style=styles.get(name, "")) for name in shown))
    return table


def _lora(health: CheckpointHealth) -> str:
    updates = health.measured.lora
    ranks = sorted(update.effective_rank for update in updates)
    line = (
        f"LoRA: {len(updates)} pairs of rank {', '.join(map(str, sorted({u.rank for u in updates})))}, effective rank "
        f"{ranks[0]:.2f} to {ranks[-1]:.2f}"
    )
    relative = sorted(update.relative for update in updates if update.relative is not None)
    if relative:
        line += f", adds {relative[0]:.2g} to {relative[-1]:.2g} of its weight's norm"
    return line


def number_text(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4g}"


def share_text(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if part and whole else "0"


def size_text(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
