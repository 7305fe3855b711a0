"""What rewards are compared with: every baseline against its closed form, in the trainer."""

import math

import pytest
import torch
from episode_builders import agent
from trainer_builders import PROMPTS, fixed_rollouts, letter_share, loo_trainer, prompts, scored

from trl_ext.errors import UserError
from trl_ext.tiny import byte_tokenizer
from trl_ext.trainers.baselines import GroupBaseline

NAN = math.nan


def rewards_of(output):
    mask = output["completion_mask"].bool()
    return torch.tensor(letter_share([ids[m] for ids, m in zip(output["completion_ids"], mask, strict=True)]))


def test_the_mean_is_that_of_the_prompts_completions(tmp_path):
    output = scored(loo_trainer(tmp_path, baseline="mean", beta=0.0, trainer={"rollout_func": fixed_rollouts()}))
    rewards = rewards_of(output).view(4, 4)
    torch.testing.assert_close(output["advantages"], (rewards - rewards.mean(1, keepdim=True)).flatten())


@pytest.mark.parametrize("generations", [1, 4])
def test_the_moving_average_is_that_of_the_batches_before(tmp_path, generations):
    trainer = loo_trainer(
        tmp_path, baseline="ema", ema_decay=0.8, beta=0.0, num_generations=generations,
        trainer={"rollout_func": fixed_rollouts()},
    )  # fmt: skip
    rows = next(iter(trainer.get_train_dataloader()))
    trainer.model.train()
    seen = []
    for step in range(4):
        trainer.state.global_step = step
        output = trainer._generate_and_score_completions(rows)
        rewards = rewards_of(output)
        weights = [0.8 ** (len(seen) - 1 - i) for i in range(len(seen))]
        if seen:
            average = sum(w * m for w, m in zip(weights, seen, strict=True)) / sum(weights)
            expected = rewards - average
        else:
            expected = rewards - (rewards.sum() - rewards) / 15
        torch.testing.assert_close(output["advantages"], expected, rtol=1e-4, atol=1e-5)
        seen.append(rewards.mean().item())
    trainer.model.eval()
    before = trainer._baseline.average
    trainer._generate_and_score_completions(rows)
    assert trainer._baseline.average == before  # an evaluation teaches it nothing


def test_the_greedy_baseline_is_the_reward_of_the_greedy_completion(tmp_path):
    """The greedy texts are those of an argmax written out here, one prompt at a time."""
    trainer = loo_trainer(tmp_path, baseline="greedy", beta=0.0)
    config, options = trainer.generation_config, dict(trainer.generation_kwargs)
    output = scored(trainer)
    tokenizer, samples = byte_tokenizer(), rewards_of(output)
    texts = tokenizer.batch_decode(output["prompt_ids"], skip_special_tokens=True)
    assert set(texts) <= set(PROMPTS)
    expected = []
    for text, reward in zip(texts, samples, strict=True):
        ids, greedy = tokenizer(text, return_tensors="pt")["input_ids"], []
        for _ in range(12):
            with torch.no_grad():
                greedy.append(
                    int(
                        trainer.model(torch.cat([ids, torch.tensor([greedy], dtype=torch.long)], 1))
                        .logits[0, -1]
                        .argmax()
                    )
                )
            if greedy[-1] == tokenizer.eos_token_id:
                break
        expected.append(reward - letter_share([greedy])[0])
    torch.testing.assert_close(output["advantages"], torch.stack(expected), rtol=1e-4, atol=1e-5)
    assert trainer.generation_config is config and trainer.generation_kwargs == options
    metrics = trainer._metrics["train"]
    assert len(metrics["completions/mean_length"]) == 1 == len(metrics["rewards/letter_share/mean"])
    assert metrics["completions/mean_length"][0] == output["completion_mask"].sum(1).float().mean()


