"""The streaming statistics against NumPy and SciPy, or against a closed form where these have none."""

import json
import math
import sys
from itertools import groupby, permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from trl_ext.monitor.statistics import (
    MAD_TO_SIGMA,
    Blocks,
    Constant,
    Cusum,
    Largest,
    LowestLevel,
    Noise,
    Recent,
    Share,
    Start,
    Streak,
    Window,
    finite,
)

# both spread out and full of ties, which is what a reward or a clip fraction looks like
spread = st.floats(-1e6, 1e6).filter(lambda x: x == 0 or abs(x) > 1e-6)
ties = st.sampled_from([-1.0, -0.0, 0.0, 0.5, 1.0, 3.0])
numbers = st.one_of(spread, ties)
series = st.one_of(st.lists(spread, min_size=1, max_size=60), st.lists(ties, min_size=1, max_size=60))
some = settings(max_examples=60)

# how to build each statistic that takes numbers, and what can be read from it
BUILD = {
    "Window": lambda: Window(5),
    "Recent": lambda: Recent(5),
    "Noise": lambda: Noise(5),
    "Share": Share,
    "Start": lambda: Start(3),
    "Largest": Largest,
    "LargestOfAll": lambda: Largest(-math.inf),  # nothing seen yet is no number, and strict JSON
    "Constant": Constant,
    "Blocks": lambda: Blocks(4),
    "Cusum": lambda: Cusum(0.5),
}


def close(expected, values=(1.0,)):
    return pytest.approx(expected, rel=1e-9, abs=1e-9 * max(1.0, *np.abs(values)))


def filled(values, size=16):
    window = Window(size)
    for value in values:
        window.push(value)
    return window, np.array(values[-size:])


def after(statistic, values):
    for value in values:
        statistic.push(value)
    return statistic


# the window


@some
@given(series, st.integers(1, 20))
def test_median_and_mad_are_those_of_the_last_values(values, size):
    window, last = filled(values, size)
    assert (len(window), window.values()) == (len(last), list(last))
    assert window.median() == close(np.median(last), last)
    assert window.mad() == close(stats.median_abs_deviation(last), last)
    assert window.mean() == close(last.mean(), last)


@some
@given(series, st.floats(0, 1))
def test_quantile_is_numpys_linear_percentile(values, share):
    window, last = filled(values)
    assert window.quantile(share) == close(np.percentile(last, 100 * share), last)
    assert (window.quantile(0), window.quantile(1)) == (last.min(), last.max())


@some
@given(series, numbers)
def test_robust_z_is_the_distance_in_normal_consistent_mads(values, value):
    window, last = filled(values)
    scale = stats.median_abs_deviation(last, scale="normal")
    if scale > 1e-3:
        assert window.robust_z(value) == pytest.approx((value - np.median(last)) / scale, rel=1e-4, abs=1e-6)


@some
@given(series, numbers, st.sampled_from([-8.0, -0.5, 0.25, 4.0]), st.integers(-100, 100))
def test_robust_z_has_no_unit(values, value, factor, shift):
    """Scaling and shifting a metric changes no verdict, only the sign may turn."""
    window, last = filled(values)
    other, _ = filled([factor * x + shift for x in values])
    if stats.median_abs_deviation(last) > 1e-3:
        expected = math.copysign(1, factor) * window.robust_z(value)
        assert other.robust_z(factor * value + shift) == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_robust_z_of_a_constant_history():
    window, _ = filled([2.0, 2.0, 2.0])
    assert (window.robust_z(2.0), window.robust_z(3.0), window.robust_z(1.0)) == (0.0, math.inf, -math.inf)
    assert window.robust_z(3.0, scale_floor=0.5) == 2.0


def test_scale_floor_counts_only_where_the_noise_is_smaller():
    window, _ = filled([1.0, 2.0, 3.0, 4.0, 5.0])
    assert window.robust_z(6.0, scale_floor=0.1) == window.robust_z(6.0) == 3.0 / MAD_TO_SIGMA
    assert window.robust_z(6.0, scale_floor=6.0) == 0.5


