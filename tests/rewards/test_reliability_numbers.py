"""The arithmetic of reliability against scipy, numpy and numbers worked out by hand."""

import json
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from trl_ext.rewards.calls import Call
from trl_ext.rewards.reliability.components import balance, components_of, says, signal
from trl_ext.rewards.reliability.duplicates import distinct_share, diversity
from trl_ext.rewards.reliability.edits import reasoning_of, with_reasoning
from trl_ext.rewards.reliability.features import features
from trl_ext.rewards.reliability.gold import GoldSeries
from trl_ext.rewards.reliability.gold_trend import GoldTrend
from trl_ext.rewards.reliability.numbers import ramp, ranks, slope, spearman, spearman_of_pairs
from trl_ext.rewards.reliability.probes import probe
from trl_ext.rewards.reliability.stability import stability_of
from trl_ext.rewards.reliability.window import RewardWindow, totals_of


@pytest.mark.parametrize(
    ("value", "good", "bad", "expected"),
    [(0.0, 1, 3, 1.0), (1.0, 1, 3, 1.0), (2.0, 1, 3, 0.5), (3.0, 1, 3, 0.0), (9.0, 1, 3, 0.0), (0.25, 0.5, 0.0, 0.5)],
)
def test_a_ramp_is_a_straight_line_between_good_and_bad(value, good, bad, expected):
    assert ramp(value, good, bad) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_ranks_and_spearman_equal_scipys_with_ties_and_gaps(seed):
    random = np.random.default_rng(seed)
    x, y = random.integers(0, 7, 60).astype(float), random.normal(size=60).round(1)
    assert ranks(x) == pytest.approx(stats.rankdata(x) - 1)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
    y[::5] = np.nan
    known = ~np.isnan(y)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x[known], y[known]).statistic)


def test_spearman_of_a_constant_or_of_too_few_is_unknown():
    assert spearman(np.ones(20), np.arange(20.0)) is None
    assert spearman(np.arange(7.0), np.arange(7.0)) is None


@pytest.mark.parametrize("seed", range(5))
def test_the_slope_and_its_certainty_equal_scipys(seed):
    random = np.random.default_rng(seed)
    x = np.sort(random.normal(size=30))
    y = 0.3 * x + random.normal(size=30)
    expected = stats.linregress(x, y)
    b, sure = slope(x, y, np.ones(30))
    residuals = y - expected.intercept - expected.slope * x
    r = residuals[1:] @ residuals[:-1] / (residuals @ residuals)
    assert b == pytest.approx(expected.slope)
    plain = expected.slope / expected.stderr
    if r < 1 / np.sqrt(30):
        assert sure == pytest.approx(plain)
    else:
        r = (30 * r + 1) / 26
        assert sure == pytest.approx(plain / np.sqrt((1 + r) / (1 - r)))


def test_neighbours_that_err_alike_make_a_slope_less_sure():
    """AR(1) noise of 0.8 without any slope: plain least squares is surer than 4 standard errors in a third of runs."""
    random, wrong = np.random.default_rng(0), 0
    for _ in range(300):
        y = [0.0]
        for _ in range(63):
            y.append(0.8 * y[-1] + random.normal())
        wrong += abs(slope(np.arange(64.0), np.array(y), np.ones(64))[1]) > 4
    assert wrong / 300 < 0.03


def test_weights_of_the_slope_count_points_several_times():
    x, y, weight = np.array([0.0, 1, 2, 3, 4]), np.array([0.0, 2, 1, 5, 3]), np.array([1.0, 2, 1, 3, 1])
    assert slope(x, y, weight)[0] == pytest.approx(np.polyfit(x, y, 1, w=np.sqrt(weight))[0])
    assert slope(np.ones(9), np.arange(9.0), np.ones(9)) == (0.0, 0.0)
    assert slope(x[:3], y[:3], weight[:3]) == (0.0, 0.0)


