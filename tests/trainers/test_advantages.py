"""The trainers' advantages, recomputed from plain forwards of the policy, the reference and the value function."""

import math

import pytest
import torch
from trainer_builders import (
    advantages_written_out,
    fixed_rollouts,
    letter_share,
    loo_trainer,
    plain_logps,
    plain_values,
    policy,
    ppo_trainer,
    prompts,
    scored,
    scorer,
    weights,
)
from trl import GRPOConfig, GRPOTrainer


def moved_reference():
    """Another policy, so that the KL is not zero."""
    return {"ref_model": policy(seed=5), "rollout_func": fixed_rollouts(eos_every=3)}


def kl_of(trainer, output, estimator):
    policy_logps, reference = (plain_logps(m, output) for m in (trainer.model, trainer.ref_model))
    log_ratio = policy_logps - reference
    return {"k1": log_ratio, "k2": log_ratio**2 / 2, "k3": (-log_ratio).exp() - 1 + log_ratio}[estimator]


def sampled(output):
    return [ids[mask.bool()] for ids, mask in zip(output["completion_ids"], output["completion_mask"], strict=True)]


def last_metrics(trainer):
    return {k: v[-1] for k, v in trainer._metrics["train"].items()}


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_loo_advantages_are_leave_one_out_of_reward_minus_beta_times_sequence_kl(tmp_path, estimator):
    trainer = loo_trainer(tmp_path, beta=0.05, kl_estimator=estimator, trainer=moved_reference())
    output = scored(trainer)
    kl = kl_of(trainer, output, estimator)
    rewards = (torch.tensor(letter_share(sampled(output))) - 0.05 * kl.sum(1)).view(-1, 4)
    expected = torch.stack([rewards[:, i] - rewards[:, [j for j in range(4) if j != i]].mean(1) for i in range(4)], 1)
    torch.testing.assert_close(output["advantages"], expected.flatten(), rtol=1e-4, atol=1e-5)
    assert kl.sum(1).abs().min() > 1e-3 and kl.sum(1).std() > 0.01
    assert "ref_per_token_logps" not in output and trainer.beta == 0.0


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_kl_and_reward_metrics_are_means_over_tokens_and_completions(tmp_path, estimator):
    trainer = loo_trainer(tmp_path, beta=0.05, kl_estimator=estimator, trainer=moved_reference())
    output = scored(trainer)
    kl, logps = kl_of(trainer, output, estimator), plain_logps(trainer.model, output)
    scores, metrics = torch.tensor(letter_share(sampled(output))), last_metrics(trainer)
    assert metrics["kl"] == pytest.approx((kl.sum() / output["completion_mask"].sum()).item(), abs=1e-5)
    assert metrics["objective/kl"] == pytest.approx(kl.sum(1).mean().item(), rel=1e-4)
    assert metrics["objective/non_score_reward"] == pytest.approx(-0.05 * kl.sum(1).mean().item(), rel=1e-4)
    assert metrics["objective/scores"] == pytest.approx(scores.mean().item(), abs=1e-6) == metrics["reward"]
    assert metrics["objective/rlhf_reward"] == pytest.approx(
        metrics["objective/scores"] + metrics["objective/non_score_reward"], abs=1e-6
    )
    assert metrics["objective/entropy"] == pytest.approx(-logps.sum(1).mean().item(), rel=1e-4)
    assert (
        metrics["val/num_eos_tokens"]
        == sum(trainer._tokenizer.eos_token_id in ids.tolist() for ids in sampled(output))
        > 0
    )
    assert metrics["advantages/mean"] == pytest.approx(0, abs=1e-6)
    assert metrics["advantages/std"] == pytest.approx(output["advantages"].std().item(), rel=1e-4)


