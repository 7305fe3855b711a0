"""The reward over a run, beyond `cases.py`."""

import random

import numpy as np
import pytest
from scipy.stats import median_abs_deviation

from trl_ext.monitor.engine import Engine
from trl_ext.monitor.rows import read_row
from trl_ext.monitor.rules.reward_series import RewardSeries


def test_a_reward_that_swings_is_told_once_and_a_deeper_fall_again():
    def swing(step):
        return 1.0 + 0.05 * (-1) ** step - (0.5 if step % 120 >= 80 else 0.0) - (0.5 if step >= 560 else 0.0)

    engine = Engine(["reward_drop"])
    for step in range(600):
        engine.observe(step, {"reward": swing(step)})
    engine.flush()
    assert [alert.opened // 80 for alert in engine.alerts] == [1, 7]  # at 80 and at 560


def test_the_wobble_is_that_of_whole_means_of_sixteen():
    series = RewardSeries(64)
    numbers = random.Random(3)
    rewards = [numbers.gauss(0, 1) + step // 40 % 2 for step in range(16 * 12 + 5)]
    for step, reward in enumerate(rewards):
        series.push(read_row(step, {"reward": reward}))
    means = np.mean(np.reshape(rewards[: 16 * 12], (12, 16)), axis=1)
    assert series.wobble == pytest.approx(median_abs_deviation(np.diff(means), scale="normal"), rel=1e-4)
