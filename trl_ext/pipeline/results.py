"""What each stage came to, for people."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from trl_ext.errors import UserError
from trl_ext.monitor.files import ALERTS_FILE, METRICS_FILE
from trl_ext.monitor.reading import read_alerts, read_metrics
from trl_ext.pipeline.definition import Pipeline, Stage
from trl_ext.pipeline.state import PipelineState
from trl_ext.reporting.summary import run_summary


def results_table(pipeline: Pipeline, state: PipelineState) -> Table:
    """A row a stage: how long it took, the numbers that tell how it went, and the alerts of its monitor."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("stage")
    table.add_column("time", justify="right")
    table.add_column("result", overflow="fold")
    table.add_column("alerts", overflow="fold")
    for stage in pipeline.stages:
        seconds = state.stages.get(stage.name, {}).get("seconds")
        took = "-" if seconds is None else f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.0f} s"
        table.add_row(stage.name, took, Text(result_of(stage)), Text(_alerts(stage)))
    return table


def result_of(stage: Stage) -> str:
    """From `eval_results.json`, as Transformers writes it, from the logs of the monitor, or what `compare.py` wrote."""
    folder = Path(stage.options["output_dir"])
    held_out, rows = _json(folder / "eval_results.json"), _rows(folder)
    summary = run_summary(rows)
    parts = [part for part in (_preference(held_out), _loss(held_out, rows)) if part]
    for name, label in (("reward", "reward"), ("gold", "gold reward"), ("kl", "KL"), ("length", "length")):
        quantity = _gold(rows) if name == "gold" else summary.get(name)
        if quantity and quantity["count"] and "reward" in summary:
            parts.append(f"{label} {quantity['first']:.3g} -> {quantity['last']:.3g}")
    if not parts and (compared := _json(folder / "comparison.json")):
        parts = [f"{len(compared)} policies, the table above"]
    return ", ".join(parts) or str(folder)


def _preference(held_out: Mapping[str, Any]) -> str | None:
    if "eval_rewards/accuracies" in held_out:  # DPO
        accuracy, margin = held_out["eval_rewards/accuracies"], held_out["eval_rewards/margins"]
        return f"held-out accuracy {accuracy:.3f}, margin {margin:.3f} nats"
    if "eval_accuracy" in held_out:
        return f"held-out accuracy {held_out['eval_accuracy']:.3f}"
    return None


def _loss(held_out: Mapping[str, Any], rows: list[dict]) -> str | None:
    if "eval_loss" not in held_out:
        return None
    before = next((row["eval_loss"] for row in rows if row.get("step") == 0 and row.get("eval_loss") is not None), None)
    return "held-out loss " + (f"{before:.3f} -> " if before is not None else "") + f"{held_out['eval_loss']:.3f}"


def _gold(rows: list[dict]) -> dict[str, Any] | None:
    values = [row["reward_reliability/gold"] for row in rows if row.get("reward_reliability/gold") is not None]
    tenth = max(1, len(values) // 10)
    mean = {"first": sum(values[:tenth]) / tenth, "last": sum(values[-tenth:]) / tenth} if values else {}
    return {**mean, "count": len(values)} if values else None


def _alerts(stage: Stage) -> str:
    path = Path(stage.options["output_dir"], "trl_ext", ALERTS_FILE)
    try:
        alerts = read_alerts(path) if path.exists() else []
    except (UserError, OSError):
        return "?"
    told = dict.fromkeys(f"{alert.rule} ({alert.severity.value})" for alert in alerts if alert.severity.value != "info")
    return ", ".join(told) or ("none" if (path.parent / METRICS_FILE).exists() else "")


def _rows(folder: Path) -> list[dict]:
    try:
        return [dict(row) for row in read_metrics(folder / "trl_ext" / METRICS_FILE)]
    except (UserError, OSError):
        return []


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
