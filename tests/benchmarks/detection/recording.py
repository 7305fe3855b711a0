"""Trains a setting and keeps every log as the trainer wrote it, what the monitor said, and the facts it was told."""

import json
import tempfile
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

import trl_ext
from detection.tiny_runs import STEPS, Setting, build


class Recorder(TrainerCallback):
    """Keeps what the trainer logs, without what the monitor adds."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        own = {key: value for key, value in logs.items() if not key.startswith("trl_ext")}
        self.rows.append({"step": state.global_step, "logs": own})


def monitor() -> Any:
    """As a user attaches it."""
    return trl_ext.PPOMonitoringCallback()


def record(setting: Setting) -> dict[str, Any]:
    """`{"rows", "alerts", "facts", "error", "resumed_at"}`; a run that its fault ends early is a result too."""
    recorder, watcher, error, resumed_at = Recorder(), monitor(), None, None
    with tempfile.TemporaryDirectory() as folder:
        try:
            if setting.resume:
                half = Setting(setting.trainer, setting.seed, {"save_strategy": "steps", "save_steps": STEPS // 2})
                first = build(half, folder, [recorder, watcher])
                first.add_callback(_StopAt(STEPS // 2))
                first.train()
                resumed_at = STEPS // 2 + 1
                watcher = monitor()
                build(setting, folder, [recorder, watcher]).train(resume_from_checkpoint=True)
            else:
                trl_ext.train(build(setting, folder, [recorder, watcher]))
        except Exception as problem:
            error = f"{type(problem).__name__}: {str(problem).strip()[:200]}"
    facts = dict(watcher._run.engine.facts)  # what the callback read of the arguments, the tokenizer and the data
    return {
        "rows": recorder.rows, "alerts": [a.to_dict() for a in watcher.alerts], "facts": facts, "error": error,
        "resumed_at": resumed_at,
    }  # fmt: skip


class _StopAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step >= self.step


def write_run(folder: Path, name: str, about: dict[str, Any], run: dict[str, Any]) -> None:
    """`<name>.jsonl`, the logs, and `<name>.about.json`, the rest."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row, default=float) + "\n" for row in run["rows"])
    (folder / f"{name}.jsonl").write_text(lines)
    rest = {key: value for key, value in run.items() if key != "rows"}
    (folder / f"{name}.about.json").write_text(json.dumps({**about, **rest}, default=str, indent=1))