def test_one_outlier_in_eight_moves_neither_location_nor_scale_far():
    clean, _ = filled([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    dirty, _ = filled([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8e9])
    assert (dirty.median(), dirty.mad()) == (clean.median(), clean.mad()) == (4.5, 2.0)


@some
@given(st.lists(numbers, min_size=2, max_size=60))
def test_slope_is_the_least_squares_slope(values):
    window, last = filled(values)
    assert window.slope() == close(stats.linregress(np.arange(len(last)), last).slope, last)


def test_slope_of_a_single_value_is_zero():
    assert filled([5.0])[0].slope() == 0.0


@some
@given(st.lists(numbers, min_size=6, max_size=60), st.integers(1, 6))
def test_stretches_are_medians_of_equal_parts_the_newest_whole(values, count):
    window, last = filled(values)
    whole = last[len(last) % count :]
    assert window.stretches(count) == close(np.median(np.split(whole, count), axis=1), last)


# what does not forget


@some
@given(series, st.integers(1, 8))
def test_start_is_the_median_of_the_first_values_and_stays(values, size):
    start = Start(size)
    for n, value in enumerate(values, 1):
        start.push(value)
        assert start.level == (None if n < size else pytest.approx(np.median(values[:size])))


@given(series, st.integers(1, 20))
@some
def test_recent_has_mean_and_median_of_the_last_values(values, size):
    recent, last = after(Recent(size), values), np.array(values[-size:])
    assert (recent.mean(), recent.median()) == close((last.mean(), np.median(last)), last)


@given(st.lists(spread, min_size=2, max_size=40))
@some
def test_noise_is_von_neumanns_estimate_while_it_fills(values):
    expected = math.sqrt(np.mean(np.diff(values) ** 2) / 2)
    assert after(Noise(100), values).value == pytest.approx(expected, rel=1e-9)


def test_noise_is_that_of_one_log_also_about_a_trend_and_with_two_modes():
    draw = np.random.default_rng(0)
    rising = draw.normal(0, 0.3, 4000) + np.linspace(0, 10, 4000)
    assert after(Noise(4000), rising.tolist()).value == pytest.approx(0.3, rel=0.05)
    modes = draw.choice([0.0, 2.0], 4000)
    assert after(Noise(4000), modes.tolist()).value == pytest.approx(1.0, rel=0.05)


def test_noise_forgets_at_the_pace_of_its_size():
    noise = after(Noise(10), [0.0, 10.0] * 20)
    before = noise.value**2
    after(noise, [10.0] * 10)
    assert noise.value**2 == pytest.approx(before * 0.9**10)


@pytest.mark.parametrize(("shares", "parts"), [([0.5, 0.0], 2), ([0.25, 0.75], 4), ([0.875], 8), ([0.0, 0.0], 1)])
def test_a_share_tells_how_many_parts_there_are(shares, parts):
    assert after(Share(), shares).parts == parts


@some
@given(st.integers(1, 64), st.data())
def test_a_share_never_finds_more_parts_than_there_are_and_all_of_them_at_one_in_n(n, data):
    share = Share()
    for k in data.draw(st.lists(st.integers(0, n), max_size=12)):
        share.push(k / n)
        assert 1 <= share.parts <= n
    share.push(data.draw(st.sampled_from([1, n - 1])) / n)
    assert share.parts == n
    share.push(1 / 200)  # more than a batch of such things would be
    assert share.parts == 64 and after(Share(8), [0.5]).parts == 8


def test_a_full_log_is_as_likely_as_all_its_parts_were_before():
    share = Share()
    assert share.chance(3, parts=2) == 0.5**6
    after(share, [0.25, 0.75])
    share.push(0.0, full_before=2)
    assert share.chance(1, parts=1) == pytest.approx((0.25 + 0.75 + 2 + 1) / (5 + 2))


@some
@given(series)
def test_largest_is_the_maximum_and_at_least_zero(values):
    assert after(Largest(), values).value == max(0.0, np.max(values))
    assert after(Largest(-math.inf), values).value == np.max(values)


@some
@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_streak_is_the_length_of_the_last_run_of_true(holds):
    streak = Streak()
    for n, held in enumerate(holds, 1):
        last, run = [(key, len(list(group))) for key, group in groupby(holds[:n])][-1]
        assert streak.push(held) == streak.count == (run if last else 0)


@some
@given(st.lists(ties, min_size=1, max_size=40))
def test_constant_is_the_length_of_the_last_run_of_equals(values):
    constant = Constant()
    for n, value in enumerate(values, 1):
        run = [len(list(group)) for _, group in groupby(values[:n])][-1]
        assert constant.push(value) == constant.count == run


@some
@given(series)
def test_lowest_level_is_the_lowest_median_and_the_noise_of_that_time(values):
    level, window = LowestLevel(), Window(5)
    seen = []
    for n, value in enumerate(values, 1):
        window.push(value)
        level.push(window)
        last = values[max(0, n - 5) : n]
        seen.append((np.median(last), -n, stats.median_abs_deviation(last)))
    lowest, _, noise = min(seen)  # of equal ones the latest
    assert (level.location, level.scale) == (close(lowest, values), close(noise, values))


def test_lowest_level_does_not_follow_a_rise():
    level, window = LowestLevel(), Window(3)
    for value in (5.0, 1.0, 2.0, 3.0, 50.0, 60.0, 70.0):
        window.push(value)
        level.push(window)
    assert (level.location, level.scale) == (2.0, 1.0)


# the whole run, in blocks


@some
@given(st.lists(spread, min_size=1, max_size=200), st.sampled_from([2, 4, 8]))
def test_blocks_are_means_of_equal_parts_from_the_start(values, size):
    blocks = after(Blocks(size), values)
    whole = len(values) // blocks.length
    parts = np.array(values[: whole * blocks.length]).reshape(whole, blocks.length)
    assert len(blocks) == parts.size > len(values) - blocks.length
    assert blocks.means == close(parts.mean(1), values)
    assert len(blocks.means) < size and math.log2(blocks.length).is_integer()
    assert blocks.length == 1 or len(blocks.means) >= size // 2


@pytest.mark.parametrize("size", [0, 1, 3, -2])
def test_blocks_that_cannot_be_merged_in_pairs_are_refused(size):
    with pytest.raises(ValueError, match=f"even number of at least 2, not {size}"):
        Blocks(size)


@some
@given(st.one_of(st.lists(spread, min_size=4, max_size=30), st.lists(ties, min_size=4, max_size=30)))
def test_trend_is_theil_sens_line_and_mann_kendalls_statistic(values):
    n = len(values)
    gain, z = after(Blocks(32), values).trend()
    assert gain == close(stats.theilslopes(values).slope * (n - 1), values)
    s = sum(np.sign(later - earlier) for j, later in enumerate(values) for earlier in values[:j])
    assert z == pytest.approx((s - np.sign(s)) / math.sqrt(variance_of_s(n)))


def variance_of_s(n):
    return n * (n - 1) * (2 * n + 5) / 18


@pytest.mark.parametrize("n", [4, 5, 6, 7])
def test_the_variance_of_the_trend_is_that_over_all_orders_of_the_values(n):
    """No formula: each order is as likely as the next where there is no trend."""
    orders = list(permutations(range(n)))
    zs = np.array([after(Blocks(32), map(float, order)).trend()[1] for order in orders])
    # undo the continuity correction, which takes 1 off the count of pairs
    counts = zs * math.sqrt(variance_of_s(n)) + np.sign(zs)
    ones = np.array([sum(np.sign(b - a) for i, b in enumerate(order) for a in order[:i]) for order in orders])
    counts[np.abs(ones) == 1] = ones[np.abs(ones) == 1]  # corrected to 0
    assert counts == pytest.approx(ones) and np.var(ones) == pytest.approx(variance_of_s(n))


def test_trend_of_a_straight_line_is_its_whole_rise_and_of_a_constant_nothing():
    gain, z = after(Blocks(8), [2.0 + 0.5 * i for i in range(7)]).trend()
    assert gain == 3.0 and z == pytest.approx(20 / math.sqrt(variance_of_s(7)))  # 21 pairs rise, less 1
    assert after(Blocks(8), [3.0] * 7).trend() == (0.0, 0.0)
    assert after(Blocks(8), [1.0, 2.0, 3.0]).trend() == (0.0, 0.0)


@some
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40), st.sampled_from([0.0, 0.25, 0.5, 1.0]))
def test_cusum_is_the_largest_sum_of_excesses_that_ends_now(zs, slack):
    cusum = Cusum(slack)
    for n, z in enumerate(zs, 1):
        ending_now = [sum(x - slack for x in zs[k:n]) for k in range(n + 1)]  # the empty one is 0
        assert cusum.push(z) == cusum.value == pytest.approx(max(ending_now), abs=1e-9)


