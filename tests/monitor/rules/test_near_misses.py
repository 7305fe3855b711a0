"""What comes close to a limit and is healthy, or is just beyond it: one limit a test."""

import math
import random

import pytest

from trl_ext.monitor.engine import Engine


def said(rule, logs, **arguments):
    """`(opened, severity)` of each alert of one rule; logs are a dictionary of lists or of numbers."""
    engine = Engine([rule], warmup_steps=0, **arguments)
    count = max(len(values) for values in logs.values() if isinstance(values, list))
    for step in range(count):
        engine.observe(step, {k: v[step] if isinstance(v, list) else v for k, v in logs.items()})
    engine.flush()
    return [(alert.opened, str(alert.severity)) for alert in engine.alerts]


def test_a_small_loss_may_grow_by_factors():
    assert said("early_divergence", {"loss": [0.1] + [0.5] * 10}) == []
    assert said("early_divergence", {"loss": [0.1] + [2.2] * 10}) == [(4, "error")]


def test_only_the_first_logs_are_compared_with_the_first():
    assert said("early_divergence", {"loss": [1.0] * 40 + [4.0] * 10}) == []
    assert said("early_divergence", {"loss": [1.0] * 28 + [4.0] * 10}) == [(31, "error")]


@pytest.mark.parametrize(("first", "named"), [(1.5, [(44, "error")]), (4.5, [])])
def test_what_a_loss_held_from_the_start_is_not_the_model_being_wrong(first, named):
    """An auxiliary loss of 3 nats, say. The entropy is 1; late, so that the first log alone is not enough."""
    logs = {"loss": [first] * 41 + [6.0] * 10, "entropy": 1.0, "mean_token_accuracy": 0.5}
    assert said("early_divergence", logs) == named


def test_a_thousandfold_learning_rate_is_named_although_the_accuracy_lags():
    """A real run of SFT on the embedded policy, learning rate 2e-2."""
    logs = {"loss": [3.7, 5.5, 7.1, 7.8, 7.6, 8.6, 10.5, 8.4], "entropy": [3.8, 2.5, 2.2, 2.0, 1.8, 1.7, 1.5, 1.9],
            "mean_token_accuracy": [0.2, 0.1, 0.05, 0.05, 0.1, 0.1, 0.05, 0.22]}  # fmt: skip
    assert [severity for _, severity in said("early_divergence", logs)] == ["error"]


def after_resume(logs, at, **facts):
    engine = Engine(["resume_discontinuity"], warmup_steps=0, facts=facts)
    for step in range(len(next(iter(logs.values())))):
        if step == at:
            engine.resumed()
        engine.observe(step, {name: values[step] for name, values in logs.items()})
    engine.flush()
    return [(alert.opened, str(alert.severity)) for alert in engine.alerts]


def around(level, noise, count, seed):
    chance = random.Random(seed)
    return [level * (1 + noise * chance.gauss(0, 1)) for _ in range(count)]


@pytest.mark.parametrize(
    "kl",
    [
        [0.0, 0.082, 0.114, 0.689],  # a real run of recipes/ppo.yaml
        [0.0, 0.082, 0.114, 1.3],
        [0.0, 0.1, 0.6, 2.0, 3.0],
        [0.0, 2.0, 4.0],
        [0.0, 0.05, 0.3, 1.5, 4.0, 7.0],
        [0.05 * 1.6**i for i in range(14)],
        [0.02 * 2.0**i for i in range(14)],
    ],
)
@pytest.mark.parametrize(("name", "scale"), [("objective/kl", 1), ("kl", 0.1)])
def test_the_kl_of_a_young_run_grows_by_factors_after_an_exact_resume(name, scale, kl):
    for at in range(1, len(kl)):
        assert after_resume({name: [scale * value for value in kl]}, at) == []


@pytest.mark.parametrize(("name", "scale"), [("objective/kl", 1), ("kl", 0.1)])
@pytest.mark.parametrize(
    "before",
    [
        [13.1, 15.2, 14.6],
        [0.0, 0.03, 0.3, 0.9, 1.9, 4.0],  # a young run, whose own first KL is as low
        [0.5 * i for i in range(16)],
        around(5, 0.1, 20, 1),
        around(5, 0.2, 20, 2),
    ],
)
def test_a_kl_that_is_gone_after_a_resume_is_that_of_weights_that_were_not_restored(before, name, scale):
    """A real run of reinforce_loo: the checkpoint held the first policy's weights. 14.6 nats a sequence, then 0."""
    logs = {name: [scale * value for value in (*before, 0.0, 0.03, 0.3)]}
    assert after_resume(logs, len(before)) == [(len(before) + 1, "error")]
    assert after_resume(logs, len(before), reference_moves=True) == []


