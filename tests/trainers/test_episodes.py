"""Episodes end at the limits of tokens and turns, alike in TRL's loop of tools and in a `rollout_func`."""

import pytest
import torch
from datasets import Dataset
from episode_builders import agent, call, logged, spoken
from trainer_builders import PROMPTS, loo_trainer, prompts, scored

from trl_ext.errors import UserError
from trl_ext.trainers import ReinforceLOOConfig
from trl_ext.trainers.episode_limits import count_turns, cut_by, cut_rollouts, kept_tokens

SAY, HEAR = call("echo", '"text": "ab"'), "tool: ab\nassistant: "
TURN = len(SAY) + 1  # with the end-of-text token; one token a byte
ROUND = TURN + len(HEAR)


def echo(text: str) -> str:
    """
    Says it again.

    Args:
        text: What to say.
    """
    return text


def for_ever(text):
    return SAY


def never_ending(tmp_path, **options):
    options = {"max_completion_length": 40} | options
    return agent(tmp_path, for_ever, trainer={"tools": [echo]}, **options)


def tokens_of(output):
    return output["completion_mask"].sum(1).tolist()


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_no_more_turns_than_that_are_taken(tmp_path, turns):
    trainer = never_ending(tmp_path, max_episode_turns=turns, max_episode_len=400)
    output = scored(trainer)
    assert spoken(output, 0, trainer._tokenizer, True) == (SAY + "<eos>") * turns
    assert spoken(output, 0, trainer._tokenizer, False) == HEAR * (turns - 1)
    metrics = logged(trainer)
    assert (metrics["episodes/turns"], metrics["episodes/cut_ratio/turns"]) == (turns, 1.0)
    assert (metrics["episodes/tokens"], metrics["episodes/cut_ratio/tokens"]) == (turns * ROUND - len(HEAR), 0.0)


@pytest.mark.parametrize(
    ("limit", "left"),
    [
        (2 * ROUND + TURN, 2 * ROUND + TURN),  # three turns and the answers between them: exactly
        (2 * ROUND + TURN - 1, 2 * ROUND + TURN - 1),  # the third turn is cut
        (2 * ROUND - 1, ROUND + TURN),  # the second answer does not fit: nobody would read it
    ],
)
def test_no_more_tokens_than_that_are_taken(tmp_path, limit, left):
    trainer = never_ending(tmp_path, max_episode_len=limit)
    assert tokens_of(scored(trainer)) == [left] * 4
    assert logged(trainer)["episodes/cut_ratio/tokens"] == 1.0
    assert trainer.max_completion_length == 40


def test_without_limits_an_episode_is_as_long_as_a_completion_as_in_trl(tmp_path):
    trainer = never_ending(tmp_path, max_completion_length=ROUND + TURN)
    assert tokens_of(scored(trainer)) == [ROUND + TURN] * 4


def test_an_answer_that_fills_the_episode_to_its_last_token_is_not_kept(tmp_path):
    """Nobody reads it, and a reward of the last message would judge the tool."""

    seen = []

    def rewards(completions, ended_by, **_):
        seen.append(([messages[-1]["role"] for messages in completions], ended_by))
        return [1.0] * len(completions)

    for room in (1, 0):  # for a token of the policy behind the answer
        trainer = agent(tmp_path, for_ever, rewards, trainer={"tools": [echo]}, max_episode_len=ROUND + room,
                        max_completion_length=TURN)  # fmt: skip
        output = scored(trainer)
        assert tokens_of(output) == [ROUND + 1 if room else TURN] * 4 and output["tool_mask"][:, -1].all()
    assert seen == [(["assistant"] * 4, ["tokens"] * 4)] * 2


def test_an_episode_that_ends_by_itself_is_not_cut(tmp_path):
    def script(text):
        return "done" if "tool:" in text else SAY

    trainer = agent(tmp_path, script, trainer={"tools": [echo]}, max_episode_turns=2, max_episode_len=400)
    scored(trainer)
    metrics = logged(trainer)
    assert metrics["episodes/cut_ratio/tokens"] == metrics["episodes/cut_ratio/turns"] == 0.0


def test_a_limit_that_is_not_reached_changes_no_step(tmp_path):
    """The loss divides by `max_completion_length`, whatever the episode may take."""
    losses = []
    for options in ({}, {"max_episode_len": 900, "max_episode_turns": 9}):
        trainer = agent(
            tmp_path, lambda text: "done" if "tool:" in text else SAY, lambda completions, **_: [0.0, 1.0] * 2,
            trainer={"tools": [echo]}, **options,
        )  # fmt: skip
        output = scored(trainer)
        trainer.current_gradient_accumulation_steps = 1
        losses.append(trainer._compute_loss(trainer.model, output))
        trainer.model.zero_grad()
        losses[-1].backward()
        losses.append(trainer.model.model.embed_tokens.weight.grad.clone())
    assert torch.equal(losses[0], losses[2]) and torch.equal(losses[1], losses[3]) and losses[1].any()


# What a rollout_func returns --------------------------------------------------------------------------------------

EPISODE = [1, 1, 0, 0, 1, 1, 1, 0, 1, 0]  # three turns of 2, 3 and 1 tokens


@pytest.mark.parametrize(
    ("max_tokens", "max_turns", "kept"),
    [(None, None, 10), (10, 3, 10), (9, None, 9), (8, None, 7), (7, None, 7), (6, None, 6), (4, None, 2), (3, None, 2),
     (1, None, 1), (None, 2, 7), (None, 1, 2), (5, 2, 5), (6, 1, 2)],
)  # fmt: skip
def test_what_is_kept_of_an_episode(max_tokens, max_turns, kept):
    assert kept_tokens(EPISODE, max_tokens, max_turns) == kept
    assert count_turns(EPISODE) == 3


