"""rlprobe 0.1.0, rldoctor 0.2.0 and rlwatch 0.5.1 on the same logs, each by its documented entry for TRL.

`prepare(folder)` makes a throw-away environment for them. This file is also the program that runs in it: it reads logs
from stdin, one JSON record a line, and answers `{"name", "tool", "said": [[step, severity, what], ...]}`.

* rlprobe: `RlprobeCallback` with `on_finding` (it diagnoses every 25 steps), then `diagnose(run_dir)`, its CLI's work.
* rldoctor: `RLDoctorCallback` (every 25 logs from the 60th on), then the diagnosis that its CLI makes of a whole log.
* rlwatch: the callback that `rlwatch.attach(trainer=...)` registers.

`severity` is "info", "warning" or "error" here: what they call critical counts as error. rldoctor tells its `info` when
asked to, and is asked to.
"""

import contextlib
import io
import json
import logging
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

VERSIONS = {"rlprobe": "0.1.0", "rldoctor": "0.2.0", "rlwatch": "0.5.1"}
NEEDS = ("pydantic>=2.5", "typer>=0.9", "click>=8.1", "slack-sdk>=3.20")  # the rest comes from this environment
Said = list[tuple[int, str, str]]  # step, severity, detector


def prepare(folder: Path) -> str:
    """The Python of an environment with the peers; Transformers, NumPy and pyarrow are borrowed from this one."""
    python = folder / "bin" / "python"
    if not python.is_file():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        site = next((folder / "lib").glob("python*/site-packages"))
        (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pins = [f"{name}=={version}" for name, version in VERSIONS.items()]
        for options in (["--no-deps", *pins], list(NEEDS)):
            subprocess.run([str(python), "-m", "pip", "install", "-q", *options], check=True)
    return str(python)


def judge(python: str, logs: Iterable[dict[str, Any]]) -> dict[tuple[Any, str], list]:
    """What each peer says of each log: `{(name, tool): [(step, severity, what, None), ...]}`.

    They never take back what they said.

    Args:
        logs: `{"name", "trainer", "rows"}`.
    """
    lines = "".join(json.dumps(log) + "\n" for log in logs)
    done = subprocess.run([python, "-W", "ignore", __file__], input=lines, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the peers failed:\n{done.stderr[-2000:]}")
    answers = map(json.loads, done.stdout.splitlines())
    return {(a["name"], a["tool"]): [(*said, None) for said in a["said"]] for a in answers}


# In the peers' environment ------------------------------------------------------------------------


def hooks(folder: str) -> tuple[SimpleNamespace, SimpleNamespace, SimpleNamespace]:
    """(args, state, control) as a TRL trainer passes them."""
    args = SimpleNamespace(output_dir=folder, world_size=1, process_index=0, to_dict=dict)
    return args, SimpleNamespace(global_step=0, is_world_process_zero=True), SimpleNamespace(should_training_stop=False)


def drive(callback: Any, rows: list[dict], folder: str, seen: Callable[[int], None]) -> None:
    args, state, control = hooks(folder)
    getattr(callback, "on_train_begin", lambda *a, **k: None)(args, state, control)
    for row in rows:
        state.global_step = row["step"]
        seen(row["step"])
        callback.on_log(args, state, control, logs=dict(row["logs"]))
        if hasattr(callback, "on_step_end"):
            callback.on_step_end(args, state, control)
    getattr(callback, "on_train_end", lambda *a, **k: None)(args, state, control)


def rlprobe(trainer: str, rows: list[dict], folder: str) -> Said:
    from rlprobe.doctor import diagnose
    from rlprobe.integrations.trl import RlprobeCallback

    said, now = [], [0]
    names = {"warn": "warning", "critical": "error"}

    def found(finding: Any) -> None:
        said.append((now[0], names.get(finding.severity, "info"), finding.signature_id))

    class_ = type(trainer.split()[0].upper() + "Trainer", (), {"_logs": None})
    callback = RlprobeCallback(f"{folder}/probe", trainer=class_(), on_finding=found)
    drive(callback, rows, folder, lambda step: now.__setitem__(0, step))
    known = {what for _, _, what in said}
    for finding in diagnose(f"{folder}/probe"):
        if finding.signature_id not in known:
            found(finding)
    return said


def rldoctor(trainer: str, rows: list[dict], folder: str) -> Said:
    from rl_doctor import Severity
    from rl_doctor.integrations.trl import RLDoctorCallback

    said, now = [], [0]
    names = {Severity.WARNING: "warning", Severity.CRITICAL: "error"}

    def found(finding: Any) -> None:
        said.append((now[0], names.get(finding.severity, "info"), finding.detector))

    callback = RLDoctorCallback()
    callback.monitor.on_finding, callback.monitor.alert_at = found, Severity.INFO
    drive(callback, rows, folder, lambda step: now.__setitem__(0, step))
    callback.monitor.check()
    return said


def rlwatch(trainer: str, rows: list[dict], folder: str) -> Said:
    import rlwatch as package

    said = []
    monitor = package.attach(framework="trl", config_path=None)
    send = monitor.alert_manager.send

    def recorded(alert: Any) -> bool:
        sent = send(alert)
        if sent:
            severity = "error" if str(alert.severity).lower() == "critical" else "warning"
            said.append((alert.step, severity, alert.detector))
        return sent

    monitor.alert_manager.send = recorded
    drive(monitor._trl_callback_class(), rows, folder, lambda step: None)
    monitor.stop()
    return said


TOOLS = {"rlprobe": rlprobe, "rldoctor": rldoctor, "rlwatch": rlwatch}


def main() -> None:
    logging.disable(logging.CRITICAL)
    for line in sys.stdin:
        log = json.loads(line)
        for tool, run in TOOLS.items():
            silent = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
            with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), silent[0], silent[1]:
                try:
                    said = run(log["trainer"], log["rows"], folder)
                except Exception as error:  # it would have ended the training
                    said = [(log["rows"][-1]["step"], "crash", f"{type(error).__name__}: {error}")]
            print(json.dumps({"name": log["name"], "tool": tool, "said": said}), flush=True)


if __name__ == "__main__":
    main()
