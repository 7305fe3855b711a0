"""Reading a log: any value, nothing raised, nothing changed."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_ext.monitor.engine import Engine
from trl_ext.monitor.rows import read_row
from trl_ext.monitor.rules import RULES

KEYS = ["reward", "kl", "objective/kl", "entropy", "loss", "grad_norm", "val/ratio", "loss/value_avg", "rewards/f/mean",
        "eval_loss", "logps/chosen", "step", "mine"]  # fmt: skip
VALUES = st.one_of(
    st.none(), st.booleans(), st.text(max_size=5), st.floats(), st.integers(), st.just(10**5000),
    st.sampled_from([np.float32(0.5), np.int64(3), np.float64("nan"), np.bool_(True), np.array([1.0]), np.ones(3),
                     torch.tensor(0.5), torch.tensor([2]), torch.ones(2), torch.tensor(float("inf")),
                     torch.tensor(True), 1j, [1.0], {"a": 1}, object()]),
)  # fmt: skip


@settings(max_examples=60)
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


class Unreadable:
    def item(self):
        raise KeyError("whatever")


def test_an_object_that_raises_is_no_number():
    assert read_row(1, {"reward": Unreadable()}).logged == {}


@pytest.mark.parametrize("value", [5e-324, 1e-320, 1e99, -1e99, 1e50, 0.0, -0.0])
def test_no_rule_gives_up_on_an_absurd_number(value, caplog):
    """Each metric of each rule in turn, after usual numbers and among them."""
    metrics = sorted({metric for rule in RULES.values() for metric in rule.metrics if not metric.endswith("*")})
    for metric in metrics:
        engine = Engine(warmup_steps=0)
        usual = dict.fromkeys((*metrics, "reward_std", "eval/loss", "rewards/rejected", "loss", "margin"), 0.7)
        for step in range(70):
            odd = {metric: value} if step in (0, 20, 21, 22, 23) or step > 50 else {}
            engine.observe(step, {**usual, **odd})
    assert caplog.text == ""