def test_totals_leave_out_what_does_not_apply():
    rewards = np.array([[1.0, 2.0], [np.nan, 2.0], [np.nan, np.nan]])
    totals = totals_of(rewards, np.array([1.0, 0.5]))
    assert totals[:2].tolist() == [2.0, 1.0] and np.isnan(totals[2])


def test_features_of_texts_counted_by_hand():
    found = features(["a b a b a", "one", "", [{"role": "assistant", "content": "x y z"}]])
    # pairs of the first: ab ba ab ba, two of four distinct
    assert found["length"].tolist() == [5, 1, 0, 3]
    assert found["repetition"].tolist() == [0.5, 0.0, 0.0, 0.0]
    # only the last fifty words: 150 different ones, then 50 times the same
    found = features([" ".join(map(str, range(150))) + " x" * 50])
    assert (found["length"][0], found["repetition"][0]) == (200, pytest.approx(1 - 1 / 49))


def test_distinct_share_and_diversity():
    assert distinct_share(["a", "a ", "b", "c"]) == 0.75
    assert [diversity(share, 1.0) for share in (0.9, 0.8, 0.55, 0.3, 0.1)] == pytest.approx([1, 1, 0.5, 0, 0])
    assert diversity(0.4, 0.5) == 1.0  # four fifths of the start


def test_components_by_hand():
    # weights 2, 1, 0 and 1: a varies by 1, b is always 3, c has no weight, d applies to half
    rewards = np.array([[1, 3, 7, np.nan], [-1, 3, 8, 2.0]] * 20, dtype=float)
    weights = np.array([2.0, 1.0, 0.0, 1.0])
    totals = totals_of(rewards, weights)
    low, high = np.nanmin(rewards, axis=0), np.nanmax(rewards, axis=0)
    a, b, c, d = components_of(list("abcd"), weights, rewards, totals, low, high)
    assert (a.mean, a.std, a.state) == (0.0, 1.0, "live")
    assert (b.std, b.state) == (0.0, "dead")
    assert c.state == "unweighted"
    assert d.applies == 0.5
    # totals are 5 and 3: variance 1; a has the covariance 2 * 1, d has -1
    assert [x.variance_share for x in (a, b, c, d)] == pytest.approx([2.0, 0.0, 0.0, -1.0])
    assert signal([a, b, c], True) == pytest.approx(2 / 3)
    assert signal([a, b, c], False) == 0.0
    assert says([a, b, c]) == [(a, 1.0)]
    assert balance([a, b, c]) is None


def test_balance_is_the_spread_of_the_second_function_by_that_of_the_first():
    random = np.random.default_rng(0)
    rewards = random.normal(0, [10.0, 4.0], (500, 2))
    weights = np.array([1.0, 0.05])
    parts = components_of(["a", "b"], weights, rewards, totals_of(rewards, weights), rewards.min(0), rewards.max(0))
    (top, _), (second, ratio) = says(parts)
    assert (top.name, second.name) == ("a", "b") and ratio == pytest.approx(0.02, rel=0.1)
    assert balance(parts) == pytest.approx(20 * ratio)


def test_functions_that_never_apply_or_differ_by_rounding_alone_are_not_live():
    rewards = np.column_stack([np.full(40, np.nan), 1 / 3 + 1e-12 * np.arange(40), np.arange(40.0)])
    weights, low, high = np.ones(3), np.array([np.inf, 1 / 3, 0.0]), np.array([-np.inf, 1 / 3 + 4e-11, 39.0])
    parts = components_of(list("abc"), weights, rewards, totals_of(rewards, weights), low, high)
    assert [part.state for part in parts] == ["silent", "dead", "live"]
    assert signal(parts, True) == pytest.approx(1 / 3)


