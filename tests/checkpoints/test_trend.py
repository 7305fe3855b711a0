"""The checkpoints of a run: drift against exact numbers, what stands still, where the pace changes."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from trl_ext.checkpoints.errors import UnreadableError
from trl_ext.checkpoints.health.judging import judge
from trl_ext.checkpoints.run_folder import is_run, judge_run
from trl_ext.checkpoints.trend import Trend, change_point, checkpoints_of


def write_run(folder, paces, every=10, dtype=torch.float32):
    """A run whose weights move by `pace` times a random direction from one checkpoint to the next."""
    generator = torch.Generator().manual_seed(0)
    weights = {f"model.layers.{i}.mlp.up_proj.weight": torch.randn(100, 120, generator=generator) for i in range(2)}
    for i, pace in enumerate([None, *paces]):
        if pace:
            weights = {n: w + pace * torch.randn(w.shape, generator=generator) for n, w in weights.items()}
        path = folder / f"checkpoint-{every * (i + 1)}"
        path.mkdir(parents=True)
        save_file({name: weight.to(dtype) for name, weight in weights.items()}, path / "x.safetensors")
        (path / "trainer_state.json").write_text(f'{{"global_step": {every * (i + 1)}}}')
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_drift_of_a_run_is_about_the_exact_one(dtype, tmp_path):
    run = judge_run(write_run(tmp_path, [0.1, 0.1, 0.3], dtype=dtype))
    paths = checkpoints_of(tmp_path)
    for i, point in enumerate(run.trend.points[1:], 1):
        exact = judge(paths[i], paths[i - 1]).whole.drift
        assert point.previous.relative == pytest.approx(exact.relative, rel=0.05)
        assert 1 - point.previous.cosine == pytest.approx(1 - exact.cosine, rel=0.15)
        first = judge(paths[i], paths[0]).whole.drift
        assert point.first.relative == pytest.approx(first.relative, rel=0.05)
        assert point.pace == pytest.approx(point.previous.relative / 10)


def test_nothing_moved_since_is_an_error_that_names_the_checkpoint(tmp_path):
    run = judge_run(write_run(tmp_path, [0.1, 0.1, 0, 0]))
    (finding,) = [finding for finding in run.findings if finding.rule == "nothing_moved"]
    assert finding.severity == "error"
    assert "since checkpoint-30" in finding.message


def test_a_single_weight_that_moves_in_the_last_bit_is_no_standstill(tmp_path):
    write_run(tmp_path, [0.1, 0])
    path = checkpoints_of(tmp_path)[-1] / "x.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 64
    path.write_bytes(content)
    assert "nothing_moved" not in {finding.rule for finding in judge_run(tmp_path).findings}


def test_a_layer_that_stands_still_is_an_information(tmp_path):
    generator = torch.Generator().manual_seed(0)
    trend = Trend()
    for step in (1, 2):
        path = tmp_path / f"checkpoint-{step}"
        path.mkdir()
        weights = {"model.layers.0.w": torch.ones(50, 50), "model.layers.1.w": torch.randn(50, 50, generator=generator)}
        save_file(weights, path / "x.safetensors")
        trend.add(step, judge(path))
    (finding,) = trend.findings()
    assert (finding.rule, finding.severity) == ("layers_still", "info")
    assert "layer 0" in finding.message


def test_a_burst_and_a_change_of_pace_are_told(tmp_path):
    run = judge_run(write_run(tmp_path, [0.01, 0.011, 0.009, 0.01, 0.1, 0.11, 0.1, 0.09]))
    rules = {finding.rule: finding for finding in run.findings}
    assert "checkpoint-60" in rules["pace_changed"].message
    run = judge_run(write_run(tmp_path / "burst", [0.001, 0.0011, 0.001, 0.0009, 0.5]))
    assert "drift_burst" in {finding.rule for finding in run.findings}


def test_a_steady_run_is_told_nothing(tmp_path):
    paces = [0.01 * factor for factor in (1, 0.9, 1.1, 0.8, 0.95, 0.9, 0.85, 1, 0.9, 0.7)]
    assert judge_run(write_run(tmp_path, paces)).findings == []


def test_a_schedule_that_falls_linearly_is_no_alarm(tmp_path):
    run = judge_run(write_run(tmp_path, [0.01 * (1 - i / 10) for i in range(10)]))
    assert [finding for finding in run.findings if finding.severity > "info"] == []


@pytest.mark.parametrize("at", [3, 5, 9])
def test_a_change_point_is_where_the_level_changes(at):
    noise = np.random.default_rng(0).normal(0, 0.1, 12)
    series = [(10 * i, (math.log(10) if i >= at else 0) + noise[i]) for i in range(12)]
    found = change_point(series)
    assert found["at"] == 10 * at
    assert found["after"] / found["before"] == pytest.approx(10, rel=0.2)


def test_noise_has_no_change_point():
    """300 runs of noise: the bound is 4 standard errors and a factor of 3."""
    random = np.random.default_rng(1)
    found = [change_point(list(enumerate(random.normal(0, 0.4, 20)))) for _ in range(300)]
    assert sum(one is not None for one in found) == 0


def test_a_folder_of_checkpoints_is_told_from_one_checkpoint(tmp_path):
    write_run(tmp_path, [0.1])
    assert is_run(tmp_path)
    assert not is_run(tmp_path / "checkpoint-10")
    assert not is_run(tmp_path / "nowhere")
    (tmp_path / "checkpoint-9").symlink_to(tmp_path / "checkpoint-10")
    assert [path.name for path in checkpoints_of(tmp_path)] == ["checkpoint-10", "checkpoint-20"]
    with pytest.raises(UnreadableError, match="has no folder checkpoint-N"):
        judge_run(tmp_path / "checkpoint-10")