@pytest.mark.parametrize(
    ("limits", "by"),
    [
        ((None, None), None),
        ((10, 3), None),
        ((6, 3), "tokens"),
        ((6, 2), "tokens"),
        ((9, 2), "turns"),
        ((7, 2), "turns"),
    ],
)
def test_which_limit_cut_it(limits, by):
    assert cut_by(EPISODE, *limits) == by


def test_an_episode_in_which_the_environment_speaks_first_is_cut_to_some_token():
    assert kept_tokens([0, 0, 0, 1], 2, None) == 2


def test_all_that_is_per_token_is_cut_and_rewards_of_whole_turns_stay():
    output = {
        "prompt_ids": [[7] * 10, [7]], "completion_ids": [list(range(10)), [3]], "logprobs": [[-0.5] * 10, [-1.0]],
        "env_mask": [EPISODE, [1]], "turn_rewards": [[1.0, 2.0, 3.0], [4.0]], "other": [list("abcdefghij"), ["z"]],
        "text": ["0123456789", "0"], "number": [1, 2],
    }  # fmt: skip
    cut = cut_rollouts(output, 5, None)
    assert cut["completion_ids"] == [[0, 1, 2, 3, 4], [3]] and cut["env_mask"] == [[1, 1, 0, 0, 1], [1]]
    assert cut["logprobs"] == [[-0.5] * 5, [-1.0]] and cut["other"] == [list("abcde"), ["z"]]
    assert cut["turn_rewards"] == [[1.0], [4.0]]
    assert all(cut[name] == output[name] for name in ("prompt_ids", "text", "number"))
    assert cut_rollouts(output, None, 2)["turn_rewards"] == [[1.0, 2.0], [4.0]]
    assert cut_rollouts(output, 10, 3) == output


def three_turns(prompts, trainer):
    tokenizer = trainer._tokenizer
    ids = tokenizer("aabbcccdee")["input_ids"]
    return {"prompt_ids": tokenizer(prompts)["input_ids"], "completion_ids": [list(ids) for _ in prompts],
            "logprobs": None, "env_mask": [list(EPISODE) for _ in prompts],
            "turn_rewards": [[1.0, 2.0, 4.0 * (i % 4)] for i in range(len(prompts))]}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "tokens", "by"),
    [
        ({"max_episode_turns": 2}, 7, "turns"),
        ({"max_episode_len": 8, "max_completion_length": 8}, 7, "tokens"),
        ({}, 10, None),
    ],
)
def test_a_rollout_func_is_held_to_the_limits(tmp_path, options, tokens, by):
    trainer = loo_trainer(tmp_path, beta=0.0, dataset=prompts(), trainer={"rollout_func": three_turns}, **options)
    output = scored(trainer)
    assert trainer.rollout_func is three_turns
    assert tokens_of(output) == [tokens] * 16
    metrics = logged(trainer)
    assert metrics["episodes/tokens"] == tokens and metrics["episodes/turns"] == count_turns(EPISODE[:tokens])
    assert {limit: metrics[f"episodes/cut_ratio/{limit}"] for limit in ("tokens", "turns")} == {
        limit: float(limit == by) for limit in ("tokens", "turns")
    }
    # the third turn is worth something else in each completion; where it is cut off, nothing is left of that
    assert bool(output["advantages"].any()) is (by is None)
    assert len(PROMPTS) == 8


# Options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda output: None, "must return a dictionary"),
        (lambda output: output | {"completion_ids": [[], *output["completion_ids"][1:]]}, "completion 0 has no token"),
        (lambda output: output | {"env_mask": [[1]] * 16}, "env_mask of completion 0 must have 10 entries"),
    ],
)
def test_what_a_rollout_func_must_not_return_is_one_line(tmp_path, change, told):
    trainer = loo_trainer(
        tmp_path, beta=0.0, dataset=prompts(), trainer={"rollout_func": lambda *a: change(three_turns(*a))}
    )
    with pytest.raises(UserError, match=told):
        scored(trainer)


def test_turns_are_trls_calls_of_tools_and_one_more(tmp_path):
    assert (
        ReinforceLOOConfig(str(tmp_path), use_cpu=True, bf16=False, max_episode_turns=4).max_tool_calling_iterations
        == 3
    )
    same = {"max_episode_turns": 4, "max_tool_calling_iterations": 3}  # as a configuration that was written has it
    assert ReinforceLOOConfig(str(tmp_path), use_cpu=True, bf16=False, **same).max_tool_calling_iterations == 3


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        ({"max_episode_len": 100, "max_completion_length": 101}, "set max_completion_length"),
        ({"max_episode_turns": 0}, "at least 1"),
        ({"max_episode_turns": 1.5}, "expects a whole number"),
        ({"max_episode_turns": True}, "expects a whole number"),
        ({"max_episode_len": "x"}, "expects a whole number"),
        ({"tool_timeout": float("inf")}, "at most 1e"),
        ({"max_tool_answer": None}, "expects a whole number"),
        ({"max_episode_turns": 3, "max_tool_calling_iterations": 3}, "allows 4 turns"),
    ],
)
def test_limits_that_cannot_be_are_one_line(tmp_path, options, fix):
    with pytest.raises(UserError, match=fix):
        ReinforceLOOConfig(str(tmp_path), use_cpu=True, bf16=False, **options)


def test_an_empty_prompt_is_one_line(tmp_path):
    with pytest.raises(UserError, match="the prompt '' has no token"):
        loo_trainer(tmp_path, dataset=Dataset.from_dict({"prompt": ["", "a"] * 8})).train()