def whitened(rewards, rows, shift_mean):
    """Rows of different lengths to mean 0 (or their own) and unbiased variance 1 over all their entries."""
    entries = torch.cat([r[:n] for r, n in zip(rewards, rows, strict=True)]).double()
    mean, std = entries.mean(), (entries.var() + 1e-8).sqrt()
    return [((r.double() - mean) / std + (0 if shift_mean else mean)).float() for r in rewards]


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("value_model", [False, True], ids=["head", "value-model"])
def test_value_advantages_are_gae_of_the_token_penalties_and_the_score_on_the_last_token(tmp_path, value_model, whiten):
    extra = {"value_model": scorer(3)} if value_model else {}
    trainer = loo_trainer(
        tmp_path, beta=0.05, baseline="value", num_generations=1, gamma=0.95, lam=0.9, whiten_rewards=whiten,
        trainer=moved_reference() | extra,
    )  # fmt: skip
    if not value_model:
        torch.nn.init.normal_(trainer.model.value_function.head.weight, std=0.3)
    output = scored(trainer)
    kl, values = kl_of(trainer, output, "k1"), plain_values(trainer, output)
    lengths, rewards = output["completion_mask"].sum(1).tolist(), []
    for row, ids in enumerate(sampled(output)):
        rewards.append(-0.05 * kl[row, : lengths[row]])
        rewards[-1][-1] += letter_share([ids])[0]
    if whiten:
        rewards = whitened(rewards, lengths, shift_mean=False)
    for row, n in enumerate(lengths):
        v = values[row][:n]
        expected = advantages_written_out(rewards[row].tolist(), v.tolist(), 0.95, 0.9)
        torch.testing.assert_close(output["advantages"][row, :n], expected, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(output["returns"][row, :n], expected + v, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(output["old_values"][row, :n], v, rtol=1e-3, atol=1e-4)
        assert not output["advantages"][row, n:].any()
    assert max(v.std() for v in values) > 0.05
    returns, states = (
        torch.cat([x[r, :n] for r, n in enumerate(lengths)]) for x in (output["returns"], output["old_values"])
    )
    metrics = last_metrics(trainer)
    assert metrics["value/explained_variance"] == pytest.approx(
        (1 - (returns - states).var() / returns.var()).item(), abs=1e-4
    )
    assert metrics["value/mean"] == pytest.approx(states.mean().item(), abs=1e-5)


@pytest.mark.parametrize("whiten", [False, True])
def test_ppo_puts_the_score_on_the_state_after_the_last_token_where_the_row_has_one(tmp_path, whiten):
    """As stock PPO: that state has a value and a return, and the log-probabilities there get no advantage."""
    trainer = ppo_trainer(
        tmp_path, per_device_train_batch_size=16, gradient_accumulation_steps=1, kl_coef=0.05, gamma=0.95, lam=0.9,
        whiten_rewards=whiten, missing_eos_penalty=0.7, num_ppo_epochs=1, advantage_normalize="none",
        trainer={"rollout_func": fixed_rollouts(eos_every=3)},
    )  # fmt: skip
    trainer.ref_model.load_state_dict(policy(seed=5).state_dict())
    torch.nn.init.normal_(trainer.model.value_function.head.weight, std=0.3)
    output = scored(trainer)
    kl, values, width = kl_of(trainer, output, "k1"), plain_values(trainer, output), output["completion_ids"].size(1)
    lengths, rewards = output["completion_mask"].sum(1).tolist(), []
    assert 0 < sum(n == width for n in lengths) < 16
    states = [min(n + 1, width) for n in lengths]
    for row, ids in enumerate(sampled(output)):
        rewards.append(torch.nn.functional.pad(-0.05 * kl[row, : lengths[row]], (0, states[row] - lengths[row])))
        rewards[-1][-1] += letter_share([ids])[0] - 0.7 * (row % 3 != 0)
    if whiten:
        rewards = whitened(rewards, states, shift_mean=False)
    for row, (n, s) in enumerate(zip(lengths, states, strict=True)):
        v = values[row][:s]
        expected = advantages_written_out(rewards[row].tolist(), v.tolist(), 0.95, 0.9)
        torch.testing.assert_close(output["advantages"][row, :n], expected[:n], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(output["returns"][row, :s], expected + v, rtol=1e-3, atol=1e-4)
        assert not output["advantages"][row, n:].any() and output["value_mask"][row].tolist() == [1] * s + [0] * (
            width - s
        )


def test_normalised_advantages_have_mean_0_and_std_1_over_the_tokens_that_learn(tmp_path):
    trainer = loo_trainer(
        tmp_path, baseline="value", advantage_normalize="batch", trainer={"rollout_func": fixed_rollouts()}
    )
    output = scored(trainer)
    kept = output["advantages"][output["completion_mask"].bool()]
    assert kept.mean().item() == pytest.approx(0, abs=1e-6) and kept.std().item() == pytest.approx(1, abs=1e-4)
    assert not output["advantages"][~output["completion_mask"].bool()].any()
    output = scored(loo_trainer(tmp_path, advantage_normalize="batch"))
    assert output["advantages"].std().item() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("baseline", ["loo", "value"])
@pytest.mark.parametrize("unscorable", [None, math.nan])
def test_unscorable_completions_do_not_learn(tmp_path, baseline, unscorable):
    def every_fourth_unscorable(completion_ids, **_):
        return [unscorable if i % 4 == 0 else float(i) for i in range(len(completion_ids))]

    trainer = loo_trainer(tmp_path, rewards=every_fourth_unscorable, baseline=baseline, beta=0.1)
    output = scored(trainer)
    advantages = output["advantages"].view(16, -1).sum(1)
    assert not advantages[::4].any() and not advantages.isnan().any() and advantages[1:4].any()
    assert not output["tool_mask"][::4].any() and output["tool_mask"][1::4].any(1).all()
    assert last_metrics(trainer)["objective/scores"] == pytest.approx(sum(i for i in range(16) if i % 4) / 12)
    kept = output["completion_mask"] * (torch.arange(16) % 4 != 0)[:, None]
    assert output["num_items_in_batch"] == kept.sum()


def test_unscorable_completions_leave_the_baseline_of_their_group(tmp_path):
    def first_unscorable(completion_ids, **_):
        return [None if i % 4 == 0 else float(i) for i in range(len(completion_ids))]

    output = scored(loo_trainer(tmp_path, rewards=first_unscorable, beta=0.0))
    torch.testing.assert_close(output["advantages"], torch.tensor([0.0, -1.5, 0.0, 1.5] * 4))


def test_several_reward_functions_are_weighted_and_one_that_gives_none_counts_nothing(tmp_path):
    def position(completion_ids, **_):
        return [float(i) for i in range(len(completion_ids))]

    def odd_only(completion_ids, **_):
        return [10.0 if i % 2 else None for i in range(len(completion_ids))]

    trainer = loo_trainer(tmp_path, rewards=[position, odd_only], reward_weights=[2.0, 0.1], beta=0.0)
    rewards = torch.tensor([2.0 * i + (1.0 if i % 2 else 0.0) for i in range(16)]).view(4, 4)
    expected = rewards - (rewards.sum(1, keepdim=True) - rewards) / 3
    torch.testing.assert_close(scored(trainer)["advantages"], expected.flatten())


def test_evaluation_with_one_completion_a_prompt_has_no_advantage(tmp_path):
    trainer = loo_trainer(
        tmp_path, num_generations_eval=1, per_device_eval_batch_size=4, beta=0.1,
        trainer={"eval_dataset": prompts(1), "rollout_func": fixed_rollouts()},
    )  # fmt: skip
    metrics = trainer.evaluate()
    assert math.isfinite(metrics["eval_reward"]) and metrics["eval_objective/kl"] == pytest.approx(0, abs=1e-5)
    assert metrics["eval_advantages/std"] == 0.0


def test_a_dataset_order_of_groups_gives_each_prompt_its_own_baseline(tmp_path):
    """Rewards that differ between prompts alone leave no advantage."""

    def by_prompt(prompts, **_):
        return [float(len(p)) for p in prompts]

    output = scored(loo_trainer(tmp_path, rewards=by_prompt, beta=0.0))
    torch.testing.assert_close(output["advantages"], torch.zeros(16), rtol=0, atol=1e-5)


def test_with_the_kl_in_the_loss_it_is_the_term_of_grpo(tmp_path):
    """kl_in_reward=False: what beta adds to the loss is what it adds to GRPO's."""
    losses = {}
    for name in ("ours", "grpo"):
        for beta in (0.0, 0.2):
            common = {"beta": beta, "scale_rewards": "none", "loss_type": "dr_grpo"}
            rollout = {"rollout_func": fixed_rollouts()}
            if name == "ours":
                trainer = loo_trainer(tmp_path, kl_in_reward=False, kl_estimator="k3", trainer=rollout, **common)
            else:
                torch.manual_seed(0)
                model = policy()
                path = tmp_path / "policy"
                model.save_pretrained(path)  # GRPO loads its reference by name
                model = type(model).from_pretrained(path)
                trainer = loo_trainer(tmp_path, GRPOTrainer, model, trainer=rollout, config=GRPOConfig, **common)
            output = scored(trainer)
            if beta:
                trainer.ref_model.load_state_dict(policy(seed=5).state_dict())
                output = scored(trainer)
                assert "ref_per_token_logps" in output
            trainer.current_gradient_accumulation_steps = 1
            losses[name, beta] = trainer._compute_loss(trainer.model, output).item()
    ours, theirs = (losses[name, 0.2] - losses[name, 0.0] for name in ("ours", "grpo"))
    assert ours == pytest.approx(theirs, rel=1e-3) and abs(ours) > 1e-4


def test_scoring_changes_no_weight(tmp_path):
    trainer = loo_trainer(tmp_path, baseline="value", beta=0.1)
    before = weights(trainer.model)
    scored(trainer)
    assert all(torch.equal(v, before[k]) for k, v in weights(trainer.model).items())