def test_cusum_tells_a_lasting_small_shift_from_noise_of_the_same_size():
    noise = after(Cusum(0.5), [1.0, -1.0] * 50).value
    assert noise <= 0.5 and after(Cusum(0.5), [1.0] * 100).value == 50.0


# what all have in common


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
@pytest.mark.parametrize("name", BUILD)
def test_what_is_not_finite_never_enters(name, value):
    for history in ([], [1.0], [4.0, 2.0, 2.0]):
        statistic = after(BUILD[name](), history)
        before = json.dumps(statistic.state_dict())
        with pytest.raises(ValueError, match="finite"):
            statistic.push(value)
        assert json.dumps(statistic.state_dict()) == before


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_what_is_not_finite_is_never_judged(value):
    with pytest.raises(ValueError, match="finite"):
        filled([1.0, 2.0])[0].robust_z(value)
    with pytest.raises(ValueError, match=f"not {value}"):
        finite(value)


def read(statistic):
    """Everything that can be read from it."""
    seen = {name: value for name, value in vars(statistic).items() if not name.startswith("_")}
    if isinstance(statistic, Window):
        seen |= {"median": statistic.median(), "mad": statistic.mad(), "slope": statistic.slope(),
                 "mean": statistic.mean(), "quantile": statistic.quantile(0.3), "z": statistic.robust_z(1.0),
                 "stretches": statistic.stretches(1)}  # fmt: skip
    if isinstance(statistic, Share):
        seen |= {"chance": statistic.chance(2, 3)}
    if isinstance(statistic, Noise):
        seen |= {"value": statistic.value}
    if isinstance(statistic, Blocks):
        seen |= {"trend": statistic.trend(), "len": len(statistic)}
    return seen


