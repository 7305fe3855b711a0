import asyncio
import inspect
import math
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from trl_ext.errors import UserError
from trl_ext.rewards import CheckedReward, load_reward_funcs
from trl_ext.rewards.calls import Call, ask
from trl_ext.rewards.combinators import Clip, Gate, Schedule, WeightedSum
from trl_ext.rewards.probing import is_probing, probing
from trl_ext.rewards.rescaling import Moments, Rescale


class Values:
    """The reward of a completion is the number that it says; remembers what it was asked."""

    __name__ = "values"

    def __init__(self, factor=1.0):
        self.factor = factor
        self.calls = []

    def __call__(self, prompts, completions, **kwargs):
        self.calls.append({"prompts": prompts, "completions": completions, **kwargs})
        return [None if c == "none" else self.factor * float(c) for c in completions]


class SlowValues(Values):
    """The same, awaited; says how many of its kind were at it at the same time."""

    at_once = most = 0

    async def __call__(self, prompts, completions, **kwargs):
        SlowValues.at_once += 1
        SlowValues.most = max(SlowValues.most, SlowValues.at_once)
        await asyncio.sleep(0.01)
        SlowValues.at_once -= 1
        return super().__call__(prompts, completions, **kwargs)


def lengths(prompts, completions, **kwargs):
    return [len(c) for c in completions]


def value(of):
    def constant(prompts, completions, **kwargs):
        return of

    return constant


def call(reward, completions, **kwargs):
    completions = list(completions)
    return reward(prompts=["p"] * len(completions), completions=completions, **kwargs)


def step(number):
    return SimpleNamespace(global_step=number)


ALL = [
    lambda inner: WeightedSum([inner, lengths], [2.0, 1.0]),
    lambda inner: Clip(inner, minimum=0.0),
    lambda inner: Gate(inner, lengths, threshold=2),
    lambda inner: Gate(lengths, inner, threshold=2),
    lambda inner: Schedule(inner, 1.0, 0.0, 10),
    Rescale,
]


def test_weighted_sum_by_hand():
    reward = WeightedSum([Values(), lengths], [2.0, -1.0])
    assert call(reward, ["3", "-10"]) == [2 * 3 - 1, 2 * -10 - 3]
    assert call(WeightedSum([Values(), Values(10)]), ["3"]) == [33.0]


def test_weighted_sum_leaves_out_what_is_none_and_is_none_where_all_are():
    reward = WeightedSum([Values(), lengths], [2.0, -1.0])
    assert call(reward, ["none", "1"]) == [-4.0, 1.0]
    assert call(WeightedSum([Values(), Values()]), ["none", "1"]) == [None, 2.0]


def test_weighted_sum_does_not_depend_on_the_order():
    big, small, minus = value([1e15]), value([1.0]), value([-1e15])
    assert call(WeightedSum([big, small, minus]), "a") == call(WeightedSum([big, minus, small]), "a") == [1.0]


def test_clip_by_hand():
    completions = ["-5", "0.5", "5", "none"]
    assert call(Clip(Values(), -1, 1), completions) == [-1.0, 0.5, 1.0, None]
    assert call(Clip(Values(), minimum=0), completions) == [0.0, 0.5, 5.0, None]
    assert call(Clip(Values(), maximum=0), completions) == [-5.0, 0.0, 0.0, None]


def test_gate_asks_only_about_the_rows_that_pass_with_their_part_of_every_column():
    inner = Values()
    reward = Gate(inner, lengths, threshold=2)
    state = step(1)
    values = reward(
        prompts=["p", "q", "r"],
        completions=["1", "22", "333"],
        completion_ids=[[1], [2, 2], [3, 3, 3]],
        solution=["a", "b", "c"],
        other=[1, 2],
        trainer_state=state,
    )
    assert values == [0.0, 22.0, 333.0]
    assert inner.calls == [
        {"prompts": ["q", "r"], "completions": ["22", "333"], "completion_ids": [[2, 2], [3, 3, 3]],
         "solution": ["b", "c"], "other": [1, 2], "trainer_state": state}
    ]  # fmt: skip


def test_gate_gives_otherwise_to_the_rest_and_none_where_the_condition_is_none():
    assert call(Gate(lengths, Values(), 3, otherwise=-1), ["3", "2.9", "none"]) == [1.0, -1.0, None]
    assert call(Gate(lengths, Values(), 3, otherwise=None), ["3", "2"]) == [1.0, None]
    assert call(Gate(Values(), lengths, 0), ["none"]) == [None]


def test_gate_with_nothing_to_ask_does_not_ask():
    inner = Values()
    assert call(Gate(inner, lengths, 9), ["1", "2"]) == [0.0, 0.0]
    assert call(Gate(inner, lengths, 9), []) == []
    assert inner.calls == []


