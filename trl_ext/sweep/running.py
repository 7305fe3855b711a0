"""The sweep itself: one job after another, until all are done."""

import logging
from collections.abc import Callable
from pathlib import Path

from trl_ext.monitor.files import WriteWarning
from trl_ext.sweep.definition import Sweep
from trl_ext.sweep.jobs import command_of, end_left_over, options_of, run_job
from trl_ext.sweep.metric import value_of
from trl_ext.sweep.parameters import Point
from trl_ext.sweep.points import points_of
from trl_ext.sweep.results import Result, jobs_of, results_of, write_results
from trl_ext.sweep.state import SweepState

logger = logging.getLogger(__name__)


def planned(sweep: Sweep) -> list[tuple[int, list[str], dict]]:
    """(job, its command, its options) of every job; Optuna chooses later, so that its jobs have no options yet."""
    points = points_of(sweep)
    found = []
    for number in range(points.total):
        for job, seed in jobs_of(sweep, number):
            options = options_of({} if sweep.method == "optuna" else points.next(number), seed)
            found.append((job, command_of(sweep, job, options), options))
    return found


def run_sweep(sweep: Sweep, say: Callable[[str], None]) -> list[Result]:
    """Runs what has not been run yet, and returns the results, best first.

    A job that fails, exceeds its time or logs no metric is noted and the next one starts. Ctrl-C ends the job that
    runs, writes the results and passes on.

    Args:
        say: told of each job, a line each.
    Raises:
        UserError: another sweep is in the folder, or Optuna is asked for and missing.
    """
    points, state = points_of(sweep), SweepState(sweep)
    tried: list[Point] = []
    warn = WriteWarning(logger)
    try:
        for number in range(points.total):
            jobs = jobs_of(sweep, number)
            earlier = state.started.get(jobs[0][0])
            point = points.next(number) if earlier is None else earlier["parameters"]
            tried.append(point)
            for job, seed in jobs:
                if job not in state.ended:
                    _run_one(sweep, state, job, point, seed, say, f"job {job} of {points.total * len(jobs)}")
                    write_results(sweep, results_of(sweep, tried, state), warn)
            values = [state.ended[job]["value"] for job, _ in jobs]
            whole = all(value is not None for value in values)
            points.tell(number, point, sum(values) / len(values) if whole else None)
        return results_of(sweep, tried, state)
    finally:
        write_results(sweep, results_of(sweep, tried, state), warn)
        state.close()


def _run_one(
    sweep: Sweep, state: SweepState, job: int, point: Point, seed: int | None, say: Callable[[str], None], name: str
) -> None:
    if job in state.started and end_left_over(state.started[job]):
        say(f"{name} was still running from a sweep that was killed, and was ended")
    options = options_of(point, seed)
    shown = ", ".join(f"{option}={value}" for option, value in options.items())
    say(f"{name}: {shown}")
    state.start(job, parameters=point, seed=seed)
    ended = run_job(sweep, job, options, lambda **facts: state.start(job, parameters=point, seed=seed, **facts))
    folder = Path(sweep.output_dir) / str(job)
    status, note, value = ended.status, ended.note, None
    if status == "ok":
        value, note = value_of(folder, sweep.metric)
        status = "ok" if value is not None else "no metric"
    state.end(job, status=status, value=value, seconds=round(ended.seconds, 3), note=note)
    what = f"{sweep.metric} {value:.4g}" if value is not None else f"{status}: {note}"
    say(f"{name}: {what}, {ended.seconds:.0f} seconds")