@pytest.mark.parametrize("name", BUILD)
@some
@given(values=series, share=st.floats(0, 1))
def test_state_survives_strict_json_and_goes_on_as_if_never_stopped(name, values, share):
    at = round(share * len(values))
    stopped = after(BUILD[name](), values[:at])
    state = json.dumps(stopped.state_dict(), allow_nan=False)
    resumed = BUILD[name]()
    if name != "LargestOfAll":  # nothing seen is `null`, which leaves it as it was built
        after(resumed, [7.0, 8.0])  # whatever it held before is gone
    resumed.load_state_dict(json.loads(state))
    whole = after(BUILD[name](), values)
    after(resumed, values[at:])
    assert resumed.state_dict() == whole.state_dict() and read(resumed) == read(whole)


def test_state_of_streak_and_lowest_level_survive_json():
    streak, level, window = Streak(), LowestLevel(), Window(3)
    streak.push(True)
    for value in (2.0, 4.0, 4.0):
        window.push(value)
    level.push(window)
    other_streak, other_level, empty = Streak(), LowestLevel(), LowestLevel()
    other_streak.load_state_dict(json.loads(json.dumps(streak.state_dict())))
    other_level.load_state_dict(json.loads(json.dumps(level.state_dict())))
    assert other_streak.push(True) == 2
    assert (other_level.location, other_level.scale) == (4.0, 0.0) == (level.location, level.scale)
    other_level.load_state_dict(json.loads(json.dumps(empty.state_dict())))
    assert (other_level.location, other_level.scale) == (None, 0.0)


@pytest.mark.parametrize("held", ["Window", "Start"])
def test_a_state_that_is_not_finite_is_refused(held):
    with pytest.raises(ValueError, match="finite"):
        BUILD[held]().load_state_dict({"values": [1.0, None]})


def test_a_longer_state_keeps_the_newest():
    window = Window(2)
    window.load_state_dict(filled([1.0, 2.0, 3.0, 4.0])[0].state_dict())
    assert (window.values(), window.median()) == ([3.0, 4.0], 3.5)


def lines_run(step):
    """Lines of Python that `step` runs in our module and the standard library's of that name: work, not time."""
    count, before = 0, sys.gettrace()

    def trace(frame, event, argument):
        nonlocal count
        if Path(frame.f_code.co_filename).name != "statistics.py":
            return None  # a garbage collection, say
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        step()
    finally:
        sys.settrace(before)
    return count


def held(statistic):
    """Numbers in memory."""
    return sum(len(value) if hasattr(value, "__len__") else 1 for value in vars(statistic).values())


@pytest.mark.parametrize("name", BUILD)
def test_a_step_costs_the_same_after_a_hundred_thousand(name):
    statistic, values = BUILD[name](), [float(x) for x in np.random.default_rng(0).normal(size=200)]
    costs, sizes = [], []
    for _ in range(2):
        after(statistic, values)
        costs.append(max(lines_run(lambda value=value: (statistic.push(value), read(statistic))) for value in values))
        sizes.append(held(statistic))
        after(statistic, values * 500)
    assert costs[1] <= 1.1 * costs[0] and sizes[1] <= sizes[0] + 4
    assert held(statistic) <= 20


def test_the_deviation_of_a_large_window_takes_logarithmic_time():
    costs = [lines_run(filled([float(x % 97) for x in range(size)], size)[0].mad) for size in (64, 4096)]
    assert costs[1] <= 2 * costs[0]


def test_a_share_beyond_its_bounds_is_at_its_bound():
    share = Share()
    share.push(1e90)
    share.push(-1e90)
    assert share.chance(1, 1) == 0.5  # (1 + 0 + 1) / (2 + 2)