def test_a_saturated_function_neither_leads_nor_is_lost():
    random = np.random.default_rng(0)
    earned = (random.random(500) < 0.99).astype(float)
    rewards = np.column_stack([random.normal(size=500), 0.01 * earned])
    parts = components_of(
        ["a", "b"], np.ones(2), rewards, totals_of(rewards, np.ones(2)), rewards.min(0), rewards.max(0)
    )
    assert [part.state for part in parts] == ["live", "saturated"]
    assert balance(parts) is None


def test_a_jump_is_measured_in_standard_deviations_and_dated():
    random = np.random.default_rng(0)
    means = [*random.normal(0, 0.05, 40), *random.normal(2, 0.05, 20)]
    found = stability_of(range(1, len(means) + 1), means, [1.0] * 60)
    assert found.jump == pytest.approx(2.0, abs=0.1)
    assert found.step == 41
    assert (found.before, found.after) == pytest.approx((0, 2), abs=0.1)
    assert found.part() == pytest.approx(2 / 3, abs=0.05), "upwards it counts half"
    downwards = stability_of(range(1, len(means) + 1), [-mean for mean in means], [1.0] * 60)
    assert downwards.jump == pytest.approx(-2.0, abs=0.1)
    assert downwards.part() == pytest.approx(0.0, abs=0.05)
    assert stability_of(range(1, len(means) + 1), means, [4.0] * 60).jump == pytest.approx(0.5, abs=0.05)


def test_a_steady_rise_is_no_jump_and_fewer_than_16_steps_say_nothing():
    random = np.random.default_rng(0)
    found = stability_of(range(60), [0.1 * i + random.normal(0, 0.05) for i in range(60)], [1.0] * 60)
    assert found.jump == 0.0 and found.drift == pytest.approx(5.2, abs=0.1) and found.part() == 1.0
    assert stability_of(range(15), [0.0] * 15, [1.0] * 15) is None


@pytest.mark.parametrize(("spread", "part"), [(4.0, 1.0), (np.sqrt(80.0), 0.5), (20.0, 0.0), (1 / 20, 0.0)])
def test_a_spread_that_changes_counts_by_its_factor(spread, part):
    random = np.random.default_rng(0)
    means = random.normal(0, 0.01, 40) - np.arange(40) * 1e-4  # without a rise, a smaller spread is no learning
    found = stability_of(range(1, len(means) + 1), means, [1.0] * 20 + [float(spread)] * 20)
    assert found.part() == pytest.approx(part, abs=1e-6)


def test_the_gold_trend_is_in_standard_deviations_over_completions():
    random = np.random.default_rng(0)
    series = GoldSeries()
    for step in range(0, 40, 2):
        proxy, gold = random.normal(0.1 * step, 2.0, 500), random.normal(-0.05 * step, 0.5, 500)
        series.add(step, ["p"] * 500, ["c"] * 500, proxy, gold)
    trend = series.trend()
    assert (trend.proxy_slope, trend.gold_slope) == pytest.approx((0.1, -0.05), abs=0.01)
    assert trend.proxy_change == pytest.approx(0.1 * (trend.last_step - trend.first_step) / 2.0, rel=0.1)
    assert trend.gold_change == pytest.approx(-0.05 * (trend.last_step - trend.first_step) / 0.5, rel=0.1)
    assert trend.parted() and trend.part() == 0.0


def test_examples_are_those_the_two_rewards_part_about_most():
    series = GoldSeries()
    proxy, gold = np.array([1.0, 0.0, 0.5, 0.9]), np.array([0.9, 0.0, 0.5, -1.0])
    series.add(3, list("pqrs"), ["good", "bad", "fair", "hacked"], proxy, gold)
    assert series.examples(2)[0][2] == "hacked"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("steps_to_learn", [2, 4, 8, 15])
def test_fast_learning_is_no_jump(steps_to_learn, seed):
    random = np.random.default_rng(seed)
    means = 1 / (1 + np.exp(-(np.arange(80) - 40) / steps_to_learn)) + random.normal(0, 0.03, 80)
    assert stability_of(range(1, len(means) + 1), means, [0.2] * 80).jump == 0.0