@pytest.mark.parametrize("once", [0.0, 0.5, 60.0])
def test_one_batch_is_no_verdict(once):
    before = around(14, 0.05, 10, 0)
    assert after_resume({"objective/kl": [*before, once, 13.0, 14.0]}, at=10) == []
    assert after_resume({"objective/kl": [*before, once, 13.0, once]}, at=10) == [(12, "error")]


def test_a_dip_before_does_not_hide_a_kl_that_is_gone():
    before = around(5, 0.05, 16, 0)
    before[7] = 0.4
    assert after_resume({"objective/kl": [*before, 0.0, 0.03]}, at=16) == [(17, "error")]
    assert after_resume({"objective/kl": [3.0, 4.0, 0.0, 0.0]}, at=2) == [(3, "error")]  # known from two logs on


@pytest.mark.parametrize("between", [{}, {"loss": 0.1}, {"eval_loss": 1.0}])
def test_logs_without_the_metric_use_up_nothing(between):
    """Evaluations, or a KL that is logged apart."""
    engine = Engine(["resume_discontinuity"], warmup_steps=0)
    for step, kl in enumerate([*around(5, 0.05, 10, 0), 0.0, 0.0]):
        if step == 10:
            engine.resumed()
        for _ in range(4):
            engine.observe(step, {"epoch": 0.1 * (step + 1), **between})
        engine.observe(step, {"objective/kl": kl})
    engine.flush()
    assert [(alert.rule, alert.opened) for alert in engine.alerts] == [("resume_discontinuity", 11)]


def test_a_kl_that_falls_after_a_resume_as_it_fell_before_is_no_fault():
    """Estimates of one batch: a public PPO run had 2.5 nats, now and then below zero."""
    noisy = [2.3, 2.9, -0.2, 1.9, 2.6, 3.0, 0.1, 2.2, 2.5]
    assert after_resume({"objective/kl": [*noisy, 0.2, -0.3, 2.4]}, at=len(noisy)) == []


def test_a_kl_that_trebles_after_a_resume_is_an_error_only_from_a_nat_a_sequence_or_a_tenth_of_a_token():
    steady = [0.2, 0.21, 0.19, 0.2, 0.2, 0.21]
    assert after_resume({"objective/kl": [*steady, 1.1, 1.1]}, at=6) == []
    assert after_resume({"objective/kl": [*steady, 1.3, 1.3]}, at=6) == [(7, "error")]
    assert after_resume({"kl": [*(value / 10 for value in steady), 0.11, 0.11]}, at=6) == []
    assert after_resume({"kl": [*(value / 10 for value in steady), 0.13, 0.13]}, at=6) == [(7, "error")]


@pytest.mark.parametrize(("level", "noise", "after"), [(0.3, 0.03, 0.693), (1.5, 0.03, 3.9), (0.8, 0.03, 1.3)])
def test_a_loss_half_as_high_again_as_its_noise_allows_is_an_error_once_it_is_seen_twice(level, noise, after):
    before = around(level, noise, 12, 4)
    assert after_resume({"loss": [*before, after, after]}, at=12) == [(13, "error")]
    assert after_resume({"loss": [*before, after, level, level]}, at=12) == []
    assert after_resume({"loss": [*around(level, 0.6, 12, 4), after, after]}, at=12) == []


@pytest.mark.parametrize("seed", range(10))
def test_a_kl_that_was_gone_is_lost_also_where_it_varies_much(seed):
    """The next log shows what the fresh policy has learned meanwhile."""
    before = [5 * math.exp(value) for value in around(1, 0.5, 16, seed)]
    assert after_resume({"objective/kl": [*before, 0.0, 2.0, 2.5]}, at=16) == [(17, "error")]
    assert after_resume({"objective/kl": [*before, 0.0, *before[:4]]}, at=16) == []


