"""Rules of the user: a watched metric, a comparison, a function; and what is said of mistakes in them."""

import math
import random

import numpy as np
import pytest

from trl_ext.errors import UserError
from trl_ext.monitor import Engine, Finding, Rule, Verdict


def judge(engine, values, key="my_metric"):
    for i, value in enumerate(values):
        engine.observe(i + 1, {key: value})
    return [(alert.opened, alert.rule, str(alert.severity)) for alert in engine.alerts]


def noisy(count, seed=0):
    draw = random.Random(seed)
    return [draw.gauss(10, 1) for _ in range(count)]


def watching(options, **arguments):
    return Engine([], watch={"my_metric": options}, **arguments)


def test_a_watched_metric_is_judged_against_its_own_history():
    history = noisy(40)
    assert judge(watching(None), history) == []
    assert judge(watching(None), [*history, 18.0]) == [(41, "watch:my_metric", "warning")]
    assert judge(watching(None), [*history, 28.0]) == [(41, "watch:my_metric", "error")]  # twice as far: one higher
    assert judge(watching({"severity": "critical"}), [*history, 28.0]) == [(41, "watch:my_metric", "critical")]


@pytest.mark.parametrize(
    ("direction", "value", "fires"), [("up", 30, True), ("up", -10, False), ("down", -10, True), ("down", 30, False)]
)
def test_a_direction_may_be_asked_for(direction, value, fires):
    assert bool(judge(watching({"direction": direction}), [*noisy(40), value])) == fires


def test_its_distance_is_in_robust_standard_deviations():
    history = [float(i % 5) for i in range(64)]  # median 2, median absolute deviation 1
    below, above = 2 + 4 * 1.4826 - 0.01, 2 + 4 * 1.4826 + 0.01
    assert judge(watching(4), [*history, below]) == []
    assert judge(watching(4), [*history, above]) == [(65, "watch:my_metric", "warning")]


def test_a_constant_metric_that_moves_is_an_anomaly_and_rounding_is_none():
    assert judge(watching(None), [1.0] * 20 + [1.0 + 1e-12] * 3) == []
    assert judge(watching(None), [1.0] * 20 + [1.1]) == [(21, "watch:my_metric", "error")]


def test_it_recovers_and_keeps_quiet_in_warm_up():
    engine = watching(None)
    judge(engine, [*noisy(40), 30.0, 10.0])
    assert [(alert.opened, alert.closed) for alert in engine.alerts] == [(41, 42)]
    assert judge(watching(None, warmup_steps=50), [*noisy(40), 30.0]) == []


def test_either_name_may_be_watched_and_one_that_never_comes_is_named_at_the_end():
    for name in ("objective/kl", "kl_per_sequence"):
        engine = Engine([], watch={name: None})
        assert judge(engine, [*noisy(40), 60.0], key="objective/kl") == [(41, f"watch:{name}", "error")]
        assert engine.finish() == []
    engine = watching(None)
    judge(engine, noisy(3), key="loss")
    (note,) = engine.finish()
    assert "'my_metric' was never logged" in note and "loss" in note


@pytest.mark.parametrize(
    ("comparison", "value", "holds"),
    [
        (">", 1.0, False),
        (">=", 1.0, True),
        ("<", 1.0, False),
        ("<=", 1.0, True),
        ("==", 1.0, True),
        ("!=", 1.0, False),
        ("!=", 2, True),
    ],
)
def test_a_comparison_holds_for_some_logs_in_a_row(comparison, value, holds):
    rule = {
        "metric": "my_metric",
        "comparison": comparison,
        "value": value,
        "logs": 2,
        "severity": "error",
        "name": "mine",
    }
    assert judge(Engine([], custom_rules=[rule]), [1.0, 1.0]) == ([(2, "mine", "error")] if holds else [])
    assert judge(Engine([], custom_rules=[rule]), [1.0]) == []


def test_a_comparison_says_the_message_and_the_number():
    engine = Engine([], custom_rules=[{"metric": "x", "comparison": ">", "value": 2, "logs": 1, "message": "too much"}])
    (alert,) = engine.observe(1, {"x": 3.5})
    assert (alert.rule, alert.message, alert.severity) == ("x > 2", "too much (x is 3.5)", "warning")


def test_a_function_sees_both_names_and_says_nothing_a_word_or_a_finding():
    seen = []

    def mine(metrics):
        seen.append(dict(metrics))
        return {1.0: None, 2.0: "two", 3.0: Finding("critical", "kl_per_token", 3.0, "three", "stop")}[metrics["kl"]]

    engine = Engine([], custom_rules=[mine])
    assert judge(engine, [1.0, 2.0, 3.0], key="kl") == [(2, "mine", "critical")]
    assert seen[0] == {"kl": 1.0, "kl_per_token": 1.0}


def test_a_function_that_fails_is_switched_off_and_the_others_go_on(caplog):
    engine = Engine(["kl_high"], custom_rules=[lambda metrics: 1 / 0])
    assert judge(engine, [50.0] * 4, key="objective/kl") == [(3, "kl_high", "error")]
    assert len(caplog.records) == 1
    assert engine.finish() == ["<lambda>: failed and was off from then on; its traceback is in the log"]