@pytest.mark.parametrize(
    ("invalid_json", "first"), [("penalise", 3.0 - (3.0 - 5.0)), ("drop", 3.0 - (3.0 + 1.0 + 1.0) / 3), ("keep", 0.0)]
)
def test_the_greedy_completion_is_judged_as_the_sampled_ones_are(tmp_path, invalid_json, first):
    """That of the first prompt acts not: its reward of 3 is lowered, or none, and then the batch is compared with."""

    def script(text):
        greedy = trainer.generation_kwargs.get("do_sample") is False
        if "first" in text:
            return "no action 1" if greedy else '{"a": 1}'
        return '{"a": 1}' if greedy else '{"a": 2}'

    def rewards(completions, **_):
        return [3.0 if "1" in completion[0]["content"] else 1.0 for completion in completions]

    trainer = agent(tmp_path, script, rewards, baseline="greedy", invalid_json=invalid_json, invalid_json_penalty=5.0)
    output = scored(trainer)
    prompts = trainer._tokenizer.batch_decode(output["prompt_ids"])
    expected = [first if "first" in prompt else 1.0 - 3.0 for prompt in prompts]
    torch.testing.assert_close(output["advantages"], torch.tensor(expected))


@pytest.mark.parametrize("baseline", ["ema", "greedy"])
def test_one_completion_a_prompt_learns(tmp_path, baseline):
    trainer = loo_trainer(tmp_path, baseline=baseline, num_generations=1, max_steps=6, learning_rate=0.01)
    trainer.train()
    assert trainer.state.global_step == 6 and all(row.get("grad_norm", 1) > 0 for row in trainer.state.log_history)


def test_a_completion_without_a_sibling_is_compared_with_the_batch():
    rewards = torch.tensor([[1.0, NAN, NAN], [2.0, 4.0, NAN], [NAN, NAN, NAN]])
    got = GroupBaseline("loo", 0.9).advantages(rewards, None, training=True)
    torch.testing.assert_close(got, torch.tensor([[1 - 3.0, 0, 0], [-2.0, 2.0, 0], [0, 0, 0]]))
    greedy = torch.tensor([[0.5] * 3, [NAN] * 3, [0.5] * 3])
    got = GroupBaseline("greedy", 0.9).advantages(rewards, greedy, training=True)
    torch.testing.assert_close(got, torch.tensor([[0.5, 0, 0], [2 - 2.5, 4 - 1.5, 0], [0, 0, 0]]))


def test_a_batch_that_nothing_could_score_changes_no_average():
    baseline = GroupBaseline("ema", 0.9)
    nothing = torch.full((3, 1), NAN)
    assert not baseline.advantages(nothing, None, training=True).any() and baseline.average is None
    baseline.advantages(torch.ones(3, 1), None, training=True)
    assert not baseline.advantages(nothing, None, training=True).any() and baseline.average == pytest.approx(1.0)
    other = GroupBaseline("ema", 0.9)
    other.load_state_dict(baseline.state_dict())
    assert other.average == baseline.average


def test_group_normalisation_divides_by_the_deviation_of_the_rewards(tmp_path):
    options = {"beta": 0.0, "trainer": {"rollout_func": fixed_rollouts()}}
    output = scored(loo_trainer(tmp_path, advantage_normalize="group", **options))
    rewards = rewards_of(output).view(4, 4)
    others = (rewards.sum(1, keepdim=True) - rewards) / 3
    expected = (rewards - others) / (rewards.std(1, keepdim=True) + 1e-4)
    torch.testing.assert_close(output["advantages"], expected.flatten(), rtol=1e-4, atol=1e-5)


def two_turns(prompts, trainer):
    """Each completion: three tokens, two of an answer from elsewhere, three tokens; a reward for each turn."""
    ids = trainer._tokenizer(prompts)["input_ids"]
    count = len(prompts)
    return {
        "prompt_ids": ids, "completion_ids": [[97, 98, 99, 48, 49, 100, 101, 102]] * count, "logprobs": None,
        "env_mask": [[1, 1, 1, 0, 0, 1, 1, 1]] * count, "turn_rewards": [[float(i), 10.0 * i] for i in range(count)],
    }  # fmt: skip