def test_a_dip_after_a_log_without_kl_is_no_loss_where_the_run_has_had_such_dips():
    before = [5, 1, 6, 1.2, 5.5, 1.1, 6, 5, 1.3, 6, 5.2, 6]
    assert after_resume({"objective/kl": [*before, 0.0, 1.2, 6, 5]}, at=12) == []
    assert after_resume({"objective/kl": [*before, 0.0, 6, 0.9, 5]}, at=12) == []
    assert after_resume({"objective/kl": [*before, 0.0, 0.5, 0.8]}, at=12) == [(13, "error")]


@pytest.mark.parametrize("seed", range(10))
def test_a_loss_near_nothing_is_judged_by_its_differences(seed):
    """That of DPO: 0.1 with noise of 0.04, one batch near 0, and 0.69 again."""
    before = [max(value, 0.005) for value in around(0.1, 0.4, 16, seed)]
    before[-2] = 0.005
    assert after_resume({"loss": [*before, 0.69, 0.66, 0.6]}, at=16) == [(17, "error")]
    assert after_resume({"loss": [*before, *before]}, at=16) == []


def test_a_loss_that_has_been_as_high_before_goes_on():
    steady = around(1, 0.02, 12, 1)
    assert after_resume({"loss": [*steady, 2.2, 2.2]}, at=12) == [(13, "error")]
    assert after_resume({"loss": [*steady[:6], 2.5, *steady[7:], 2.2, 2.2]}, at=12) == []


def test_few_logs_do_not_tell_the_noise_of_a_loss():
    assert after_resume({"loss": [1.0, 1.01, 0.99, 1.0, 2.0, 2.0]}, at=4) == []
    assert after_resume({"loss": [1.0, 1.01, 0.99, 1.0, 4.0, 4.0]}, at=4) == [(5, "error")]


def test_the_loss_of_a_policy_gradient_has_no_level():
    """Also where it is logged apart from the reward, as in a public GRPO log."""
    engine = Engine(["resume_discontinuity"], warmup_steps=0)
    for step, loss in enumerate([*around(1e-3, 0.02, 12, 1), 0.4, 0.4]):
        if step == 12:
            engine.resumed()
        engine.observe(step, {"kl": 0.01, "reward": 1.0})
        engine.observe(step, {"loss": loss})
    engine.flush()
    assert engine.alerts == []


def test_a_level_of_nothing_is_compared_with_nothing(caplog):
    assert after_resume({"objective/kl": [0.0, 0.0, 0.0, 0.0, 5.0, 5.0]}, at=4) == []
    assert after_resume({"objective/kl": [0.0, 0.0, 5e-324, 5e-324, 5e-324, 5.0, 5.0]}, at=5) == []
    assert after_resume({"loss": [-0.1, 0.0, -0.2, -0.1, 5.0]}, at=4) == []
    assert caplog.text == ""  # an error inside a rule would be logged


def test_a_loss_near_nothing_may_double():
    assert after_resume({"loss": [*around(0.004, 0.02, 12, 1), 0.012, 0.012]}, at=12) == []


def preference(**changed):
    return {"loss": 0.1, "rewards/chosen": 0.5, "rewards/rejected": -0.5, "rewards/accuracies": 1.0, **changed}


def test_one_large_margin_is_no_trend():
    assert said("preference_magnitude", preference(**{"rewards/margins": [5.0] * 10 + [500.0] + [5.0] * 10})) == []


def test_the_best_of_many_uncertain_means_is_luck():
    """Accuracies that alternate by 0.11 about their mean: twenty have a standard error of 0.035."""
    accuracy = [0.70 + 0.11 * (-1) ** i for i in range(60)] + [0.53 + 0.11 * (-1) ** i for i in range(20)]
    assert said("preference_chance", {"loss": 0.6, "rewards/accuracies": accuracy}) == []


def scores(count, **changed):
    usual = {"loss": 0.5, "margin": 2.0, "mean_reward": 0.0, "min_reward": -1.0, "max_reward": 1.0, "accuracy": 0.8}
    return {name: value if isinstance(value, list) else [value] * count for name, value in {**usual, **changed}.items()}


def test_scores_that_were_large_from_the_start_have_not_grown():
    assert said("reward_model_scale", scores(12, loss=1.5, max_reward=[8.0] + [20.0] * 11)) == []
    assert said("reward_model_scale", scores(12, loss=1.5, max_reward=[6.0] + [20.0] * 11)) == [(4, "warning")]


