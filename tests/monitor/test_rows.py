"""Reading a log: any value, nothing raised, nothing changed."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trl_ext.monitor.engine import Engine
from trl_ext.monitor.rows import read_row

KEYS = ["reward", "kl", "objective/kl", "entropy", "loss", "grad_norm", "val/ratio", "loss/value_avg", "rewards/f/mean",
        "eval_loss", "logps/chosen", "step", "mine"]  # fmt: skip
VALUES = st.one_of(
    st.none(), st.booleans(), st.text(max_size=5), st.floats(), st.integers(), st.just(10**5000),
    st.sampled_from([np.float32(0.5), np.int64(3), np.float64("nan"), np.bool_(True), np.array([1.0]), np.ones(3),
                     torch.tensor(0.5), torch.tensor([2]), torch.ones(2), torch.tensor(float("inf")),
                     torch.tensor(True), 1j, [1.0], {"a": 1}, object()]),
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.dictionaries(st.sampled_from(KEYS), VALUES), max_size=8))
def test_no_sequence_of_logs_raises_or_is_changed(sequence):
    engine = Engine(warmup_steps=0)
    for step, logs in enumerate(sequence):
        keys, values = list(logs), list(logs.values())
        engine.observe(step, logs)
        assert list(logs) == keys
        assert all(after is before for after, before in zip(logs.values(), values, strict=True))
        assert all(type(value) is float or type(value) is int for value in engine.row.metrics.values())
        assert all(map(math.isfinite, engine.row.metrics.values()))


@pytest.mark.parametrize(
    "value", [0.5, np.float32(0.5), np.float64(0.5), torch.tensor(0.5), torch.tensor([0.5]), np.array(0.5)]
)
def test_scalars_of_every_library_are_numbers(value):
    assert read_row(1, {"kl": value}).metrics == {"kl_per_token": 0.5}


def test_each_kind_of_value_lands_in_its_place():
    logs = {"kl": math.nan, "entropy": None, "reward": 1.0, "note": "text", "flag": True, "loss": math.inf, "x": [1]}
    row = read_row(7, copy.copy(logs))
    assert row.step == 7
    assert row.metrics == {"reward": 1.0}
    assert set(row.nonfinite) == {"kl_per_token", "loss"}
    assert row.absent == ["entropy_per_token"]
    assert list(row.logged) == ["kl", "entropy", "reward", "note", "flag", "loss"]
    assert row.plain is None


def test_a_bool_is_no_number():
    assert read_row(1, {"reward": True}).metrics == {}


def test_a_huge_integer_is_infinite():
    assert read_row(1, {"reward": -(10**400)}).nonfinite == {"reward": -math.inf}


def test_a_key_that_is_no_string_is_left_out():
    assert read_row(1, {3: 1.0, "reward": 2.0}).logged == {"reward": 2.0}


def test_a_nan_under_the_less_preferred_key_is_kept_under_its_own_name():
    row = read_row(1, {"reward": 1.0, "objective/scores": math.nan})
    assert row.metrics == {"reward": 1.0}
    assert list(row.nonfinite) == ["objective/scores"]
    assert row.plain is None


@pytest.mark.parametrize("value", [0.5, 2])
def test_the_quick_way_and_the_general_way_read_the_same(value):
    logs = {"reward": value, "kl": 0.25, "objective/scores": 1.0, "eval_loss": 3}
    quick, general = read_row(1, logs), read_row(1, {**logs, "note": "x"})
    assert quick.plain is not None and general.plain is None
    assert quick.metrics == general.metrics == {"reward": value, "kl_per_token": 0.25, "eval/loss": 3}
    assert quick.logged == logs and list(quick.logged) == list(logs)


def test_the_row_does_not_follow_what_happens_to_the_logs():
    logs = {"reward": 1.0}
    row = read_row(1, logs)
    logs["reward"] = 2.0
    assert row.logged == {"reward": 1.0}


def test_infinities_that_cancel_are_seen():
    row = read_row(1, {"reward": math.inf, "kl": -math.inf})
    assert row.nonfinite == {"reward": math.inf, "kl_per_token": -math.inf} and row.metrics == {}


def test_numbers_whose_squares_overflow_are_no_numbers_to_a_rule():
    row = read_row(1, {"reward": 1.7e308, "kl": 1e99})
    assert row.metrics == {"kl_per_token": 1e99} and row.nonfinite