@pytest.mark.parametrize(
    ("shape", "weights"),
    [
        ("linear", {0: 1.0, 25: 1.5, 50: 2.0, 75: 2.5, 100: 3.0, 1000: 3.0}),
        ("cosine", {0: 1.0, 25: 2 - math.sqrt(0.5), 50: 2.0, 75: 2 + math.sqrt(0.5), 100: 3.0, 1000: 3.0}),
        ("constant", {0: 1.0, 50: 1.0, 99: 1.0, 100: 3.0, 1000: 3.0}),
    ],
)
def test_schedule_by_hand(shape, weights):
    reward = Schedule(Values(), start=1.0, end=3.0, steps=100, shape=shape)
    for number, weight in weights.items():
        assert call(reward, ["10", "none"], trainer_state=step(number)) == [pytest.approx(10 * weight), None]
    assert call(reward, ["10"]) == call(reward, ["10"], trainer_state=None) == [10.0]


def test_moments_against_numpy_over_all_and_with_decay():
    values = np.random.default_rng(0).normal(1e6, 3.0, 500)
    for decay in (1.0, 0.9):
        moments = Moments(decay)
        for number in values:
            moments.add(number)
        weights = decay ** np.arange(len(values))[::-1]
        mean = np.average(values, weights=weights)
        assert moments.mean == pytest.approx(mean, rel=1e-12)
        assert moments.std == pytest.approx(np.sqrt(np.average((values - mean) ** 2, weights=weights)), rel=1e-6)


def test_rescale_by_hand():
    reward = Rescale(Values())
    assert call(reward, ["2", "4"]) == [-1.0, 1.0]  # mean 3, std 1
    assert call(reward, ["none", "9"]) == [None, pytest.approx(4 / math.sqrt(26 / 3))]  # 2, 4, 9: mean 5, var 26 / 3
    assert call(Rescale(Values(), center=False), ["2", "4"]) == [2.0, 4.0]  # std 1, not centered
    # decay 1/2 of 2, 4: weights 1/2 and 1, mean 10 / 3, variance (1/2 * 16/9 + 4/9) / (3/2) = 8 / 9
    assert call(Rescale(Values(), decay=0.5), ["2", "4"]) == pytest.approx([-math.sqrt(2), math.sqrt(0.5)])


def test_rescale_does_not_divide_equal_rewards():
    assert call(Rescale(Values()), ["0.1"] * 7) == [0.0] * 7
    assert call(Rescale(Values(), center=False), ["0.1"] * 7) == [0.1] * 7


def test_rescale_learns_nothing_from_a_probe():
    reward = Rescale(Values())
    with probing():
        assert call(reward, ["5"]) == [5.0]
    call(reward, ["2", "4"])
    state = vars(reward.moments).copy()
    with probing():
        assert call(reward, ["1000"]) == [997.0]
    assert vars(reward.moments) == state
    call(reward, ["1000"])
    assert vars(reward.moments) != state


def test_probing_ends_and_nests():
    with probing(), probing():
        assert is_probing()
    assert not is_probing()


@pytest.mark.parametrize("decay", [None, 0.9])
def test_a_pickled_rescale_goes_on_where_it_was(decay):
    whole, first = Rescale(Values(), decay=decay), Rescale(Values(), decay=decay)
    numbers = [str(number) for number in np.random.default_rng(0).normal(size=40).round(3)]
    call(whole, numbers[:20])
    call(first, numbers[:20])
    second = pickle.loads(pickle.dumps(first))
    assert call(second, numbers[20:]) == call(whole, numbers[20:])


def test_nan_is_none_and_anything_else_an_error_with_the_inner_name():
    for nan in (math.nan, np.float32("nan"), torch.tensor(math.nan)):
        assert call(Clip(value([nan, 1.0]), 0), "ab") == [None, 1.0]
    assert call(Clip(value(torch.tensor([math.nan, 1.0])), 0), "ab") == [None, 1.0]
    for wrong, message in (
        ([math.inf, 1.0], "clip: 'constant', completion 0, returned inf"),
        ([1.0, "good"], "clip: 'constant', completion 1, returned 'good'"),
        ([1.0], "clip: 'constant' returned 1 rewards for 2 completions"),
        (1.0, "clip: 'constant' returned 1.0"),
        ("ab", "clip: 'constant' returned 'ab'"),
    ):
        with pytest.raises(UserError, match=message):
            call(Clip(value(wrong), 0), "ab")


@pytest.mark.parametrize("make", ALL)
def test_a_coroutine_function_inside_makes_one_with_the_same_values(make):
    completions = ["3", "-10", "none", "777"]
    expected = call(make(Values()), completions)
    reward = make(SlowValues())
    assert inspect.iscoroutinefunction(reward)  # how TRL 1.12 asks
    assert inspect.iscoroutinefunction(type(reward).__call__)  # how TRL 1.16 asks
    assert reward.__name__ == make(Values()).__name__
    assert asyncio.run(call(reward, completions)) == expected
    copy = pickle.loads(pickle.dumps(make(SlowValues())))
    assert asyncio.run(call(copy, completions)) == expected
    checked = CheckedReward(make(SlowValues()), on_failure="raise")
    assert asyncio.run(call(checked, completions)) == expected
    # a combinator of combinators
    assert asyncio.run(call(Clip(make(SlowValues()), -1e9), completions)) == expected


