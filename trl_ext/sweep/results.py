"""What came of the combinations: best first, as a table, as JSON and as CSV."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from trl_ext.monitor.files import replace_json
from trl_ext.reporting.replay_table import plain_console
from trl_ext.sweep.definition import Sweep
from trl_ext.sweep.parameters import Point
from trl_ext.sweep.state import SweepState

_STYLES = {"ok": "green", "waiting": "dim"}


@dataclass(frozen=True)
class Result:
    """One combination. `value` is the mean over its seeds, `None` unless every one of them gave a value."""

    jobs: list[int]
    parameters: Point
    value: float | None
    status: str
    seconds: float
    note: str
    values: list[float | None]


def results_of(sweep: Sweep, points: Sequence[Point], state: SweepState) -> list[Result]:
    """Best first; those without a value last, in the order they were tried."""
    found = [_result(sweep, number, point, state) for number, point in enumerate(points)]
    sign = -1 if sweep.goal == "maximize" else 1
    return sorted(found, key=lambda result: (result.value is None, sign * (result.value or 0.0), result.jobs))


def jobs_of(sweep: Sweep, number: int) -> list[tuple[int, int | None]]:
    """(job, its seed) of combination `number`; jobs count from 1."""
    seeds: list[Any] = sweep.seeds or [None]
    return [(number * len(seeds) + i + 1, seed) for i, seed in enumerate(seeds)]


def results_text(sweep: Sweep, results: Sequence[Result]) -> str:
    """A table for the terminal, and underneath what became of those without a value."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("job", no_wrap=True)
    for name in sweep.parameters:
        table.add_column(name, justify="right")
    table.add_column(sweep.metric, justify="right", style="bold")
    table.add_column("status", no_wrap=True)
    table.add_column("seconds", justify="right")
    for result in results:
        table.add_row(
            _jobs(result), *(Text(_short(result.parameters[name])) for name in sweep.parameters),
            "-" if result.value is None else f"{result.value:.4g}",
            Text(result.status, style=_STYLES.get(result.status, "yellow")), f"{result.seconds:.0f}",
        )  # fmt: skip
    console = plain_console()
    with console.capture() as capture:
        console.print(table)
        for result in results:
            if result.note:
                console.print(Text(f"{_jobs(result)}: {result.note}"), soft_wrap=True)
    return capture.get()


def results_json(sweep: Sweep, results: Sequence[Result]) -> dict[str, Any]:
    """For `results.json` and `--json`."""
    return {"metric": sweep.metric, "goal": sweep.goal, "results": [asdict(result) for result in results]}


def write_results(sweep: Sweep, results: Sequence[Result], on_error: Any) -> None:
    """`results.json` and `results.csv` in the folder of the sweep, each in one move."""
    folder = Path(sweep.output_dir)
    replace_json(folder / "results.json", results_json(sweep, results), on_error)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["jobs", *sweep.parameters, sweep.metric, "status", "seconds", "note"])
    for result in results:
        cells = [_short(result.parameters[name]) for name in sweep.parameters]
        value = "" if result.value is None else repr(result.value)
        jobs = " ".join(map(str, result.jobs))
        writer.writerow([jobs, *cells, value, result.status, f"{result.seconds:.1f}", result.note])
    try:
        temporary = folder / ".results.csv.tmp"
        temporary.write_text(text.getvalue(), encoding="utf-8")
        temporary.replace(folder / "results.csv")
    except OSError as error:
        on_error(folder / "results.csv", error)


def _result(sweep: Sweep, number: int, point: Point, state: SweepState) -> Result:
    jobs = [job for job, _ in jobs_of(sweep, number)]
    ended = [state.ended[job] for job in jobs if job in state.ended]
    values = [event["value"] for event in ended]
    bad = [event for event in ended if event["value"] is None]
    whole = len(ended) == len(jobs) and not bad
    status = "ok" if whole else bad[0]["status"] if bad else "waiting"
    if bad and len(jobs) > 1:
        status = f"{status} ({len(bad)} of {len(jobs)})"
    return Result(
        jobs, point, sum(values) / len(values) if whole else None, status,
        sum(event["seconds"] for event in ended), bad[0]["note"] if bad else "", values,
    )  # fmt: skip


def _jobs(result: Result) -> str:
    return f"{result.jobs[0]}-{result.jobs[-1]}" if len(result.jobs) > 1 else str(result.jobs[0])


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value) if isinstance(value, list | dict | bool) else str(value)