def test_one_odd_step_is_no_jump():
    means = np.random.default_rng(0).normal(0, 0.05, 60)
    means[30] = 10.0
    assert stability_of(range(1, len(means) + 1), means, [1.0] * 60).jump == 0.0


def test_a_spread_that_vanishes_while_the_mean_rests_is_unstable_whatever_the_noise():
    for seed in range(10):
        random = np.random.default_rng(seed)
        means = [*random.normal(0, 0.2, 60), *random.normal(0, 0.005, 60)]
        assert stability_of(range(1, len(means) + 1), means, [1.0] * 60 + [0.025] * 60).part() == 0.0


def test_a_fall_that_is_over_is_no_recovery_and_a_rise_is_one():
    random, series, said = np.random.default_rng(0), GoldSeries(), []
    for step in range(160):
        gold = 1.0 if step < 30 or step >= 130 else -1.0
        proxy = min(step / 20, 2.0)
        batch = random.normal(proxy, 1.0, 64), random.normal(gold, 1.0, 64)
        series.add(step, ["p"] * 64, ["c"] * 64, *batch)
        trend = series.trend()
        said.append(trend is not None and trend.parted())
    first = said.index(True)
    assert 30 < first < 50
    assert all(said[first:130]) and not any(said[136:])

    copy = GoldSeries()
    copy.load_state_dict(json.loads(json.dumps(series.state_dict())))
    assert copy.state_dict() == series.state_dict()


def test_two_rewards_part_only_where_all_of_it_holds():
    hacked = GoldTrend(0.1, -0.1, 9.0, -9.0, 2.0, -2.0, 1, 99, 40)
    assert hacked.parted() and hacked.part() == 0.0
    for change in (
        {"proxy_sure": 3.9}, {"gold_sure": -3.9}, {"gold_change": -0.4}, {"proxy_change": 0.4},
        {"evaluations": 16, "gold_sure": -5.0, "gold_change": -0.9},
    ):  # fmt: skip
        assert not hacked._replace(**change).parted(), change
        assert hacked._replace(**change, dropped=True).parted()
    assert hacked._replace(proxy_sure=3.9).part() == 1.0
    assert not hacked._replace(over=True).parted() and hacked._replace(over=True).part() == 1.0
    assert hacked._replace(evaluations=16, gold_sure=-5.0).parted(), "a large fall needs less"
    assert hacked._replace(gold_change=-0.625).part() == pytest.approx(0.5)


def test_a_slow_fall_after_a_long_rise_is_told():
    """One standard deviation in the last twenty of sixty evaluations: over all of them the trend is up."""
    told = 0
    for seed in range(10):
        random, series = np.random.default_rng(seed), GoldSeries()
        for i in range(60):
            gold = 0.05 * min(i, 40) - 0.06 * max(i - 40, 0)
            series.add(10 * i, ["p"] * 64, ["c"] * 64, random.normal(0.05 * i, 1.0, 64), random.normal(gold, 1.0, 64))
        told += series.trend().parted()
    assert told >= 8


def test_without_a_first_score_the_same_is_asked_twice():
    random = np.random.default_rng(0)
    call = Call(["p"] * 8, [f"text {i}" for i in range(8)], None, {})
    probes = probe(call, np.ones(1), lambda call: random.normal(size=(len(call.completions), 1)))
    # the mean absolute difference of two standard normal numbers is 2 / sqrt(pi)
    assert probes.consistency["again"].total == pytest.approx(2 / np.sqrt(np.pi), abs=0.6)
    given = np.full((8, 1), 3.0)
    assert (
        probe(call, np.ones(1), lambda call: np.full((len(call.completions), 1), 2.0), given).consistency["again"].total
        == 1.0
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan, 1e4, -1e17])
@pytest.mark.parametrize("which", ["proxy", "gold"])
def test_one_odd_value_now_and_then_does_not_hide_hacking(odd, which):
    random, series = np.random.default_rng(0), GoldSeries()
    for i in range(30):
        values = {"proxy": random.normal(0.07 * i, 1.0, 32), "gold": random.normal(-0.05 * i, 1.0, 32)}
        if i % 10 == 5:
            values[which][3] = odd
        series.add(i, ["p"] * 32, ["c"] * 32, values["proxy"], values["gold"])
    assert series.trend().parted()


