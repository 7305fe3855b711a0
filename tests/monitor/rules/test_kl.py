import pytest

from trl_ext.monitor.engine import Engine
from trl_ext.monitor.rows import read_row
from trl_ext.monitor.rules import RULES, Finding, Verdict
from trl_ext.monitor.thresholds import resolve_thresholds


def severities(key, values, **others):
    rule = RULES["kl_high"](resolve_thresholds()["kl_high"])
    verdicts = [rule.check(read_row(i, {key: value, **others})) for i, value in enumerate(values)]
    return [v.severity if isinstance(v, Finding) else None for v in verdicts]


@pytest.mark.parametrize(
    ("key", "values", "last"),
    [
        ("objective/kl", (10, 10, 10, 10), None),
        ("objective/kl", (10.1, 10.1, 10.1), "warning"),
        ("objective/kl", (30, 30, 30), "warning"),
        ("objective/kl", (30.1, 30.1, 30.1), "error"),
        ("objective/kl", (100, 100, 100), "error"),
        ("objective/kl", (100.1, 100.1, 100.1), "critical"),
        ("objective/kl", (-5, -5, -5), None),
        ("kl", (0.5, 0.5, 0.5), None),
        ("kl", (0.51, 0.51, 0.51), "warning"),
        ("kl", (2.1, 2.1, 2.1), "error"),
        ("kl", (10.1, 10.1, 10.1), "critical"),
        ("kl", (9.9, 9.9, 9.9), "error"),
    ],
)
def test_bands(key, values, last):
    assert severities(key, values)[-1] == last


def test_it_takes_three_logs_in_a_row():
    assert severities("objective/kl", (12, 12, 9, 12, 12, 12)) == [None] * 5 + ["warning"]


def test_one_spike_never_counts_however_large():
    assert severities("objective/kl", (1, 1e9, 1, 1e9, 1)) == [None] * 5
    assert severities("kl", (0.0002, 4.185, 0.007)) == [None] * 3


def test_severity_is_that_which_held_throughout():
    assert severities("objective/kl", (200, 12, 40)) == [None, None, "warning"]


def test_short_completions_are_judged_by_their_sum():
    assert severities("kl", (0.8,) * 4, **{"completions/mean_length": 12.0}) == [None] * 4
    assert severities("kl", (0.8,) * 4, **{"completions/mean_length": 13.0})[-1] == "warning"


def test_where_the_sum_is_logged_the_mean_per_token_is_not_judged():
    assert severities("kl", (5.0,) * 4, **{"objective/kl": 8.0}) == [None] * 4


def test_kto_and_missing_keys_say_nothing():
    rule = RULES["kl_high"](resolve_thresholds()["kl_high"])
    assert [rule.check(read_row(i, {"kl": 50.0, "logps/chosen": -1.0})) for i in range(4)] == [Verdict.NO_DATA] * 4
    assert rule.check(read_row(9, {"loss": 1.0})) is Verdict.NO_DATA


def test_on_the_way_to_an_alert_it_is_not_healthy():
    rule = RULES["kl_high"](resolve_thresholds()["kl_high"])
    verdicts = [rule.check(read_row(i, {"objective/kl": value})) for i, value in enumerate((5, 12))]
    assert verdicts == [Verdict.HEALTHY, Verdict.NO_DATA]


def test_the_alert_names_the_numbers_and_the_options():
    rule = RULES["kl_high"](resolve_thresholds()["kl_high"])
    for i in range(3):
        found = rule.check(read_row(i, {"objective/kl": 12.34}))
    assert "12.3" in found.message and "10" in found.message
    for option in ("kl_coef", "beta", "learning_rate", "num_ppo_epochs", "kl_high.per_sequence_warning"):
        assert option in found.advice


def test_a_kl_that_hovers_at_the_band_is_one_alert():
    engine = Engine(["kl_high"])
    for step, value in enumerate([12.0] * 3 + [9.5] * 9 + [12.0] * 3 + [8.0] * 20 + [12.0] * 3):
        engine.observe(step, {"objective/kl": value})
    assert [(alert.opened, alert.closed) for alert in engine.alerts] == [(2, 24), (37, None)]


def runaway(stretches, **changed):
    """The verdict on three stretches of eight equal logs, and three logs more."""
    engine = Engine(["kl_runaway"], {f"kl_runaway.{name}": value for name, value in changed.items()}, warmup_steps=0)
    values = [level for level in stretches for _ in range(8)]
    for step, value in enumerate([*values, values[-1], values[-1]]):
        engine.observe(step, {"objective/kl": value})
    return [str(alert.severity) for alert in engine.alerts]


@pytest.mark.parametrize(
    ("stretches", "named"),
    [
        ((10.0, 15.0, 25.0), ["error"]),  # rises of 5 and 10
        ((10.0, 16.0, 22.0), []),  # a straight line
        ((10.0, 10.5, 25.0), []),  # the first rise is the noise of a median
        ((20.0, 25.0, 35.0), []),  # not doubled
        ((2.0, 4.0, 8.0), []),  # below the band
    ],
)
def test_a_runaway_accelerates_clearly_and_doubles_past_the_band(stretches, named):
    assert runaway(stretches, logs=1) == named
