"""Single terms of the rules' conditions, each just on either side."""

import math
import random
import re
from itertools import pairwise

import pytest
from scipy.stats import spearmanr

from trl_ext.monitor import Engine
from trl_ext.monitor.rules.reward_hacking import change_correlation

LN2 = math.log(2)


def alerts(rule, rows, **arguments):
    engine = Engine([rule], **arguments)
    for i, row in enumerate(rows):
        engine.observe(i + 1, row)
    return engine.alerts


def severities(rule, rows, **arguments):
    return [str(alert.severity) for alert in alerts(rule, rows, **arguments)]


def test_growth_of_memory_is_given_a_log():
    (alert,) = alerts("memory_growth", [{"system/gpu_memory_mb": 1000.0 + 2 * i} for i in range(200)])
    assert alert.evidence["per_log"] == pytest.approx(2.0)
    assert re.search(r"about 2 MB a log", alert.message)


@pytest.mark.parametrize(("kl", "fires"), [(0.4, False), (0.6, True)])
def test_one_spike_of_the_gradient_counts_where_the_kl_is_past_its_band(kl, fires):
    rows = [{"grad_norm": 1.0 + 0.1 * (i % 3), "kl": kl} for i in range(40)] + [{"grad_norm": 20.0, "kl": kl}]
    assert bool(alerts("grad_norm_spike", rows)) == fires


@pytest.mark.parametrize(("share", "fires"), [(0.05, False), (0.15, True)])
def test_a_function_dominates_while_another_falls_by_a_tenth_of_its_gain(share, fires):
    rows = [
        {"reward": 1.0, "rewards/words/mean": 0.1 + i / 40, "rewards/correct/mean": 0.9 - share * i / 40,
         "completions/mean_length": 20.0 + i} for i in range(40)
    ]  # fmt: skip
    assert bool(alerts("component_dominance", rows)) == fires


@pytest.mark.parametrize(
    ("loss", "fires"), [(1.1 * LN2, False), (1.2 * LN2, True), (2.9 * LN2, True), (3.1 * LN2, False)]
)
def test_a_loss_above_chance_is_a_mismatch_and_one_far_above_is_another_loss(loss, fires):
    row = {"loss": loss, "rewards/chosen": -1.0, "rewards/rejected": -1.0, "rewards/accuracies": 0.5}
    assert bool(alerts("preference_magnitude", [row] * 12)) == fires


@pytest.mark.parametrize(
    ("kl", "length", "fires"), [(12.0, 50.0, True), (8.0, 50.0, False), (12.0, 38.0, False), (12.0, 9.0, True)]
)
def test_far_from_the_reference_twice_the_length_is_suspect_either_way(kl, length, fires):
    early = [{"reward": 0.0 + 0.01 * (i % 2), "objective/kl": 1.0, "completions/mean_length": 20.0} for i in range(12)]
    late = [{"reward": 1.0 + 0.01 * (i % 2), "objective/kl": kl, "completions/mean_length": length} for i in range(40)]
    assert bool(alerts("reward_hacking_suspected", early + late)) == fires


@pytest.mark.parametrize(("start", "fires"), [(2.0, True), (0.2, False)])
def test_easy_data_that_starts_low_is_not_memorised(start, fires):
    rows = [{"loss": start, "epoch": i / 10} for i in range(21)] + [
        {"loss": 0.05, "epoch": 2.1 + i / 10} for i in range(9)
    ]
    assert bool(alerts("overfitting", rows)) == fires


@pytest.mark.parametrize(("logs", "severity"), [(7, "warning"), (8, "error")])
def test_all_truncated_rises_with_time(logs, severity):
    rows = [{"completions/clipped_ratio": 0.3, "completions/mean_length": 90.0}] * 5
    rows += [{"completions/clipped_ratio": 0.97, "completions/mean_length": 128.0}] * logs
    assert severities("all_truncated", rows) == [severity]


@pytest.mark.parametrize(("facts", "opened"), [({}, 14), ({"groups_per_log": 8}, 3)])
def test_a_streak_from_the_first_log_on_counts_by_the_groups_that_are_known(facts, opened):
    rows = [{"frac_reward_zero_std": 1.0, "reward_std": 0.1}] * 30
    assert alerts("zero_signal", rows, facts=facts)[0].opened == opened