@pytest.mark.parametrize("batch", [1, 2, 3, 8, 32])
def test_small_steps_are_taken_together(batch):
    """A jump by five standard deviations is told at every batch size, with the step at which it was."""
    random, window = np.random.default_rng(0), RewardWindow(["a"], [1.0], 1000)
    one = -(-32 // batch)  # steps that count as one
    for step in range(1, 100 * one + 1):
        rewards = random.normal(5.0 if step > 75 * one else 0.0, 1.0, (batch, 1))
        window.add(step, ["p"] * batch, ["c"] * batch, rewards)
    found = stability_of(window.steps, window.step_means, window.step_stds)
    assert found.jump == pytest.approx(5.0, rel=0.4)
    assert abs(found.step - 75 * one) <= 2 * one
    assert np.mean(window.step_stds) == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize("tau", [1, 2, 4, 8])
@pytest.mark.parametrize("seed", range(5))
def test_learning_at_once_is_no_jump_and_falling_at_once_is_one(tau, seed):
    noise = np.random.default_rng(seed).normal(0, 0.02, 80)
    learnt = 1 - np.exp(-np.arange(80) / tau) + noise
    assert stability_of(range(80), learnt, [0.2] * 80).jump == 0.0
    later = np.where(np.arange(80) < 40, 0.0, 1.0) + noise
    assert stability_of(range(80), later, [0.2] * 80).jump == pytest.approx(5.0, rel=0.1)
    falls = np.where(np.arange(80) < 6, 1.0, 0.0) + noise
    assert stability_of(range(80), falls, [0.2] * 80).jump == pytest.approx(-5.0, rel=0.1)


def test_a_slow_fall_is_told_in_standard_deviations_and_noise_is_none():
    random = np.random.default_rng(0)
    means = np.linspace(1.0, 0.0, 100) + random.normal(0, 0.05, 100)
    found = stability_of(range(1, 101), means, [0.25] * 100)
    assert found.fall == pytest.approx(0.93 / 0.25, rel=0.1)  # means of eight at either end
    assert (found.jump, found.since, found.part()) == (0.0, 1, 0.0)
    for seed in range(50):
        level = np.cumsum(np.random.default_rng(seed).normal(0, 0.02, 128))  # wanders by 0.2
        assert stability_of(range(128), level + random.normal(0, 0.2, 128), [1.0] * 128).part() > 0.8


def components(weights, rewards, lowest=None, highest=None):
    rewards, weights = np.array(rewards, dtype=float).reshape(-1, len(weights)), np.array(weights)
    lowest = rewards.min(axis=0) if lowest is None else np.array(lowest)
    highest = rewards.max(axis=0) if highest is None else np.array(highest)
    totals = totals_of(rewards, weights)
    return components_of([f"f{i}" for i in range(len(weights))], weights, rewards, totals, lowest, highest), totals


def test_a_penalty_of_negative_weight_is_read_by_what_it_adds():
    """It is learnt when it is always 0, after it was 1; and it is at its worst when it is always 1."""
    (learnt,), _ = components([-1.0], [0.0] * 64, lowest=[0.0], highest=[1.0])
    assert learnt.state == "saturated"
    (worst,), _ = components([-1.0], [1.0] * 64, lowest=[0.0], highest=[1.0])
    assert (worst.state, worst.worth) == ("dead", -1.0)
    (reward,), _ = components([1.0], [1.0] * 64, lowest=[0.0], highest=[1.0])
    assert reward.state == "saturated"
    (mostly,), _ = components([-1.0], [0.0] * 63 + [1.0])
    assert mostly.state == "saturated"


def test_the_signal_is_that_of_the_weighted_functions():
    random = np.random.default_rng(0).normal(size=(64, 1))
    for weights, rewards, lowest, expected in (
        ([0.0, 0.0], np.hstack([random, random]), None, 0.0),  # nothing is trained on
        ([1.0], [1.0] * 64, [0.0], 2 / 3),  # learnt by all
        ([1.0], [1.0] * 64, [1.0], 0.0),  # dead
        ([1.0, -1.0], np.hstack([random, random]), None, 0.0),  # cancel out
        ([1.0, 3.0], np.hstack([random, np.ones((64, 1))]), None, 0.25),
    ):
        found, totals = components(weights, rewards, lowest)
        assert signal(found, bool(np.ptp(totals) > 0)) == pytest.approx(expected)


def gold_run(every, steps, gold, seed=0, wander=(0.8, 0.15), batch=32):
    """The first step at which the two have parted; both wander, so that neighbours err alike."""
    random, series, drift = np.random.default_rng(seed), GoldSeries(), [0.0, 0.0]
    for step in range(1, steps + 1):
        drift = [wander[0] * one + wander[1] * random.normal() for one in drift]
        if step % every == 0:
            proxy = random.normal(2 * step / steps + drift[0], 1.0, batch)
            series.add(step, ["p"] * batch, ["c"] * batch, proxy, random.normal(gold(step) + drift[1], 1.0, batch))
            trend = series.trend()
            if trend is not None and trend.parted():
                return step
    return None


@pytest.mark.parametrize(("every", "steps"), [(1, 300), (5, 400), (10, 1000)])
def test_a_held_back_reward_that_wanders_is_not_said_to_fall(every, steps):
    told = [gold_run(every, steps, lambda step: 0.0, seed) for seed in range(12)]
    assert sum(step is not None for step in told) <= 1, told


@pytest.mark.parametrize(("every", "steps"), [(1, 300), (10, 300), (10, 1000)])
def test_a_held_back_reward_that_falls_is_told_at_every_rate_of_asking(every, steps):
    slow = [gold_run(every, steps, lambda step: -1.5 * step / steps, seed) for seed in range(8)]
    at_once = [gold_run(every, steps, lambda step: -1.0 * (step > steps / 2), seed) for seed in range(8)]
    assert sum(step is not None for step in slow) >= 7, slow
    assert sum(step is not None and step > steps / 2 for step in at_once) >= 7, at_once


def test_evaluations_are_means_over_the_whole_run():
    series, given = GoldSeries(), []
    random = np.random.default_rng(0)
    for step in range(1, 1001):
        given.append(random.normal())
        values = given[-1] + np.array([-1.0, 1.0, -1.0, 1.0])
        series.add(step, ["p"] * 4, ["c"] * 4, values, -values)
    kept = series.evaluations
    assert 32 <= len(kept) <= 64
    assert [row.first for row in kept[:2]] == [1, 21]
    for row, following in pairwise(kept):
        part = given[row.first - 1 : following.first - 1]
        assert row.proxy == pytest.approx(np.mean(part))
        assert row.gold == pytest.approx(-np.mean(part))
        assert row.step == pytest.approx((row.first + following.first - 1) / 2)
        assert row.completions == 4 * len(part)


def test_a_fall_at_once_is_told_soon_and_is_no_hacking_beside_a_reward_that_rests():
    def falls(step):
        return -1.0 * (step > 150)

    told = [gold_run(1, 300, falls, seed, wander=(0.0, 0.0)) for seed in range(8)]
    assert sum(step is not None and 150 < step <= 175 for step in told) >= 7, told
    for seed in range(8):
        random, series = np.random.default_rng(seed), GoldSeries()
        for step in range(1, 301):
            series.add(step, ["p"] * 32, ["c"] * 32, random.normal(size=32), random.normal(2 * falls(step), 1.0, 32))
            trend = series.trend()
            assert trend is None or not trend.parted()


def test_spearman_of_pairs_equals_spearman_of_each():
    random = np.random.default_rng(0)
    columns = random.integers(0, 9, (60, 4)).astype(float)
    columns[::7, 2] = np.nan
    columns[:, 3] = 1.0
    found = spearman_of_pairs(columns)
    assert found.keys() == {(0, 1), (0, 2), (1, 2)}  # a constant has none
    for (i, j), value in found.items():
        assert value == pytest.approx(spearman(columns[:, i], columns[:, j]))
    assert spearman_of_pairs(columns[:7]) == {}


@pytest.mark.parametrize("steps", [400, 2000])
def test_the_start_of_the_run_is_what_the_latest_steps_are_compared_with(steps):
    """Three standard deviations down over the whole run, of which the last 128 steps see a small part."""
    random, window = np.random.default_rng(0), RewardWindow(["a"], [1.0], 1000)
    for step in range(1, steps + 1):
        window.add(step, ["p"] * 32, ["c"] * 32, random.normal(-3 * step / steps, 1.0, (32, 1)))
    found = stability_of(window.steps, window.step_means, window.step_stds, window.start)
    assert found.fall == pytest.approx(3.0, abs=0.3)
    assert (found.since, found.jump, found.part()) == (1, 0.0, 0.0)


@pytest.mark.parametrize("batch", [4, 8, 32])
@pytest.mark.parametrize("kind", ["rare", "very rare", "common", "clipped", "at once", "from the start"])
def test_binary_and_clipped_rewards_are_stable(batch, kind):
    """Rewards of which most are equal, and that are learnt until all are."""
    unstable = 0
    for seed in range(10):
        random, window = np.random.default_rng(seed), RewardWindow(["a"], [1.0], 1000)
        parts = []
        for step in range(1, 301):
            learnt = 1 / (1 + np.exp(-(step - 60) / (2.5 if kind == "at once" else 8)))
            early = 1 / (1 + np.exp(-(step - 15) / 2.5))
            p = {
                "rare": 0.05, "very rare": 0.01, "common": 0.95, "at once": 0.02 + 0.98 * learnt,
                "from the start": 0.02 + 0.98 * early,
            }.get(kind, 0.0)  # fmt: skip
            rewards = (random.random((batch, 1)) < p).astype(float)
            if kind == "clipped":
                rewards = np.clip(random.normal(-1 + 3 * learnt, 0.5, (batch, 1)), -1, 1)
            window.add(step, ["p"] * batch, ["c"] * batch, rewards)
            if step % 20 == 0:
                found = stability_of(window.steps, window.step_means, window.step_stds, window.start)
                parts.append(1.0 if found is None else found.part())
        unstable += min(parts) < 0.7
    assert unstable <= 1


@pytest.mark.parametrize(
    ("text", "reasoning", "without"),
    [
        ("<think>a b</think> c", "a b", "<think></think> c"),
        ("<Think>a</Think> c", "a", "<Think></Think> c"),
        ("a b\n</think> c", "a b\n", "</think> c"),  # opened by the prompt
        ("c", None, "c"),
        ("<think> </think> c", None, "<think></think> c"),
    ],
)
def test_reasoning_is_found_and_taken_out(text, reasoning, without):
    assert reasoning_of(text) == reasoning
    assert with_reasoning(text, "") == without


@pytest.mark.parametrize("at", [3, 37])
def test_one_outlier_is_no_change_of_the_spread(at):
    stds = [1.0] * 40
    stds[at] = 60.0
    means = np.random.default_rng(0).normal(0, 0.1, 40)
    found = stability_of(range(40), means, stds)
    assert found.spread == pytest.approx(1.0)
    assert found.part() == 1.0