def test_a_function_says_nothing_of_a_log_without_its_metric(caplog):
    engine = Engine([], custom_rules=[lambda metrics: metrics["loss"] > 5])
    for step, logs in enumerate([{"eval_loss": 1.0}, {"loss": 1.0}, {"eval_loss": 1.0}, {"loss": 6.0}]):
        engine.observe(step, logs)
    assert [alert.opened for alert in engine.alerts] == [3]
    assert engine.finish() == [] and not caplog.records


def test_a_function_whose_metric_never_comes_is_named_at_the_end():
    engine = Engine([], custom_rules=[lambda metrics: metrics["absent"] > 5])
    assert judge(engine, [1.0], key="loss") == []
    assert engine.finish() == ["<lambda>: 'absent' was never logged. The keys that were: loss"]


def test_a_rule_instance_may_be_passed_as_well():
    class Mine(Rule):
        name = "mine"

        def check(self, row):
            return Verdict.HEALTHY if row.step < 2 else Finding("info", "x", 0.0, "", "")

    assert judge(Engine([], custom_rules=[Mine({})]), [0.0] * 3) == [(2, "mine", "info")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"watch": {"m": {"sevrity": "error"}}}, r"unknown option of watch\['m'\] 'sevrity': did you mean 'severity'"),
        ({"watch": {"m": {"severity": "eror"}}}, "unknown severity 'eror': did you mean 'error'"),
        ({"watch": {"m": {"direction": "upp"}}}, "did you mean 'up'"),
        ({"watch": {"m": "six"}}, "must be a finite number, not 'six'"),
        ({"watch": {"m": math.nan}}, "must be a finite number, not nan"),
        ({"watch": {"m": 0}}, "must be above 0"),
        ({"watch": {3: None}}, "must name metrics, not 3"),
        ({"watch": ["m"]}, "must be a mapping"),
        ({"custom_rules": [{"metric": "m", "comparison": ">"}]}, "lacks value"),
        ({"custom_rules": [{"metric": "m", "comparison": "=>", "value": 1}]}, "unknown comparison '=>': did you mean"),
        ({"custom_rules": [{"metric": "m", "comparison": ">", "value": "1"}]}, "must be a finite number, not '1'"),
        ({"custom_rules": [{"metric": "m", "comparison": ">", "value": True}]}, "must be a finite number, not True"),
        ({"custom_rules": [{"metric": "m", "comparison": ">", "value": 1, "logs": 0}]}, "at least 1, not 0"),
        ({"custom_rules": [{"metric": "m", "comparison": ">", "value": 1, "logs": 1.5}]}, "at least 1, not 1.5"),
        ({"custom_rules": [{"metrc": "m", "comparison": ">", "value": 1}]}, "'metrc': did you mean 'metric'"),
        ({"custom_rules": [3]}, "a function or a mapping"),
        ({"preset": "ppo_saef"}, "unknown preset 'ppo_saef': did you mean 'ppo_safe'"),
        ({"custom_rules": [{"metric": "m", "comparison": ">", "value": 1}] * 2}, "two rules are named 'm > 1'"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_in_one_line(arguments, message):
    with pytest.raises(UserError, match=message) as error:
        Engine(**arguments)
    assert "\n" not in str(error.value)


def test_a_function_may_say_yes_or_no():
    engine = Engine([], custom_rules=[lambda m: m["loss"] > 5, lambda m: m["loss"] > 7])
    assert judge(engine, [1.0, 6.0], key="loss") == [(2, "<lambda>", "warning")]
    assert engine.alerts[0].message == "<lambda> holds"


def test_what_a_function_found_in_training_is_not_over_at_an_evaluation():
    engine = Engine([], custom_rules=[lambda m: m.get("loss", 0) > 5])
    for step in range(20):
        engine.observe(step, {"loss": 9.0} if step % 10 == 0 else {"eval_accuracy": 0.5})
    assert [(alert.opened, alert.closed) for alert in engine.alerts] == [(0, None)]


def test_a_watched_key_is_followed_whatever_stands_beside_it():
    engine = Engine([], watch={"kl": 6}, warmup_steps=0)  # KTO's `kl` has another canonical name
    for step, value in enumerate([*noisy(40), 80.0]):
        engine.observe(step, {"kl": value, "rewards/chosen": 0.1, "logps/chosen": -5.0, "loss": 0.5})
    assert [alert.rule for alert in engine.alerts] == ["watch:kl"] and engine.finish() == []


def test_a_metric_that_came_before_a_resume_has_come():
    before, after = watching(None), watching(None)
    judge(before, noisy(3))
    after.load_state_dict(before.state_dict())
    assert after.finish() == []


def test_a_metric_that_is_never_a_number_has_not_come():
    engine = watching(None)
    judge(engine, [None, "1.0", math.nan])
    assert len(engine.finish()) == 1


@pytest.mark.parametrize(("said", "message"), [(np.bool_(True), "<lambda> holds"), (1, "<lambda> holds"), ("no", "no")])
def test_what_a_function_says_is_judged_as_python_would(said, message):
    engine = Engine([], custom_rules=[lambda m: said])
    judge(engine, [1.0], key="loss")
    assert [alert.message for alert in engine.alerts] == [message]


@pytest.mark.parametrize("nothing", [None, False, np.bool_(False), 0, "", []])
def test_a_function_that_says_nothing_finds_nothing(nothing):
    engine = Engine([], custom_rules=[lambda m: nothing])
    assert judge(engine, [1.0], key="loss") == []
