"""Totals of a run against NumPy."""

import json
import math

import numpy as np
import pytest

from trl_ext.monitor.rows import read_row
from trl_ext.monitor.run_summary import RunSummary

VALUES = [0.3, -1.0, 2.5, 2.0, 0.1]


def summarised(values, summary=None, start=0):
    summary = summary or RunSummary()
    for i, value in enumerate(values):
        summary.add(start + i, read_row(start + i, {"objective/scores": value, "val/ratio_var": 1.0}).metrics)
    return summary


def test_first_last_mean_and_extremes():
    result = summarised(VALUES).to_dict()
    reward = result["metrics"]["reward"]
    assert (result["logs"], result["last_step"], reward["logs"]) == (5, 4, 5)
    assert (reward["first"], reward["last"]) == (0.3, 0.1)
    assert reward["mean"] == pytest.approx(np.mean(VALUES))
    assert (reward["min"], reward["max"]) == (min(VALUES), max(VALUES))
    assert "ratio_variance" not in result["metrics"]


def test_only_finite_numbers_count():
    reward = summarised([1.0, math.nan, None, math.inf, 3.0]).to_dict()["metrics"]["reward"]
    assert reward == {"first": 1.0, "last": 3.0, "min": 1.0, "max": 3.0, "mean": 2.0, "logs": 2}


def test_a_resumed_summary_goes_on():
    first, second = summarised(VALUES[:2]), RunSummary()
    second.load(json.loads(json.dumps(first.to_dict())))
    resumed, whole = summarised(VALUES[2:], second, start=2).to_dict(), summarised(VALUES).to_dict()
    assert resumed["metrics"]["reward"] == pytest.approx(whole["metrics"]["reward"], rel=1e-12)
    assert (resumed["logs"], resumed["last_step"]) == (whole["logs"], whole["last_step"]) == (5, 4)


def test_many_logs_are_summed_up_as_few():
    values = list(np.random.default_rng(0).normal(5, 2, size=1000))
    summary = summarised(values[:300])
    summary.to_dict()  # looking does not count twice
    reward = summarised(values[300:], summary, start=300).to_dict()["metrics"]["reward"]
    assert reward["mean"] == pytest.approx(np.mean(values)) and reward["logs"] == 1000
    assert (reward["min"], reward["max"]) == (min(values), max(values))
    assert (reward["first"], reward["last"]) == (values[0], values[-1])
    assert len(summary._waiting) < 64


def test_a_metric_that_comes_now_and_then_keeps_its_place():
    summary = RunSummary()
    for step in range(200):
        summary.add(step, {"reward": 1.0, **({"eval/loss": float(step)} if step % 70 == 0 else {})})
    seen = summary.to_dict()["metrics"]["eval/loss"]
    assert seen == {"first": 0.0, "last": 140.0, "min": 0.0, "max": 140.0, "mean": pytest.approx(70.0), "logs": 3}
