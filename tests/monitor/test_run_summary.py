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
        summary.add(read_row(start + i, {"objective/scores": value, "val/ratio_var": 1.0}))
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
    assert summarised(VALUES[2:], second, start=2).to_dict() == summarised(VALUES).to_dict()
