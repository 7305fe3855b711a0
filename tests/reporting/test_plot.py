"""The picture of a run: drawn from whatever was logged, without a display."""

import builtins
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from trl_ext.errors import UserError
from trl_ext.monitor import Alert, RunFiles, Severity
from trl_ext.monitor.metrics import METRICS
from trl_ext.monitor.rows import read_row
from trl_ext.reporting.plot import PANELS, plot_run

matplotlib_figure = pytest.importorskip("matplotlib.figure")


def rows(n=40, **metrics):
    return [{"step": i, **{name: f(i) for name, f in metrics.items()}} for i in range(1, n + 1)]


@pytest.fixture
def figures(monkeypatch):
    """The figures that `plot_run` draws."""
    made = []
    original = matplotlib_figure.Figure.savefig

    def keep(figure, path):
        made.append(figure)
        original(figure, path)

    monkeypatch.setattr(matplotlib_figure.Figure, "savefig", keep)
    return made


def titles(figure):
    return [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]


def panel(figure, title):
    return next(axes for axes in figure.axes if title in axes.get_title(loc="left"))


EVERYTHING = {
    "reward": lambda i: i / 40, "reward_with_kl": lambda i: i / 50, "kl_per_sequence": lambda i: i / 10,
    "kl_per_token": lambda i: i / 100, "entropy_per_token": lambda i: 3 - i / 40, "value_loss": lambda i: 1 / i,
    "explained_variance": lambda i: i / 40, "completion_length": lambda i: 20.0, "grad_norm": lambda i: 1.0,
    "loss": lambda i: 0.0,
}  # fmt: skip


def test_a_png_of_readable_size_is_written(tmp_path):
    picture = plot_run(rows(**EVERYTHING), tmp_path / "run.png")
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG") and len(data) > 20_000
    width, height = int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    assert 1000 <= width <= 2000 and 600 <= height <= 2000


def test_each_panel_with_data_is_drawn_once_and_the_others_are_left_out(tmp_path, figures):
    plot_run(rows(**EVERYTHING), tmp_path / "a.png")
    assert titles(figures[0]) == ["Reward", "KL to the reference, nats a sequence", "Entropy, nats a token",
                                  "Value loss (log scale)", "Completion length, tokens", "Gradient norm"]  # fmt: skip
    plot_run(rows(loss=lambda i: 1 / i, kl_per_token=lambda i: 0.1), tmp_path / "b.png")
    assert titles(figures[1]) == ["KL to the reference, nats a token", "Loss"]


def test_the_lines_are_the_data(tmp_path, figures):
    plot_run(rows(n=10, reward=lambda i: i**2), tmp_path / "a.png")
    (line,) = panel(figures[0], "Reward").lines
    assert list(line.get_xdata()) == list(range(1, 11)) and list(line.get_ydata()) == [i**2 for i in range(1, 11)]


def test_long_runs_are_smoothed_by_a_moving_average_over_the_raw_line(tmp_path, figures):
    plot_run(rows(n=200, reward=lambda i: i % 2), tmp_path / "a.png")
    raw, smooth = panel(figures[0], "Reward").lines
    assert set(raw.get_ydata()) == {0, 1}
    assert smooth.get_ydata()[100] == pytest.approx(0.5, abs=0.06)


def test_the_kl_panel_shows_its_healthy_band_and_what_leaves_it(tmp_path, figures):
    for top in (3.0, 40.0):
        plot_run(rows(kl_per_sequence=lambda i, top=top: top), tmp_path / "a.png")
    for figure, top in zip(figures, (12.0, 42.0), strict=True):
        axes = panel(figure, "KL")
        assert axes.get_ylim()[1] == pytest.approx(top)
        (band,) = axes.patches
        assert (band.get_y(), band.get_height()) == (0, 10)


def test_alerts_are_vertical_lines_in_every_panel_and_named(tmp_path, figures):
    alerts = [Alert(20, "kl_high", Severity.WARNING, "kl", 11, "m", "a", {}, opened=17)]
    plot_run(rows(**EVERYTHING), tmp_path / "a.png", alerts=alerts)
    marked = [axes for axes in figures[0].axes if any(list(line.get_xdata()) == [17, 17] for line in axes.lines)]
    assert len(marked) == 6
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == ["warning: kl_high at step 17"]


def test_from_files_the_alerts_beside_the_metrics_are_drawn(tmp_path, figures):
    files = RunFiles(tmp_path)
    for step in range(1, 9):
        files.log(read_row(step, {"objective/kl": 12.0, "objective/scores": math.nan if step == 4 else 1.0}))
    files.alert(Alert(3, "kl_high", Severity.WARNING, "kl", 11, "m", "a", {}, opened=3), "opened")
    plot_run(tmp_path / "metrics.jsonl", tmp_path / "a.png")
    assert len(figures[0].legends[0].get_texts()) == 1
    drawn = panel(figures[0], "Reward").lines[0]
    assert 4 not in list(drawn.get_xdata())


def test_alerts_as_dictionaries_of_the_summary(tmp_path, figures):
    alert = Alert(3, "kl_high", Severity.WARNING, "kl", 11, "m", "a", {}, opened=3)
    plot_run(rows(**EVERYTHING), tmp_path / "a.png", alerts=[json.loads(json.dumps(alert.to_dict()))])
    assert len(figures[0].legends[0].get_texts()) == 1


def test_a_value_loss_of_zero_needs_a_linear_scale(tmp_path, figures):
    plot_run(rows(value_loss=lambda i: float(i > 3)), tmp_path / "a.png")
    assert panel(figures[0], "Value").get_yscale() == "linear"


def test_nothing_to_plot_is_one_line(tmp_path):
    for nothing in ([], [{"step": 1, "note": "x"}], [{"step": 1, "reward": math.nan}]):
        with pytest.raises(UserError, match="nothing to plot"):
            plot_run(nothing, tmp_path / "a.png")


def test_without_matplotlib_one_line_names_the_extra(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r'pip install "trl_ext\[recipes\]"'):
        plot_run(rows(reward=float), tmp_path / "a.png")


def test_matplotlib_is_imported_only_when_it_draws_and_pyplot_never(tmp_path):
    """In a process of its own, from the file alone, so that nothing else imports it. The state of pyplot is global."""
    root = Path(__file__).parents[2]
    code = (
        "import sys, importlib.util as u\n"
        "spec = u.spec_from_file_location('plot', sys.argv[1]); plot = u.module_from_spec(spec)\n"
        "spec.loader.exec_module(plot); assert 'matplotlib' not in sys.modules\n"
        "plot.plot_run([{'step': 1, 'reward': 1.0}], sys.argv[2]); assert 'matplotlib.pyplot' not in sys.modules"
    )
    command = [sys.executable, "-c", code, str(root / "trl_ext" / "reporting" / "plot.py"), str(tmp_path / "a.png")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_metric_of_a_panel_is_canonical():
    for _, left, right in PANELS:
        for metric in [*left, *([right] if right else [])]:
            assert metric.removeprefix("eval/") in METRICS or metric.startswith("reward_reliability/")