@pytest.mark.parametrize("make", ALL)
def test_without_one_none_is_made_and_it_pickles(make):
    reward = make(Values())
    assert not inspect.iscoroutinefunction(reward)
    assert not inspect.iscoroutinefunction(type(reward).__call__)
    copy = pickle.loads(pickle.dumps(reward))
    assert call(copy, ["3", "none"]) == call(make(Values()), ["3", "none"])


def test_coroutine_functions_are_awaited_together():
    SlowValues.most = 0
    assert asyncio.run(call(WeightedSum([SlowValues(), SlowValues(), lengths]), ["1"])) == [3.0]
    assert SlowValues.most == 2


def test_a_probe_of_a_coroutine_function_is_one_as_well():
    reward = Rescale(SlowValues())
    with probing():
        assert asyncio.run(call(reward, ["5"])) == [5.0]
    assert reward.moments.weight == 0


def test_an_exception_passes_through_and_rescale_learns_nothing_from_the_call():
    def fails(prompts, completions, **kwargs):
        raise RuntimeError("down")

    async def fails_later(prompts, completions, **kwargs):
        raise RuntimeError("down")

    for func in (fails, fails_later):
        reward = Rescale(WeightedSum([Values(), func]))
        with pytest.raises(RuntimeError, match="down"):
            ask(reward, Call(["p"], ["1"], None, {}))
        assert reward.moments.weight == 0


def test_a_configuration_names_rewards_within_rewards():
    numeric = {"name": "numeric", "kwargs": {"column": "answer"}}
    clean = {"name": "block_list", "kwargs": {"phrases": ["bad"]}}
    gate = {"reward": numeric, "condition": clean, "threshold": 1, "otherwise": -1}
    latin = {"name": "script", "kwargs": {"scripts": "Latin"}}
    halved = {"name": "schedule", "kwargs": {"reward": latin, "start": 0.5, "end": 0, "steps": 10}}
    clipped = {"name": "clip", "kwargs": {"reward": {"name": "rescale", "kwargs": {"reward": "length"}}, "maximum": 0}}
    total = {"rewards": [{"name": "gate", "kwargs": gate}, halved, clipped], "weights": [1.0, 2.0, 1.0]}
    (reward,), _ = load_reward_funcs([{"name": "weighted_sum", "kwargs": total}])
    assert call(reward, ["it is 4", "bad 4", "да"], answer=[4, 4, 4]) == [2.0, 0.0, 0.0]
    remote = {"name": "remote", "kwargs": {"url": "http://127.0.0.1:1/", "check": False}}
    (reward,), _ = load_reward_funcs([{"name": "clip", "kwargs": {"reward": remote, "minimum": 0}}])
    assert inspect.iscoroutinefunction(reward)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WeightedSum([]), "needs a list for rewards"),
        (lambda: WeightedSum(lengths), "needs a list for rewards, e.g. rewards: .length, loops."),
        (lambda: WeightedSum([lengths, "length"]), "needs a reward function for rewards, in YAML .* not 'length'"),
        (lambda: WeightedSum([lengths], [1, 2]), "has 2 weights for 1 rewards"),
        (lambda: WeightedSum([lengths], 1.0), "needs a list for weights"),
        (lambda: WeightedSum([lengths], [True]), "needs a number for weights"),
        (lambda: WeightedSum([lengths], [math.nan]), "needs a number for weights"),
        (lambda: Clip(None, 0), "clip needs a reward function for reward"),
        (lambda: Clip(torch.nn.Linear(1, 1), 0), "clip cannot call the model in reward itself: .* 'reward_model'"),
        (lambda: Clip(lengths), "needs minimum, maximum or both"),
        (lambda: Clip(lengths, 1, 1), "minimum < maximum, not minimum=1, maximum=1"),
        (lambda: Clip(lengths, "0"), "needs a number for minimum"),
        (lambda: Gate(lengths, 3, 0), "gate needs a reward function for condition"),
        (lambda: Gate(lengths, lengths, None), "needs a number for threshold"),
        (lambda: Gate(lengths, lengths, 0, otherwise="none"), "needs a number for otherwise"),
        (lambda: Schedule(lengths, "1", 0, 10), "needs a number for start"),
        (lambda: Schedule(lengths, 1, None, 10), "needs a number for end"),
        (lambda: Schedule(lengths, 1, 0, 0), "whole number of at least 1 for steps"),
        (lambda: Schedule(lengths, 1, 0, 10, "square"), "choices linear, cosine, constant, not 'square'"),
        (lambda: Rescale(lengths, decay=1.0), "decay above 0 and below 1, e.g. decay: 0.999, not 1.0"),
        (lambda: Rescale(lengths, decay="0.9"), "needs a number for decay"),
        (lambda: Rescale(lengths, center=1), "true or false for center"),
    ],
)
def test_bad_options_are_one_line(make, message):
    with pytest.raises(UserError, match=message) as error:
        make()
    assert "\n" not in str(error.value)