def test_rewards_of_turns_are_part_of_the_score(tmp_path):
    trainer = loo_trainer(tmp_path, beta=0.0, trainer={"rollout_func": two_turns})
    output = scored(trainer)
    rewards = torch.tensor([11.0 * i for i in range(16)]).view(4, 4)
    expected = rewards - (rewards.sum(1, keepdim=True) - rewards) / 3
    torch.testing.assert_close(output["advantages"], expected.flatten())
    assert output["tool_mask"][0].tolist() == [1, 1, 1, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("given", [5, ["x", 1.0], "no"])
def test_rewards_of_turns_that_are_no_numbers_are_one_line(tmp_path, given):
    def rollout(prompts, trainer):
        return two_turns(prompts, trainer) | {"turn_rewards": [given] * len(prompts)}

    with pytest.raises(UserError, match="must be a list of numbers"):
        scored(loo_trainer(tmp_path, beta=0.0, trainer={"rollout_func": rollout}))


def test_what_does_not_learn_has_no_say_in_the_scale_of_the_others(tmp_path):
    """Groups of two; rewards 0 and 4, and None twice: the mean is 0 and the deviation that of -4 and 4."""
    trainer = loo_trainer(
        tmp_path, beta=0.0, num_generations=2, advantage_normalize="batch", baseline="loo",
        rewards=lambda completions, **_: [0.0, 4.0, None, None] * 4,
    )  # fmt: skip
    advantages = scored(trainer)["advantages"].view(-1, 4)
    scale = 4.0 / torch.tensor([-4.0, 4.0] * 4).std().item()
    assert advantages[:, :2].tolist() == pytest.approx(torch.tensor([[-scale, scale]] * 4), rel=1e-4)


def test_an_infinite_reward_is_none(tmp_path):
    def rewards(completions, **_):
        return [float("inf") if i == 0 else float(i % 4) for i in range(len(completions))]

    output = scored(loo_trainer(tmp_path, beta=0.0, rewards=rewards))
    assert output["advantages"].isfinite().all() and not output["tool_mask"][0].any()


@pytest.mark.parametrize("steps", ["token", "turn"])
def test_rewards_of_turns_lie_on_their_last_tokens(tmp_path, steps):
    """Values start at zero: with lambda 1 and gamma 0.5 the advantages are discounted sums of what is still to come."""
    trainer = loo_trainer(
        tmp_path, beta=0.0, baseline="value", gae_steps=steps, gamma=0.5, lam=1.0,
        rewards=lambda completions, **_: [4.0] * 16, trainer={"rollout_func": two_turns},
    )  # fmt: skip
    output = scored(trainer)
    for i in (0, 3):
        first, second = float(i), 10.0 * i + 4.0
        if steps == "turn":
            expected = [first + second / 2] * 3 + [0, 0] + [second] * 3
            states = [1, 0, 0, 0, 0, 1, 0, 0]
        else:
            expected = [
                first / 4 + second / 32,
                first / 2 + second / 16,
                first + second / 8,
                0,
                0,
                second / 4,
                second / 2,
                second,
            ]
            states = [1, 1, 1, 0, 0, 1, 1, 1]
        torch.testing.assert_close(output["advantages"][i], torch.tensor(expected))
        assert output["value_mask"][i].tolist() == states


@pytest.mark.parametrize(
    ("kwargs", "trainer", "fix"),
    [
        ({"baseline": "mean", "num_generations": 1}, {}, "set it to 2 or more"),
        ({"baseline": "greedy"}, {"rollout_func": two_turns}, "baseline='loo'"),
        ({"advantage_normalize": "group", "baseline": "value"}, {}, "advantage_normalize='batch'"),
        ({"advantage_normalize": "group", "baseline": "ema", "num_generations": 1}, {}, "num_generations to 2"),
        ({"advantage_normalize": "yes"}, {}, "'none', 'group' or 'batch'"),
        ({"gae_steps": "turn"}, {}, "baseline='value'"),
        ({"baseline": "ema", "ema_decay": 1.5}, {}, "from 0 to 1"),
    ],
)
def test_what_cannot_be_is_one_line_that_names_the_fix(tmp_path, kwargs, trainer, fix):
    with pytest.raises(UserError, match=fix) as error:
        loo_trainer(tmp_path, dataset=prompts(), trainer=trainer, **kwargs)
    assert "\n" not in str(error.value)