def test_a_few_groups_are_a_warning_and_many_an_error():
    few = [{"frac_reward_zero_std": 0.5 * (i % 2)} for i in range(10)] + [{"frac_reward_zero_std": 1.0}] * 9
    assert severities("zero_signal", few) == ["warning"]
    many = [{"frac_reward_zero_std": 0.5 * (i % 2)} for i in range(10)] + [{"frac_reward_zero_std": 1.0}] * 14
    assert severities("zero_signal", many) == ["error"]


@pytest.mark.parametrize(("grad_norm", "severity"), [(495.0, "error"), (4.8, "warning")])
def test_a_high_first_loss_with_usual_gradients_is_a_warning(grad_norm, severity):
    assert severities("loss_scale", [{"loss": 22.6, "grad_norm": grad_norm}]) == [severity]


def test_an_episode_in_the_middle_of_a_run_is_no_first_step():
    row = {"objective/kl": 9.0}
    assert alerts("first_step_mismatch", [{**row, "episode": 16}, {**row, "episode": 32}])[0].opened == 2
    assert not alerts("first_step_mismatch", [{**row, "episode": 96}, {**row, "episode": 112}])


def test_a_few_pairs_a_log_do_not_tell_chance_from_skill():
    coin = [{"rewards/accuracies": float(i * 7919 % 2), "loss": 0.7} for i in range(300)]
    assert not alerts("preference_chance", coin)


def test_accuracy_that_is_lost_is_named_within_twenty_logs():
    rows = [{"rewards/accuracies": 0.8 + 0.05 * (-1) ** i} for i in range(60)]
    rows += [{"rewards/accuracies": 0.5 + 0.05 * (-1) ** i} for i in range(30)]
    assert 60 < alerts("preference_chance", rows)[0].opened <= 80


@pytest.mark.parametrize("digits", [0, 6])
def test_the_correlation_of_changes_is_spearmans(digits):
    draw = random.Random(digits)
    x = [round(draw.gauss(0, 2), digits) for _ in range(30)]
    y = [round(a + draw.gauss(0, 1), digits) for a in x]
    changes = [[b - a for a, b in pairwise(values)] for values in (x, y)]
    assert change_correlation(x, y) == pytest.approx(spearmanr(*changes).statistic)
    assert change_correlation([1.0] * 30, y) == 0.0


@pytest.mark.parametrize(("after", "closed"), [(0.049, 4), (0.051, None)])
def test_an_update_that_was_too_large_is_over_below_half_of_the_limit(after, closed):
    (alert,) = alerts("approx_kl_spike", [{"policy/approxkl_avg": value} for value in (0.01, 0.01, 0.3, after)])
    assert alert.closed == closed


@pytest.mark.parametrize(("gain", "severity"), [(1.1, "warning"), (1.3, "info")])
def test_a_dead_function_matters_unless_the_reward_gains_three_standard_errors(gain, severity):
    # changes of 2 from log to log: a noise of sqrt(2), so that three standard errors of two means of 16 are 1.5
    rows = [{"reward": (-1.0) ** i + (gain * 1.25 if i > 20 else 0.0), "rewards/f/mean": 0.0} for i in range(110)]
    assert severities("dead_reward_component", rows) == [severity]


def test_the_messages_of_entropy_give_the_factor():
    rows = [{"entropy": 0.5, "reward": 0.1}] * 5 + [{"entropy": 1.5, "reward": 0.1}] * 12
    (alert,) = alerts("entropy_explosion", rows)
    assert "1.5 nats a token, 3 times its start (0.5)" in alert.message


@pytest.mark.parametrize(("loss", "severity"), [(0.99 * LN2, ["info"]), (0.95 * LN2, [])])
def test_a_reward_model_that_is_still_a_coin_is_named(loss, severity):
    rows = [{"loss": loss, "accuracy": 0.57 + 0.01 * (-1) ** i, "margin": 0.03} for i in range(60)]
    assert severities("preference_chance", rows) == severity


def test_lengths_that_are_missing_now_and_then_switch_nothing_off(caplog):
    draw = random.Random(3)
    rows = []
    for i in range(120):
        length = 20.0 + i + draw.gauss(0, 3)
        rows.append({"reward": length / 50, **({"completions/mean_length": length} if draw.random() > 0.3 else {})})
    assert severities("reward_hacking_suspected", rows) == ["warning"]
    assert not caplog.records


def test_a_reward_model_that_learns_slowly_is_left_alone():
    draw = random.Random(0)
    rows = [{"accuracy": round(16 * (0.5 + i / 6000) + draw.gauss(0, 2)) / 16, "loss": 0.66} for i in range(800)]
    assert severities("preference_chance", rows) == []
