import math
import random

import pytest

from trl_ext.monitor.rows import read_row
from trl_ext.monitor.rules import RULES, Finding
from trl_ext.monitor.thresholds import resolve_thresholds


def severities(values, **others):
    rule = RULES["value_loss_divergence"](resolve_thresholds()["value_loss_divergence"])
    verdicts = [rule.check(read_row(i, {"loss/value_avg": value, **others})) for i, value in enumerate(values)]
    return [v.severity if isinstance(v, Finding) else None for v in verdicts]


def noisy(level, sigma, n, seed=0):
    return [level * math.exp(random.Random(f"{seed}{i}").gauss(0, sigma)) for i in range(n)]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize(("growth", "severity"), [(9.9, None), (10.1, "warning"), (99, "warning"), (101, "error")])
def test_it_compares_with_the_run_itself_and_with_no_unit(scale, growth, severity):
    assert severities([scale] * 20 + [scale * growth] * 3)[-1] == severity


def test_it_takes_three_logs_in_a_row():
    assert severities([1.0] * 20 + [1e6, 1e6, 1.0, 1e6, 1e6]) == [None] * 25
    assert severities([1.0] * 20 + [1e6] * 3) == [None] * 22 + ["error"]


def test_a_slow_exponential_rise_is_seen_although_a_rolling_median_follows_it():
    growing = [1.02**i for i in range(400)]
    first = severities([1.0] * 50 + growing).index("warning")
    assert first < 50 + math.log(10) / math.log(1.02) + 10


def test_noise_raises_the_bar():
    # three logs at 12 times the level: many times the noise of the first history, within that of the second
    assert severities(noisy(1.0, 0.2, 60) + [12.0] * 3)[-1] == "warning"
    assert severities(noisy(1.0, 1.2, 60) + [12.0] * 3)[-1] is None


def test_a_critic_no_worse_than_at_its_start_has_not_diverged():
    fitted = [10.0] * 5 + [10.0 * 0.9**i for i in range(80)] + [0.002] * 80
    assert severities(fitted + [9.0] * 10)[-1] is None
    assert severities(fitted + [11.0] * 10)[-1] == "warning"


def test_a_reward_that_comes_alive_is_no_divergence():
    dead = [1e-6] * 30
    assert severities(dead + [0.05] * 9)[-1] == "error"  # with nothing to tell it apart
    assert severities(dead + [0.05] * 9, reward_std=0.3)[-1] is None


def test_a_critic_that_still_explains_the_returns_is_a_warning_at_most():
    diverging = [1.0] * 20 + [1e6] * 5
    assert severities(diverging, **{"value/explained_variance": 0.4})[-1] == "warning"
    assert severities(diverging, **{"value/explained_variance": -3.0})[-1] == "error"


def test_zero_says_nothing():
    assert severities([0.0] * 20 + [1.0] * 9) == [None] * 29


def test_healthy_noise_is_silent_over_thousands_of_logs():
    for seed in range(4):
        assert not any(severities(noisy(0.3, 0.7, 2000, seed)))


def test_the_alert_names_the_numbers_and_the_options():
    rule = RULES["value_loss_divergence"](resolve_thresholds()["value_loss_divergence"])
    for i, value in enumerate([2.0] * 20 + [50.0] * 3):
        found = rule.check(read_row(i, {"loss/value_avg": value}))
    assert "50" in found.message and "25 times" in found.message and found.evidence["calm_level"] == pytest.approx(2.0)
    assert all(option in found.advice for option in ("learning_rate", "vf_coef", "cliprange_value", "whiten_rewards"))


def test_the_pace_is_the_growth_a_log():
    rule = RULES["value_loss_divergence"](resolve_thresholds()["value_loss_divergence"], window=8)
    for i, value in enumerate([1.0] * 20 + [1.5**k for k in range(20)]):
        found = rule.check(read_row(i, {"loss/value_avg": value}))
    assert found.evidence["change_per_log"] == pytest.approx(0.5)
