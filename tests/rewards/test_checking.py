import asyncio
import inspect
import pickle
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from trl_ext.errors import UserError
from trl_ext.rewards import CheckedReward

STEP_3 = SimpleNamespace(global_step=3)


def answer(value):
    """A reward function that returns `value`, whatever it is asked."""

    def constant(prompts, completions, **kwargs):
        return value

    return constant


def ask(func, completions=("a", "b"), on_failure="raise", **kwargs):
    checked = CheckedReward(func, on_failure=on_failure)
    return checked(prompts=[""] * len(completions), completions=list(completions), **kwargs)


def said(func, **kwargs):
    with pytest.raises(UserError) as error:
        ask(func, **kwargs)
    assert "\n" not in str(error.value)
    return str(error.value)


def words(prompts, completions, **kwargs):
    return [len(c.split()) for c in completions]


async def slow_words(prompts, completions, **kwargs):
    await asyncio.sleep(0)
    return words(prompts, completions)


class Named:
    """Like TRL's own: a class with a name that is not its class's."""

    __name__ = "renamed"

    def __call__(self, prompts, completions, **kwargs):
        return [0.0] * len(completions)


@pytest.mark.parametrize(
    "value",
    [
        [1.0, 2.0],
        [1, 2],
        (True, 2),
        torch.tensor([1.0, 2.0]),
        torch.tensor([1, 2], dtype=torch.bfloat16),
        [torch.tensor(1.0), torch.tensor(2)],
        np.array([1.0, 2.0]),
        [np.float32(1), np.int64(2)],
    ],
)
def test_every_kind_of_number_passes_as_a_float(value):
    rewards = ask(answer(value))
    assert rewards == [1.0, 2.0]
    assert all(type(reward) is float for reward in rewards)


def test_none_passes_unchanged():
    assert ask(answer([None, 1.0])) == [None, 1.0]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.0], "returned 1 rewards for 2 completions: return one number per completion"),
        ([1.0, 2.0, 3.0], "returned 3 rewards for 2 completions"),
        ([1.0, "good"], ", completion 1, returned 'good' (str): return a finite number, or None"),
        ([1.0, [2.0]], ", completion 1, returned [2.0] (list)"),
        ([1.0, float("nan")], ", completion 1, returned nan (float): return a finite number"),
        ([torch.tensor(float("inf")), 1.0], ", completion 0, returned tensor(inf) (Tensor): return a finite number"),
        (torch.tensor([[1.0], [2.0]]), ", completion 0, returned tensor([1.]) (Tensor)"),
        ([1.0, 1j], ", completion 1, returned 1j (complex)"),
        (1.0, "returned 1.0 (float): return a list, one number per completion"),
        (torch.tensor(1.0), "returned tensor(1.) (Tensor): return a list"),
        (None, "returned None (NoneType): return a list"),
        ("ab", "returned 'ab' (str): return a list"),
        ({"a": 1, "b": 2}, "(dict): return a list"),
    ],
)
def test_what_is_no_list_of_numbers_is_named_with_function_and_step(value, message):
    text = said(answer(value), trainer_state=STEP_3)
    assert text.startswith("Reward function 'constant' at step 3")
    assert message in text


def test_an_exception_is_named_with_its_line_and_kept_as_the_cause():
    def divides(prompts, completions, **kwargs):
        return [1 / 0 for _ in completions]

    with pytest.raises(UserError, match="'divides' at step 3 raised ZeroDivisionError: division by zero") as error:
        ask(divides, trainer_state=STEP_3)
    line = inspect.getsourcelines(divides)[1] + 1
    assert f"test_checking.py, line {line}): mend it, or return None" in str(error.value)
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_a_missing_dataset_column_is_explained():
    def compares(prompts, completions, solution, **kwargs):
        return [1.0, 1.0]

    assert "missing 1 required positional argument: 'solution': dataset columns arrive as" in said(compares)