def test_an_offset_counts_where_it_dwarfs_the_margin():
    drift = [0.0] + [30.0] * 11
    assert said("reward_model_scale", scores(12, mean_reward=drift, margin=10.0)) == []
    assert said("reward_model_scale", scores(12, mean_reward=drift, margin=3.0)) == [(7, "warning")]


@pytest.mark.parametrize(("update", "rate", "named"), [(1e-6, 1.0, True), (1e-6, 0.05, False), (0.0, 0.05, True)])
def test_updates_that_vanish_with_the_learning_rate_are_its_tail(update, rate, named):
    logs = {"policy/approxkl_avg": [0.02] * 20 + [update] * 20, "lr": [1e-6] * 20 + [1e-6 * rate] * 20}
    assert bool(said("frozen_policy", {**logs, "objective/kl": 2.0})) == named


def test_a_batch_that_is_used_once_has_no_update_to_see():
    kl = [1e-13 if i % 7 == 3 else 0.0 for i in range(100)]
    assert said("frozen_policy", {"policy/approxkl_avg": kl, "objective/kl": 2.0, "lr": 1e-6}) == []


def memory(*rises):
    """200 calm logs, then four logs at each share above that."""
    return {
        "memory_gb": [40.0 + 0.1 * (i % 5) for i in range(200)] + [40 * (1.01 + r) for r in rises for _ in range(4)]
    }


def test_a_climb_of_less_than_a_twentieth_is_none():
    assert said("memory_growth", memory(*(0.004 * i for i in range(8)))) == []
    assert len(said("memory_growth", memory(*(0.008 * i for i in range(8))))) == 1


def test_memory_that_rests_for_a_while_has_not_stopped_growing():
    engine = Engine(["memory_growth"])
    rises = [0.01 * i for i in range(10)] + [0.09] * 6
    for step, value in enumerate(memory(*rises)["memory_gb"]):
        engine.observe(step, {"memory_gb": value})
    engine.flush()
    assert [alert.closed for alert in engine.alerts] == [None]


@pytest.mark.parametrize(("spikes", "named"), [((70, 80, 90), 0), ((66, 76, 86, 96), 1)])
def test_four_spikes_of_a_hundred_times_recur(spikes, named):
    norms = [200.0 if i in spikes else 1.0 + 0.1 * (i % 5) for i in range(100)]
    assert len(said("grad_norm_spike", {"grad_norm": norms, "loss": 1.0})) == named


@pytest.mark.parametrize(("facts", "named"), [({"beta": 0.1}, []), ({}, [])])
def test_one_short_pair_at_first_is_no_reference(facts, named):
    """Pairs of any length: the reference's log-probability is 10 nats higher in each."""
    lengths = [-25.0, *(-150.0 - 100 * (i % 3) for i in range(30))]
    logs = {"rewards/chosen": -1.5, "rewards/margins": 2.0, "logps/chosen": lengths, "logps/rejected": -90.0}
    alerts = said("preference_displacement", logs, facts=facts)
    assert [severity for _, severity in alerts if severity != "info"] == named


def test_a_learning_rate_that_leapt_is_that_of_the_run_after_ten_logs():
    engine = Engine(["lr_schedule_drift"])
    for step in range(60):
        engine.observe(step, {"learning_rate": 1e-6 if step < 20 else 5e-5})
    engine.flush()
    assert [(a.opened, str(a.severity), a.closed) for a in engine.alerts] == [(20, "warning", 34)]


@pytest.mark.parametrize(("k", "named"), [(32, True), (36.07, False)])
def test_ipo_starts_at_twenty_five(k, named):
    logs = {"loss": [k * 0.693147] * 3, "rewards/chosen": 0.0, "rewards/margins": 0.0, "rewards/rejected": 0.0}
    assert bool(said("loss_scale", logs)) == named


def test_memory_of_one_kind_says_nothing_of_another():
    """What filled in MB is no level for GB; and what rests does not close the alert of what grows."""
    engine = Engine(["memory_growth"])
    for step in range(700):
        process = 20_000.0 + 20 * min(max(0, step - 150), 100)
        engine.observe(step, {"system/rss_mb": process, "memory_gb": 40 + 0.1 * max(0, step - 400)})
    engine.flush()
    assert [(a.metric, a.opened // 100, a.closed is None) for a in engine.alerts] == [
        ("system/rss_mb", 2, False), ("memory_gb", 4, True),
    ]  # fmt: skip
