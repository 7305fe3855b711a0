"""`pytest tests/benchmarks/test_learning_parts.py`: the arithmetic of bench_learning.py."""

import sys
from argparse import Namespace
from pathlib import Path

import pytest
from scipy import stats

sys.path.insert(0, str(Path(__file__).parent))
import bench_learning as bench


@pytest.fixture
def runs(tmp_path):
    return bench.Runs(tmp_path / "runs.jsonl")


def row(trainer, lr, seed, objective, task="review"):
    return {"task": task, "trainer": trainer, "lr": lr, "seed": seed, "steps": 3, "objective": objective}


def test_intervals_are_students():
    values = [0.1, 0.4, 0.2, 0.7, 0.3]
    mean, half = bench.interval(values)
    low, high = stats.t.interval(0.95, len(values) - 1, loc=mean, scale=stats.sem(values))
    assert (mean - half, mean + half) == pytest.approx((low, high), abs=2e-3)
    assert bench.interval([3.0]) == (3.0, 0.0)


def test_the_comparison_is_welchs_with_the_fewest_degrees_of_freedom():
    ours, theirs = [0.5, 0.6, 0.55, 0.7, 0.65], [0.4, 0.5, 0.45, 0.6, 0.5]
    difference, half = bench.at_least_as_good(ours, theirs)
    welch = stats.ttest_ind(ours, theirs, equal_var=False)
    assert difference / half * bench.T_95[5] == pytest.approx(welch.statistic)
    assert half >= (welch.confidence_interval(0.95).high - welch.confidence_interval(0.95).low) / 2 - 1e-3


def test_the_rate_is_chosen_on_seeds_that_are_not_reported(runs):
    for seed in bench.TUNING:
        runs.add(row("grpo", 1e-4, seed, 1.0))
        runs.add(row("grpo", 1e-3, seed, 2.0))
    for seed in bench.REPORTED:
        runs.add(row("grpo", 1e-4, seed, 9.0))
    assert bench.best_rate(runs, "review", "grpo") == 1e-3
    assert not set(bench.TUNING) & set(bench.REPORTED)


def test_a_second_call_makes_what_is_missing(runs, tmp_path):
    options = Namespace(trainers=["grpo"], steps=3)
    asked = bench.tuning(runs, "review", options)
    assert bench.reported(runs, "review", options) == []
    for each in asked:
        runs.add(each | {"objective": 1.0 - each["lr"]})
    again = bench.Runs(tmp_path / "runs.jsonl")
    assert again.all.keys() == runs.all.keys()
    assert {each["lr"] for each in bench.reported(again, "review", options)} == {min(each["lr"] for each in asked)}


def test_smoothing_is_the_mean_of_the_last_ones():
    assert bench.smooth([1.0, 3.0, 5.0, 7.0], width=2) == [1.0, 2.0, 4.0, 6.0]
