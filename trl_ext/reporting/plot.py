"""A picture of a run: `plot_run`."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from trl_ext.errors import UserError
from trl_ext.monitor.alerts import Alert
from trl_ext.monitor.files import ALERTS_FILE
from trl_ext.monitor.reading import read_alerts, read_metrics

Rows = Sequence[Mapping[str, Any]]

BLUE, ORANGE, GREY, GREEN = "#2a6f97", "#e07a1f", "#8a8f98", "#4c956c"
SEVERITY_COLORS = {"info": GREY, "warning": "#d9a21b", "error": "#d1495b", "critical": "#8b1e3f"}
# Title, the metrics drawn on the left axis with their labels, and one on the right axis
PANELS: tuple[tuple[str, dict[str, str], str | None], ...] = (
    ("Reward", {"reward": "reward", "reward_with_kl": "with KL penalty"}, None),
    ("Held-back reward, not trained on", {"reward_reliability/gold": "held-back"}, None),
    ("KL to the reference, nats a sequence", {"kl_per_sequence": "KL"}, None),
    ("KL to the reference, nats a token", {"kl_per_token": "KL"}, None),
    ("Entropy, nats a token", {"entropy_per_token": "entropy"}, None),
    ("Value loss (log scale)", {"value_loss": "value loss"}, "explained_variance"),
    ("Completion length, tokens", {"completion_length": "mean length"}, None),
    ("Reliability of the reward, 0 to 1", {"reward_reliability/score": "score"}, None),
    ("Loss", {"loss": "training", "eval/loss": "evaluation"}, None),
    ("Gradient norm", {"grad_norm": "gradient norm"}, None),
)
KL_BAND = (0.0, 10.0)  # nats a sequence: TRL how_to_train, N implementation details of RLHF with PPO
_SMOOTHED_SHARE = 25


def plot_run(
    metrics: str | os.PathLike[str] | Iterable[Mapping[str, Any]],
    out_png: str | os.PathLike[str],
    *,
    alerts: Iterable[Alert | Mapping[str, Any]] | None = None,
    title: str = "Training run",
) -> Path:
    """Draws reward, KL with its healthy band, entropy, value function and length; alerts as vertical lines.

    What was not logged is left out. Needs no display and leaves matplotlib's global state alone.

    Args:
        metrics: path of a `metrics.jsonl`, or its rows.
        alerts: by default those of the `alerts.jsonl` beside the metrics; none for rows.
    Returns:
        Path of the picture.
    Raises:
        UserError: matplotlib is missing, or there is nothing to draw.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError('a plot needs matplotlib: pip install "trl_ext[recipes]"') from error
    if isinstance(metrics, str | os.PathLike):
        rows: Rows = read_metrics(metrics)
        alerts = read_alerts(Path(metrics).with_name(ALERTS_FILE)) if alerts is None else alerts
    else:
        rows = list(metrics)
    panels = _panels(rows)
    columns = min(2, len(panels))
    lines = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(5.6 * columns, 2.7 * lines + 0.7), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=13, fontweight="bold", x=0.01, ha="left")
    marks = [alert if isinstance(alert, Alert) else Alert.from_dict(dict(alert)) for alert in alerts or ()]
    for i, (name, left, right) in enumerate(panels):
        axes = figure.add_subplot(lines, columns, i + 1)
        if i >= len(panels) - columns:
            axes.set_xlabel("step", fontsize=8)
        _draw_panel(axes, rows, name, left, right)
        for alert in marks:
            axes.axvline(alert.opened, color=SEVERITY_COLORS[alert.severity], linewidth=1.2, linestyle=(0, (4, 2)))
    _label_alerts(figure, marks)
    figure.savefig(out_png)
    return Path(out_png)


