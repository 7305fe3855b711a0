"""The streaming statistics against NumPy and SciPy."""

import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from trl_ext.monitor.statistics import Largest, LowestLevel, Start, Streak, Window

numbers = st.floats(-1e6, 1e6).filter(lambda x: x == 0 or abs(x) > 1e-6)
series = st.lists(numbers, min_size=1, max_size=60)
some = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def filled(values, size=16):
    window = Window(size)
    for value in values:
        window.push(value)
    return window, np.array(values[-size:])


@some
@given(series)
def test_median_and_mad_are_those_of_the_last_values(values):
    window, last = filled(values)
    assert len(window) == len(last)
    assert window.median() == pytest.approx(np.median(last))
    assert window.mad() == pytest.approx(stats.median_abs_deviation(last))


@some
@given(series, numbers)
def test_robust_z_is_the_distance_in_normal_consistent_mads(values, value):
    window, last = filled(values)
    scale = stats.median_abs_deviation(last, scale="normal")
    if scale > 1e-3:
        assert window.robust_z(value) == pytest.approx((value - np.median(last)) / scale, rel=1e-3, abs=1e-6)


def test_robust_z_of_a_constant_history():
    window, _ = filled([2.0, 2.0, 2.0])
    assert (window.robust_z(2.0), window.robust_z(3.0), window.robust_z(1.0)) == (0.0, math.inf, -math.inf)
    assert window.robust_z(3.0, scale_floor=0.5) == 2.0


@some
@given(st.lists(numbers, min_size=2, max_size=60))
def test_slope_is_the_least_squares_slope(values):
    window, last = filled(values)
    expected = stats.linregress(np.arange(len(last)), last).slope
    assert window.slope() == pytest.approx(expected, rel=1e-6, abs=1e-6 * max(1.0, abs(last).max()))


def test_slope_of_a_single_value_is_zero():
    assert filled([5.0])[0].slope() == 0.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
@pytest.mark.parametrize("statistic", [Window(4), Start(4), Largest()])
def test_what_is_not_finite_never_enters(statistic, value):
    before = statistic.state_dict()
    with pytest.raises(ValueError, match="finite"):
        statistic.push(value)
    assert statistic.state_dict() == before


def test_start_is_the_median_of_the_first_values_and_stays():
    start = Start(3)
    levels = []
    for value in (9.0, 1.0, 2.0, 100.0, 100.0):
        start.push(value)
        levels.append(start.level)
    assert levels == [None, None, 2.0, 2.0, 2.0]


def test_streak_counts_in_a_row():
    streak = Streak()
    assert [streak.push(holds) for holds in (True, True, False, True)] == [1, 2, 0, 1]


def test_lowest_level_keeps_the_noise_of_the_time_and_does_not_follow_a_rise():
    level, window = LowestLevel(), Window(3)
    for value in (5.0, 1.0, 2.0, 3.0, 50.0, 60.0, 70.0):
        window.push(value)
        level.push(window)
    assert (level.location, level.scale) == (2.0, 1.0)


def test_largest_starts_at_zero():
    largest = Largest()
    for value in (-1.0, 3.0, 2.0):
        largest.push(value)
    assert largest.value == 3.0


@pytest.mark.parametrize("build", [lambda: Window(5), lambda: Start(3), Largest])
def test_state_survives_json_and_goes_on_as_if_never_stopped(build):
    values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]
    whole, first, second = build(), build(), build()
    for value in values:
        whole.push(value)
    for value in values[:4]:
        first.push(value)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for value in values[4:]:
        second.push(value)
    assert second.state_dict() == whole.state_dict()


def test_state_of_streak_and_lowest_level_survive_json():
    streak, level, window = Streak(), LowestLevel(), Window(3)
    streak.push(True)
    window.push(2.0)
    level.push(window)
    other_streak, other_level = Streak(), LowestLevel()
    other_streak.load_state_dict(json.loads(json.dumps(streak.state_dict())))
    other_level.load_state_dict(json.loads(json.dumps(level.state_dict())))
    assert other_streak.push(True) == 2
    assert other_level.location == 2.0
