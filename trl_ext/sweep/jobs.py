"""One job: a process of its own, its folder, its output in `log.txt`."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from trl_ext.checkpoints.errors import printable
from trl_ext.errors import UserError
from trl_ext.strict_yaml import dump_yaml, read_yaml
from trl_ext.sweep.definition import Sweep
from trl_ext.sweep.parameters import Point

LOG_FILE, CONFIG_FILE = "log.txt", "config.yaml"
_GRACE = 10.0  # seconds between asking a job to end and ending it
_TAIL_BYTES = 1 << 14


class Ended(NamedTuple):
    """`status` is `ok`, `failed` or `timeout`; `note` the last line of the output of one that is not `ok`."""

    status: str
    note: str
    seconds: float


def options_of(point: Point, seed: int | None) -> dict[str, Any]:
    """The options of a job."""
    return dict(point) if seed is None else {**point, "seed": seed}


def command_of(sweep: Sweep, job: int, options: dict[str, Any]) -> list[str]:
    """The words of a job. A recipe reads its values from a file, other commands from words: `--name value`."""
    folder = Path(sweep.output_dir) / str(job)
    words = [*sweep.start(), *sweep.arguments]
    if sweep.recipe is not None:
        return [*words, "--config", str(folder / CONFIG_FILE), "--output_dir", str(folder)]
    config = [] if sweep.config is None else ["--config", sweep.config]
    values = [word for name, value in options.items() for word in _option(name, value)]
    return [*words, *config, *values, "--output_dir", str(folder)]


def run_job(sweep: Sweep, job: int, options: dict[str, Any], on_start: Callable[..., None]) -> Ended:
    """Runs a job to its end, to its timeout, or until Ctrl-C, which ends it too.

    Args:
        on_start: called with `pid` and `created` of its process.
    """
    folder = Path(sweep.output_dir) / str(job)
    try:
        put_aside(folder)
        folder.mkdir(parents=True)
        if sweep.recipe is not None:
            base = {} if sweep.config is None else read_yaml(sweep.config) or {}
            (folder / CONFIG_FILE).write_text(dump_yaml({**base, **options}), encoding="utf-8")
        log_file = open(folder / LOG_FILE, "wb")  # noqa: SIM115 - closed below, after the job
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {error.strerror}") from error
    began = time.monotonic()
    with log_file as log:
        try:
            # a session of its own: what it starts can be ended with it, and Ctrl-C reaches it through us alone
            process = subprocess.Popen(
                command_of(sweep, job, options), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return Ended("failed", f"cannot start {sweep.start()[0]}: {error.strerror}", 0.0)
        with contextlib.suppress(psutil.Error):
            on_start(pid=process.pid, created=psutil.Process(process.pid).create_time())
        try:
            code = process.wait(sweep.timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_group(process)
    seconds = time.monotonic() - began
    if code is None:
        return Ended("timeout", f"ended after {sweep.timeout:g} seconds; its last line: {last_line(folder)}", seconds)
    if code:
        return Ended("failed", f"status {code}: {last_line(folder)}", seconds)
    return Ended("ok", "", seconds)


def end_left_over(started: dict[str, Any]) -> bool:
    """Ends the process of a job whose sweep was killed, if it still runs: the very one, not one that has its number."""
    try:
        process = psutil.Process(started["pid"])
        if not abs(process.create_time() - started["created"]) <= 0.01:  # nor where it is no number
            return False
        family = [process, *process.children(recursive=True)]
    except (psutil.Error, KeyError):
        return False
    for each in family:
        with contextlib.suppress(psutil.Error):
            each.terminate()
    _, alive = psutil.wait_procs(family, timeout=_GRACE)
    for each in alive:
        with contextlib.suppress(psutil.Error):
            each.kill()
    psutil.wait_procs(alive, timeout=_GRACE)
    return True


def last_line(folder: Path) -> str:
    """Of a job's output, the last that says something, of at most 400 characters."""
    try:
        with open(folder / LOG_FILE, "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - _TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except OSError as error:  # it removed its own folder
        return f"its {LOG_FILE} cannot be read: {error.strerror}"
    lines = [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return printable(lines[-1][:400]) if lines else "it printed nothing"


def put_aside(folder: Path, mark: str = "cut-short") -> None:
    """What a job wrote that was cut short is kept: a run that appended to it would mix two."""
    with contextlib.suppress(OSError):  # it holds something, or is none
        folder.rmdir()
    if os.path.lexists(folder):
        number = 1
        while folder.with_name(f"{folder.name}.{mark}-{number}").exists():
            number += 1
        folder.rename(folder.with_name(f"{folder.name}.{mark}-{number}"))


def interrupt_on_signals() -> None:
    """What runs must end with us: so ask Slurm, `timeout`, `kill`, and a terminal that is closed (not under nohup)."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # not on Windows
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)


def end_group(process: subprocess.Popen) -> None:
    """The process, if it runs, and whatever it started that still does; an impatient second Ctrl-C waits for that."""
    before = {}
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        with contextlib.suppress(ValueError, AttributeError):  # another thread than the main one may not; Windows
            number = getattr(signal, name)
            before[number] = signal.signal(number, signal.SIG_IGN)
    try:
        _end_group(process)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_group(process: subprocess.Popen) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        try:
            process.wait(_GRACE)
            if number == signal.SIGTERM:
                _wait_for_group(process.pid)
        except subprocess.TimeoutExpired:
            continue


def _wait_for_group(group: int) -> None:
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            return
        time.sleep(0.02)


def _option(name: str, value: Any) -> list[str]:
    """As words; `--name=-1e-05` in one, since argparse takes a word that begins with a minus for an option."""
    words = _words(value)
    return [f"--{name}={words[0]}"] if len(words) == 1 and words[0].startswith("-") else [f"--{name}", *words]


def _words(value: Any) -> list[str]:
    if value is None:
        return ["null"]
    if isinstance(value, list):
        return [word for each in value for word in _words(each)]
    if isinstance(value, dict):
        return [json.dumps(value)]
    return [str(value).lower() if isinstance(value, bool) else str(value)]