def _panels(rows: Rows) -> list[tuple[str, dict[str, str], str | None]]:
    """The panels with something to show. `UserError` when there is none."""
    panels = [panel for panel in PANELS if _has_data(rows, panel[1])]
    if not panels:
        raise UserError("nothing to plot: the metrics hold none of " + ", ".join(m for _, ms, _ in PANELS for m in ms))
    hidden = set()
    if _has_data(rows, ("reward",)):
        hidden.add("loss")  # a policy-gradient loss says nothing about progress
    if _has_data(rows, ("kl_per_sequence",)):
        hidden.add("kl_per_token")  # once, in the trainer's own unit
    return [panel for panel in panels if hidden.isdisjoint(panel[1])]


def _draw_panel(axes: Any, rows: Rows, name: str, left: Mapping[str, str], right: str | None) -> None:
    axes.set_title(name, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e8eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.tick_params(labelsize=8, length=0)
    colors = (BLUE, GREY)
    drawn = [_draw_line(axes, rows, m, label, colors[i]) for i, (m, label) in enumerate(left.items())]
    handles = [line for line in drawn if line is not None]
    if "kl_per_sequence" in left:
        handles.append(axes.axhspan(*KL_BAND, color=GREEN, alpha=0.10, linewidth=0, label="healthy band"))
        top = max(value for _, value in _series(rows, "kl_per_sequence"))
        axes.set_ylim(top=max(KL_BAND[1] * 1.2, top * 1.05))
    if "reward_reliability/score" in left:
        axes.set_ylim(0, 1.05)
    if "value_loss" in left and min(value for _, value in _series(rows, "value_loss")) > 0:
        _use_log_scale(axes)
    if right is not None and _has_data(rows, (right,)):
        other = axes.twinx()
        other.spines[["top", "left"]].set_visible(False)
        other.tick_params(labelsize=8, length=0, colors=ORANGE)
        line = _draw_line(other, rows, right, right.replace("_", " ") + " (right)", ORANGE)
        other.set_ylim(bottom=max(-1.0, min(value for _, value in _series(rows, right)) - 0.05), top=1.05)
        handles.append(line)
    if len(handles) > 1:
        # beside the title, where it hides no line
        axes.legend(handles=handles, fontsize=7.5, frameon=False, ncols=len(handles), loc="lower right",
                    bbox_to_anchor=(1.01, 0.98), borderaxespad=0.0, columnspacing=1.2)  # fmt: skip


def _use_log_scale(axes: Any) -> None:
    """With labels such as 0.05 rather than powers of ten, also within one decade."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")


def _draw_line(axes: Any, rows: Rows, metric: str, label: str, color: str) -> Any:
    """The raw values, faint, and their moving average; `None` without data."""
    points = _series(rows, metric)
    if not points:
        return None
    steps, values = zip(*points, strict=True)
    half = len(values) // _SMOOTHED_SHARE // 2
    smooth = [fmean(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
    if half:
        axes.plot(steps, values, color=color, alpha=0.28, linewidth=0.8)
    marker = "o" if len(values) < 8 else None
    return axes.plot(steps, smooth, color=color, linewidth=1.8, label=label, marker=marker, markersize=3)[0]


def _label_alerts(figure: Any, alerts: Sequence[Alert]) -> None:
    """Names the vertical lines below the panels, the first few of them."""
    from matplotlib.lines import Line2D

    if alerts:
        first = sorted(alerts, key=lambda alert: alert.opened)[:6]
        handles = [Line2D([], [], color=SEVERITY_COLORS[a.severity], linestyle=(0, (4, 2))) for a in first]
        names = [f"{a.severity}: {a.rule} at step {a.opened}" for a in first]
        figure.legend(handles, names, loc="outside lower left", ncols=3, fontsize=8, frameon=False)


def _series(rows: Rows, metric: str) -> list[tuple[int, float]]:
    """Step and value of the rows with a finite one."""
    values = ((row["step"], row.get(metric)) for row in rows)
    return [(s, v) for s, v in values if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)]


def _has_data(rows: Rows, metrics: Iterable[str]) -> bool:
    return any(_series(rows, metric) for metric in metrics)
