"""Rewards are asked about two samples before a model is loaded."""

import pytest
from datasets import Dataset

from trl_ext.errors import UserError
from trl_ext.rewards import CheckedReward, check_reward_funcs, load_reward_funcs
from trl_ext.rewards.trying import SAMPLES, sample_call


def wants(prompts, completions, solution, **kwargs):
    return [float(s in c) for s, c in zip(solution, completions, strict=True)]


def test_sound_rewards_pass_and_remember_nothing():
    functions, _ = load_reward_funcs(["sentiment", "length", "repetition"])
    check_reward_funcs(functions)
    assert all(function.last_batch is None and function.calls == 0 for function in functions)


def test_a_reward_that_fails_is_named_whatever_its_policy():
    def broken(prompts, completions, **kwargs):
        return [1 / 0]

    with pytest.raises(UserError, match="'broken' at call 0 raised ZeroDivisionError"):
        check_reward_funcs([CheckedReward(broken, on_failure="none")])


def test_columns_come_from_the_dataset():
    check_reward_funcs([CheckedReward(wants)])  # unknown without a dataset
    check_reward_funcs([CheckedReward(wants)], Dataset.from_dict({"prompt": ["a", "b"], "solution": ["4", "5"]}))
    with pytest.raises(UserError, match=r"missing 1 required positional argument: 'solution'.*needs that column"):
        check_reward_funcs([CheckedReward(wants)], Dataset.from_dict({"prompt": ["a", "b"], "answer": ["4", "5"]}))


def test_completions_have_the_form_of_the_prompts():
    assert sample_call().completions == list(SAMPLES)
    call = sample_call([{"prompt": [{"role": "user", "content": "?"}], "solution": "4"}])
    assert [completion[0]["content"] for completion in call.completions] == list(SAMPLES)
    assert call.others == {"solution": ["4", "4"]}
    assert [len(ids) for ids in call.completion_ids] == [len(text.split()) for text in SAMPLES]


def test_a_coroutine_function_is_awaited():
    async def broken(prompts, completions, **kwargs):
        return ["x", "y"]

    with pytest.raises(UserError, match=r"'broken'.*returned 'x'"):
        check_reward_funcs([CheckedReward(broken)])