def test_a_function_without_room_for_columns_is_told_to_make_it():
    assert "add **kwargs to its arguments" in said(lambda prompts, completions: [1.0, 1.0])


def test_without_a_trainer_state_the_call_is_counted():
    flaky = iter([[1.0, 2.0], [1.0]])
    checked = CheckedReward(lambda prompts, completions, **kwargs: next(flaky), on_failure="raise")
    checked(["", ""], ["a", "b"])
    with pytest.raises(UserError, match="'<lambda>' at call 2 returned 1 rewards"):
        checked(["", ""], ["a", "b"])


def test_arguments_arrive_as_trl_passes_them():
    seen = {}

    def looks(prompts, completions, completion_ids, solution, **kwargs):
        seen.update(prompts=prompts, ids=completion_ids, solution=solution, rest=set(kwargs))
        return [0.0, 0.0]

    CheckedReward(looks)(
        prompts=["p", "q"], completions=["a", "b"], completion_ids=[[1], [2]], solution=["s", "t"], trainer_state=STEP_3
    )
    assert seen == {"prompts": ["p", "q"], "ids": [[1], [2]], "solution": ["s", "t"], "rest": {"trainer_state"}}


@pytest.mark.parametrize(
    ("func", "name"),
    [(words, "words"), (partial(words, extra=1), "words"), (Named(), "renamed"), (slow_words, "slow_words")],
)
def test_the_name_that_trl_logs_is_kept(func, name):
    from trl.trainer.utils import get_callable_name

    assert get_callable_name(CheckedReward(func)) == name


def test_the_last_batch_that_passed_is_remembered_and_bounded():
    checked = CheckedReward(words)
    assert checked.last_batch is None
    checked(["p", "q"], ["a b", "c"])
    assert checked.last_batch == (["p", "q"], ["a b", "c"], [2.0, 1.0])
    for _ in range(3):
        checked([""] * 5000, ["a"] * 5000)
    assert (
        len(checked.last_batch.prompts) == len(checked.last_batch.completions) == len(checked.last_batch.rewards) == 256
    )


def test_models_come_back_as_they_are():
    model = torch.nn.Linear(1, 1)
    assert CheckedReward(model) is model


def test_pickles_without_the_batch():
    checked = CheckedReward(words, name="count")
    checked(["p"], ["a b"])
    copy = pickle.loads(pickle.dumps(checked))
    assert copy(["p"], ["a b c"]) == [3.0]
    assert copy.__name__ == "count"
    assert pickle.loads(pickle.dumps(CheckedReward(words))).last_batch is None


def test_a_coroutine_function_stays_one_and_is_checked():
    checked = CheckedReward(slow_words)
    assert inspect.iscoroutinefunction(checked)  # how TRL 1.12 asks
    assert inspect.iscoroutinefunction(type(checked).__call__)  # how TRL 1.16 asks
    assert asyncio.run(checked(prompts=[""], completions=["a b"])) == [2.0]
    assert checked.last_batch.rewards == [2.0]
    assert inspect.iscoroutinefunction(pickle.loads(pickle.dumps(checked)))

    async def too_many(prompts, completions, **kwargs):
        return [1.0, 2.0]

    async def fails(prompts, completions, **kwargs):
        raise RuntimeError("no\nanswer")

    for func, message in (
        (too_many, "returned 2 rewards for 1 completions"),
        (fails, "raised RuntimeError: no answer"),
    ):
        with pytest.raises(UserError, match=f"'{func.__name__}' at step 3 {message}"):
            asyncio.run(CheckedReward(func, on_failure="raise")(prompts=[""], completions=["a"], trainer_state=STEP_3))


def test_a_synchronous_function_is_not_taken_for_a_coroutine():
    assert not inspect.iscoroutinefunction(CheckedReward(words))
    assert not inspect.iscoroutinefunction(CheckedReward(Named()))
