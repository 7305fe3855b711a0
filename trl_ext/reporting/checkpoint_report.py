"""The report on a checkpoint, a comparison or a run: Markdown, and a picture."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trl_ext.checkpoints.errors import printable
from trl_ext.checkpoints.groups import GroupStatistics, members_of, samples_of
from trl_ext.checkpoints.health.finding import HealthFinding
from trl_ext.checkpoints.health.judging import CheckpointHealth
from trl_ext.checkpoints.run_folder import RunHealth
from trl_ext.errors import UserError
from trl_ext.reporting.checkpoint_table import drift_cells, number_text, run_rows, share_text, size_text
from trl_ext.reporting.plot import BLUE, GREEN, GREY, ORANGE, SEVERITY_COLORS

MARKDOWN_FILE, PICTURE_FILE = "checkpoint.md", "checkpoint.png"
_BINS = 61
_SHOWN = 8  # histograms


def write_report(verdict: CheckpointHealth | RunHealth, folder: Path) -> list[Path]:
    """`checkpoint.md` and `checkpoint.png` in `folder`, which is made where it is not there.

    Returns:
        The paths of the two.
    Raises:
        UserError: the folder lies in the checkpoint, or cannot be written; matplotlib is missing.
    """
    judged = verdict.path if isinstance(verdict, RunHealth) else verdict.checkpoint.path
    if folder.resolve().is_relative_to(judged.resolve()):
        raise UserError(f"--report {folder} lies in the checkpoint, where nothing is written: name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        picture, text = folder / PICTURE_FILE, folder / MARKDOWN_FILE
        _draw(verdict, picture)
        text.write_text(markdown(verdict), encoding="utf-8", errors="replace")  # names from files of others
    except OSError as error:
        raise UserError(f"cannot write the report into {folder}: {error.strerror or error}") from error
    return [text, picture]


def markdown(verdict: CheckpointHealth | RunHealth) -> str:
    """The verdict as Markdown; the picture is expected beside it."""
    lines = _of_run(verdict) if isinstance(verdict, RunHealth) else _of_checkpoint(verdict)
    return "\n".join(lines) + "\n"


def _of_checkpoint(health: CheckpointHealth) -> list[str]:
    whole = health.whole
    lines = [
        f"# {_escaped(health.checkpoint.path.resolve().name)}: {health.status}, {health.score:.2f}", "",
        f"`{printable(str(health.checkpoint.path))}`: {health.checkpoint.form}, "
        f"{len(health.measured.tensors):,} tensors, {whole.elements:,} parameters, "
        f"{size_text(sum(health.checkpoint.files.values()))}.", "",
        *_findings(health.findings), f"![weights]({PICTURE_FILE})", "", "## Weights", "",
        *_groups([*health.groups, whole]),
    ]  # fmt: skip
    if health.layers:
        lines += ["## Layers", "", *_groups(health.layers)]
    if health.measured.lora:
        rows = [[_escaped(u.target), str(u.rank), f"{u.effective_rank:.2f}", number_text(u.norm),
                 "" if u.relative is None else f"{u.relative:.3g}"] for u in health.measured.lora]  # fmt: skip
        lines += ["## LoRA", "", *_table(["weight", "rank", "effective rank", "norm", "of its weight's norm"], rows)]
    return lines


def _of_run(run: RunHealth) -> list[str]:
    rows = run_rows(run)
    table = _table(list(rows[0]), [list(row.values()) for row in rows]) if rows else []
    lines = [f"# {_escaped(run.path.resolve().name)}: {len(run.checkpoints)} checkpoints", "", *table,
             f"![trend]({PICTURE_FILE})", "", *_findings(run.findings)]  # fmt: skip
    for health in run.checkpoints:
        if health.severity is not None and health.severity > "info":
            lines += [f"## {printable(health.checkpoint.path.name)}", "", *_findings(health.findings)]
    return lines


def _findings(findings: Sequence[HealthFinding]) -> list[str]:
    if not findings:
        return ["Nothing to complain about.", ""]
    lines = []
    for finding in findings:
        lines += [f"* **{finding.severity}, {finding.rule}**: {_escaped(finding.message)}.",
                  f"  {_escaped(finding.advice)}"]  # fmt: skip
    return [*lines, ""]


def _groups(groups: Sequence[GroupStatistics]) -> list[str]:
    drifts = any(group.drift is not None for group in groups)
    titles = ["", "tensors", "parameters", "NaN, infinite", "zeros", "mean", "std", "abs max", "norm"]
    titles += ["drift", "cosine", "sign flips"] if drifts else []
    rows = []
    for group in groups:
        cells = [
            _escaped(group.name), f"{group.tensors:,}", f"{group.elements:,}", f"{group.nan + group.infinite:,}",
            share_text(group.zeros, group.elements),
            *(number_text(value) for value in (group.mean, group.std, group.abs_max, group.norm)),
        ]  # fmt: skip
        if drifts:
            cells += drift_cells(group.drift)
        rows.append(cells)
    return _table(titles, rows)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [titles, ["---"] * len(titles), *rows]
    return ["| " + " | ".join(row) + " |" for row in lines] + [""]


def _escaped(text: str) -> str:
    """Names come from files of others: no markup, no line of their own."""
    text = " ".join(text.split())
    for sign in "\\`*_[]<>|!":
        text = text.replace(sign, f"\\{sign}")
    return text


def _draw(verdict: CheckpointHealth | RunHealth, path: Path) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError('a picture needs matplotlib: pip install "trl_ext[recipes]"') from error
    figure = Figure(dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    if isinstance(verdict, RunHealth):
        _draw_run(figure, verdict)
    else:
        _draw_checkpoint(figure, verdict)
    figure.savefig(path)


def _draw_checkpoint(figure: Any, health: CheckpointHealth) -> None:
    groups = [group for group in health.groups if not math.isnan(group.std)][:_SHOWN]
    layers = [layer for layer in health.layers if not math.isnan(layer.norm)]
    columns = min(4, max(len(groups), 1))
    lines = math.ceil(len(groups) / columns)
    figure.set_size_inches(max(3.0 * columns, 7), 2.3 * lines + (2.8 if layers else 0) + 0.6)
    figure.suptitle(
        f"{printable(health.checkpoint.path.resolve().name)}: {health.status}, {health.score:.2f}", fontsize=12,
        fontweight="bold", x=0.01, ha="left",
    )  # fmt: skip
    grid = figure.add_gridspec(max(lines, 1) + (1 if layers else 0), columns)
    if not groups:
        axes = figure.add_subplot(grid[0, 0])
        axes.axis("off")
        axes.text(0.0, 0.5, "No weight is a finite number: nothing to draw.", fontsize=11)
    for i, group in enumerate(groups):
        axes = figure.add_subplot(grid[i // columns, i % columns])
        _plain(axes, f"{group.name}, {group.elements:,}")
        _histogram(axes, health, group)
    if layers:
        axes = figure.add_subplot(grid[-1, :])
        _draw_layers(axes, layers)


def _histogram(axes: Any, health: CheckpointHealth, group: GroupStatistics) -> None:
    """Of the samples, each of which stands for all elements of its tensor; the ends hold what lies beyond."""
    values, weights = samples_of(members_of(health.measured, group.name))
    low, high = group.quantiles[0], group.quantiles[-1]
    width = max(high - low, 0.01 * max(abs(low), abs(high)), 1e-9)
    edges = np.linspace(low - width, high + width, _BINS)
    all_values = np.clip(values, edges[0], edges[-1])
    axes.hist(all_values, bins=edges, weights=weights / group.elements, color=BLUE, linewidth=0)
    axes.set_yscale("log")
    axes.minorticks_off()
    if edges[0] < 0 < edges[-1]:
        axes.axvline(0, color=GREY, linewidth=0.6)
    axes.set_xlim(edges[0], edges[-1])


def _draw_layers(axes: Any, layers: Sequence[GroupStatistics]) -> None:
    numbers = [int(layer.name) for layer in layers]
    drifts = [layer.drift.relative if layer.drift is not None else math.nan for layer in layers]
    if any(math.isfinite(drift) for drift in drifts):
        _plain(axes, "Drift from the reference, by layer (norm of the change by the norm)")
        axes.bar(numbers, [drift if math.isfinite(drift) else 0.0 for drift in drifts], color=ORANGE, width=0.8)
    else:
        _plain(axes, "Norm of the weights, by layer")
        axes.bar(numbers, [0.0 if math.isnan(layer.norm) else layer.norm for layer in layers], color=BLUE, width=0.8)
    axes.set_xlabel("layer", fontsize=8)
    axes.xaxis.get_major_locator().set_params(integer=True)


def _draw_run(figure: Any, run: RunHealth) -> None:
    figure.set_size_inches(8, 6.4)
    figure.suptitle(
        f"{printable(run.path.resolve().name)}: {len(run.checkpoints)} checkpoints", fontsize=12, fontweight="bold",
        x=0.01, ha="left",
    )  # fmt: skip
    points = run.trend.points
    for i, (title, lines) in enumerate((
        ("Drift of the weights (norm of the change by the norm)",
         (("from the previous", ORANGE, [p.previous.relative if p.previous else math.nan for p in points]),
          ("from the first", BLUE, [p.first.relative if p.first else math.nan for p in points]))),
        ("Health, 0 to 1", (("score", GREEN, [h.score for h in run.checkpoints]),)),
    )):  # fmt: skip
        axes = figure.add_subplot(2, 1, i + 1)
        _plain(axes, title)
        for label, color, values in lines:
            axes.plot([p.step for p in points], values, color=color, marker="o", markersize=4, label=label)
        axes.set_xlim(points[0].step - 0.5, points[-1].step + 0.5)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if len(lines) > 1:
            axes.legend(fontsize=8, frameon=False)
        else:
            axes.set_ylim(-0.03, 1.05)
        axes.set_xlabel("step", fontsize=8)
        for health, point in zip(run.checkpoints, points, strict=False):
            if health.severity is not None and health.severity >= "error":
                axes.axvline(point.step, color=SEVERITY_COLORS[health.severity], linewidth=1, linestyle=(0, (4, 2)))


def _plain(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7, length=0)
    axes.grid(axis="y", color="#e6e8eb", linewidth=0.6)
    axes.set_axisbelow(True)
