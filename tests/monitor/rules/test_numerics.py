import math

import pytest

from trl_ext.monitor.rows import read_row
from trl_ext.monitor.rules import RULES, Finding, Verdict
from trl_ext.monitor.rules.numerics import WATCHED
from trl_ext.monitor.thresholds import resolve_thresholds


def judge(*rows, **limits):
    rule = RULES["nonfinite_metric"]({**resolve_thresholds()["nonfinite_metric"], **limits})
    return [rule.check(read_row(step, logs)) for step, logs in enumerate(rows)]


def fires(*rows, **limits):
    return [isinstance(verdict, Finding) for verdict in judge(*rows, **limits)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("key", ["grad_norm", "kl", "objective/kl", "entropy", "reward", "objective/scores", "loss",
                                 "logps/chosen", "rewards/rejected", "policy/approxkl_avg", "val/ratio",
                                 "loss/value_avg"])  # fmt: skip
def test_one_value_that_is_no_number_is_critical_at_once(key, value):
    (verdict,) = judge({key: value})
    assert verdict.severity == "critical"
    assert str(value) in verdict.message


@pytest.mark.parametrize("name", [name for name in WATCHED if "/" not in name and name != "mean_reward"])
def test_none_is_no_data_unless_a_number_came_before(name):
    assert fires({name: None}, {name: None}, {name: 0.5}, {name: None}, {name: 0.5}) == [
        False,
        False,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize(
    "row",
    [
        {"val/ratio": 1.0, "val/ratio_var": math.nan},
        {"loss": 0.0, "grad_norm": 0.1},
        {"loss": 0.0},
        {"reward": 1.0, "rewards/a/mean": 1.0, "rewards/b/mean": math.nan, "rewards/b/std": math.nan},
        {"reward": 1.0, "reward_std": math.nan},
        {"value/explained_variance": math.nan, "loss": 0.1},
        {"eval_loss": math.nan, "loss": 0.1},
        {},
        {"note": "nan"},
    ],
)
def test_what_healthy_runs_show_is_silent(row):
    assert fires(row) == [False]


def test_a_missing_key_is_never_an_anomaly():
    assert fires({"kl": 0.1, "loss": 1.0}, {"loss": 1.0}, {"kl": 0.1}) == [False] * 3


def test_one_function_without_numbers_is_healthy_but_not_all_of_them():
    both, one, none = (
        {"rewards/a/mean": a, "rewards/b/mean": b, "reward": 0.0} for a, b in ((1, 1), (1, None), (None,) * 2)
    )
    assert fires(both, one, none) == [False, False, True]
    assert judge(both, none)[1].metric == "reward/a/mean"


def test_a_masked_loss_is_explained():
    (verdict,) = judge({"loss": 0.0, "grad_norm": math.nan})
    assert verdict.metric == "grad_norm"
    assert "loss shows 0" in verdict.message and "logging_nan_inf_filter" in verdict.message


OVERFLOWS = [{"grad_norm": g, "loss": 0.5} for g in (math.inf, 1.0, math.nan, math.nan, math.nan)]


def severities(verdicts):
    return [str(verdict.severity) if isinstance(verdict, Finding) else None for verdict in verdicts]


def test_a_gradient_alone_is_a_warning_until_the_next_log():
    assert severities(judge(*OVERFLOWS)) == ["warning", None, "warning", "critical", "critical"]


@pytest.mark.parametrize("row", [{"loss": 0.0}, {}, {"loss": 1.0, "kl": math.nan}])
def test_a_gradient_is_critical_at_once_beside_a_masked_loss_or_another_number_that_is_none(row):
    assert severities(judge({"grad_norm": math.nan, **row})) == ["critical"]


def test_under_a_loss_scaler_single_overflows_are_not_mentioned_but_not_for_long():
    rule = RULES["nonfinite_metric"](resolve_thresholds()["nonfinite_metric"])
    rule.facts = {"fp16": True}
    verdicts = [rule.check(read_row(step, row)) for step, row in enumerate(OVERFLOWS)]
    assert severities(verdicts) == [None, None, None, None, "critical"]
    assert severities([rule.check(read_row(9, {"grad_norm": math.nan, "kl": math.nan}))]) == ["critical"]


def test_advice_follows_what_is_lost():
    def advice(logs):
        return judge(logs)[0].advice

    assert "reward function" in advice({"reward": math.nan, "grad_norm": math.nan})
    assert "bf16" in advice({"grad_norm": math.nan})
    assert "rejected side" in advice({"rewards/chosen": 0.1, "rewards/rejected": math.nan, "logps/rejected": math.nan})
    assert "float16" in advice({"kl": math.nan, "grad_norm": math.nan})


def test_the_most_telling_metric_comes_first():
    (verdict,) = judge({"grad_norm": math.nan, "loss": math.nan, "reward": math.inf})
    assert (verdict.metric, verdict.value) == ("reward", math.inf)


def test_a_log_without_watched_metrics_says_nothing():
    assert judge({"train_runtime": 3.0, "eval_loss": 0.1}) == [Verdict.NO_DATA]


def test_what_had_been_a_number_survives_the_state():
    first, second = (RULES["nonfinite_metric"](resolve_thresholds()["nonfinite_metric"]) for _ in range(2))
    first.check(read_row(1, {"kl": 0.1}))
    second.load_state_dict(first.state_dict())
    assert isinstance(second.check(read_row(2, {"kl": None})), Finding)
