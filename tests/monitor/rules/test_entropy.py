import pytest

from trl_ext.monitor.rows import read_row
from trl_ext.monitor.rules import RULES, Finding
from trl_ext.monitor.thresholds import resolve_thresholds


def severities(values, key="entropy", reward=1.0):
    rule = RULES["entropy_collapse"](resolve_thresholds()["entropy_collapse"])
    logs = {"reward": reward} if reward is not None else {}
    verdicts = [rule.check(read_row(i, {key: value, **logs})) for i, value in enumerate(values)]
    return [v.severity if isinstance(v, Finding) else None for v in verdicts]


@pytest.mark.parametrize("scale", [0.01, 1.0, 300.0])
@pytest.mark.parametrize(
    ("fraction", "severity"), [(0.21, None), (0.19, "warning"), (0.051, "warning"), (0.049, "error")]
)
def test_it_compares_with_the_start_and_with_no_unit(scale, fraction, severity):
    assert severities([scale] * 3 + [fraction * scale] * 5)[-1] == severity


def test_the_start_is_the_median_of_the_first_three_logs():
    # median 1.0: 0.19 is below a fifth of it, but not of the mean (0.7), nor of the smallest (0.1)
    assert severities([1.0, 0.1, 1.0] + [0.19] * 5)[-1] == "warning"
    assert severities([1.0, 0.9, 0.9] + [0.19] * 5)[-1] is None


def test_it_takes_five_logs_in_a_row():
    assert severities([1.0] * 3 + [0.1] * 4 + [0.9] + [0.1] * 4) == [None] * 12
    assert severities([1.0] * 3 + [0.1] * 5) == [None] * 7 + ["warning"]


def test_the_sequence_sum_is_never_used():
    assert severities([50.0] * 3 + [-100.0] * 9, key="objective/entropy") == [None] * 12


def test_without_a_reward_entropy_may_fall():
    assert severities([1.0] * 3 + [0.01] * 9, reward=None) == [None] * 12


def test_a_start_of_zero_is_no_start():
    assert severities([0.0] * 9) == [None] * 9


def test_the_alert_names_the_numbers_and_the_options():
    rule = RULES["entropy_collapse"](resolve_thresholds()["entropy_collapse"])
    for i, value in enumerate([2.0] * 3 + [0.25] * 5):
        found = rule.check(read_row(i, {"policy/entropy_avg": value, "objective/scores": 1.0}))
    assert "0.25" in found.message and "12%" in found.message and found.evidence["start"] == 2.0
    assert all(option in found.advice for option in ("learning_rate", "kl_coef", "beta", "entropy_coef", "temperature"))
