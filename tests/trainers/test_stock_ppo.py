"""Our PPO against the PPO that TRL shipped until 1.12: the same rollouts, values and settings give the same numbers.

Stock's tensors are taken from the module-level functions that its `train` calls.
"""

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from trainer_builders import PROMPTS, SGD, policy, ppo_args, scorer, weights
from transformers import PrinterCallback

from trl_ext.tiny import byte_tokenizer
from trl_ext.trainers import PPOTrainer

pytestmark = pytest.mark.stock_ppo

LENGTH, BATCH, UPDATES = 8, 8, 2
CASES = {
    "defaults": {},
    "two-epochs": {"num_ppo_epochs": 2},
    "k3-gamma-lam": {"kl_estimator": "k3", "gamma": 0.9, "lam": 0.7, "num_ppo_epochs": 2},
    "missing-eos": {"missing_eos_penalty": 1.5},
    "whiten": {"whiten_rewards": True, "missing_eos_penalty": 1.0, "kl_coef": 0.3},
    "accumulation": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_ppo_epochs": 2},
    "mini-batches": {"num_mini_batches": 2, "num_ppo_epochs": 2},
    "tight-clips": {"cliprange": 0.02, "cliprange_value": 0.05, "num_ppo_epochs": 3, "vf_coef": 0.5},
    "temperature": {"temperature": 0.6},
}
FULL_ROWS = {"defaults", "two-epochs", "whiten"}  # also with completions that all fill the row


def completions(update, full):
    """(BATCH, LENGTH) tokens: EOS at different places, or nowhere; padding after it, as `generate` leaves it."""
    tokenizer = byte_tokenizer()
    ids = torch.randint(0, 256, (BATCH, LENGTH), generator=torch.Generator().manual_seed(update))
    if not full:
        for row in range(0, BATCH, 2):
            end = (2 * row + update) % LENGTH
            ids[row, end], ids[row, end + 1 :] = tokenizer.eos_token_id, tokenizer.pad_token_id
    return ids


def tokenised():
    rows = byte_tokenizer()(PROMPTS * UPDATES, padding=True)["input_ids"]
    return Dataset.from_dict({"input_ids": rows})


def options(overrides):
    return {
        "per_device_train_batch_size": BATCH, "gradient_accumulation_steps": 1, "num_ppo_epochs": 1, "kl_coef": 0.1,
        "vf_coef": 0.1, "response_length": LENGTH, "stop_token": "eos", "temperature": 1.0, "learning_rate": 0.3,
        "total_episodes": BATCH * UPDATES, "num_sample_generations": 0, "logging_steps": 1, **SGD, **overrides,
    }  # fmt: skip


def models():
    """(policy, reference, reward model, value model), the same each time."""
    return policy(0), policy(5), scorer(1), scorer(3)


def run_stock(tmp_path, monkeypatch, overrides, full):
    import trl.experimental.ppo.ppo_trainer as module
    from trl.experimental.ppo import PPOConfig

    seen = {"whitened": [], "values": [], "steps": 0}
    model, reference, reward_model, value_model = models()
    args = PPOConfig(
        output_dir=str(tmp_path), report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False,
        disable_tqdm=True, save_strategy="no", **options(overrides),
    )  # fmt: skip

    def fixed_generation(model, queries, batch_size, pad_token_id, generation_config):
        """The rollouts, and the scores `generate` would return: plain logits at the sampling temperature."""
        responses = completions(len(seen["values"]), full)
        both = torch.cat([queries, responses], 1)
        logits = module.forward(model, both, pad_token_id).logits[:, queries.size(1) - 1 : -1]
        return both, logits / generation_config.temperature

    stock_whiten, stock_reward = module.masked_whiten, module.get_reward

    def whiten(values, mask, shift_mean=True):
        seen["whitened"].append((values.clone(), mask.clone(), stock_whiten(values, mask, shift_mean)))
        return seen["whitened"][-1][2].clone()

    def reward(model, query_responses, pad_token_id, context_length):
        result = stock_reward(model, query_responses, pad_token_id, context_length)
        if model is value_model:
            seen["values"].append(result[0][:, context_length - 1 : -1].squeeze(-1))
        return result

    monkeypatch.setattr(module, "batch_generation", fixed_generation)
    monkeypatch.setattr(module, "masked_whiten", whiten)
    monkeypatch.setattr(module, "get_reward", reward)
    monkeypatch.setattr(np.random, "permutation", np.arange)
    data = tokenised()
    trainer = module.PPOTrainer(
        args, byte_tokenizer(), model, reference, reward_model, data, value_model, eval_dataset=data
    )
    trainer.remove_callback(PrinterCallback)
    trainer.dataloader = DataLoader(data, batch_size=BATCH, collate_fn=trainer.data_collator)  # in order
    optimizer = trainer.optimizer.optimizer
    optimizer.register_step_post_hook(lambda *_: seen.update(steps=seen["steps"] + 1))
    trainer.train()
    return trainer, seen


def run_ours(tmp_path, monkeypatch, overrides, full):
    import trl.trainer.grpo_trainer as module

    monkeypatch.setattr(module, "shuffle_sequence_dict", lambda batch: batch)
    model, reference, reward_model, value_model = models()
    seen = {"advantages": [], "outputs": []}

    def rollout(prompts, trainer):
        rows, pad = completions(len(seen["outputs"]), full).tolist(), trainer._tokenizer.pad_token_id
        return {
            "prompt_ids": trainer._tokenizer(prompts)["input_ids"],
            "completion_ids": [[i for i in row if i != pad] for row in rows],
            "logprobs": None,
        }

    class Recording(PPOTrainer):
        def _finish_advantages(self, advantages, mask, mode):
            seen["advantages"].append(advantages.clone())
            return super()._finish_advantages(advantages, mask, mode)

        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            seen["outputs"].append(dict(output))
            return output

    args = ppo_args(tmp_path, shuffle_dataset=False, **options(overrides))
    trainer = Recording(
        args, byte_tokenizer(), model, reference, reward_model, tokenised(), value_model, rollout_func=rollout
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer, seen


def widened(x):
    return torch.nn.functional.pad(x.float(), (0, LENGTH - x.size(1)))


def close(ours, stock):
    torch.testing.assert_close(ours, stock, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("case", "full"), [*((case, False) for case in CASES), *((case, True) for case in sorted(FULL_ROWS))]
)
def test_same_rollouts_give_the_same_numbers(tmp_path, monkeypatch, case, full):
    with monkeypatch.context() as patch:
        stock, theirs = run_stock(tmp_path / "stock", patch, CASES[case], full)
    with monkeypatch.context() as patch:
        ours, mine = run_ours(tmp_path / "ours", patch, CASES[case], full)
    whiten = CASES[case].get("whiten_rewards", False)
    assert len(theirs["whitened"]) == UPDATES * (1 + whiten) and len(mine["outputs"]) == UPDATES
    for update in range(UPDATES):
        raw, learns, normalised = theirs["whitened"][update * (1 + whiten) + whiten]
        output = mine["outputs"][update]
        value_mask = widened(output["value_mask"]).bool()
        assert torch.equal(widened(output["completion_mask"]).bool(), learns)
        assert full == bool(learns.all())
        if whiten:
            assert torch.equal(value_mask, theirs["whitened"][update * 2][1])
        values = theirs["values"][update] * value_mask
        assert values.std() > 0.05
        close(widened(output["old_values"]), values)
        close(widened(mine["advantages"][update]), raw * learns)
        close(widened(output["returns"]), (raw + values) * value_mask)
        close(widened(output["advantages"]), normalised * learns)

    ours_logs = [row for row in ours.state.log_history if "objective/kl" in row]
    stock_logs = [row for row in stock.state.log_history if "objective/kl" in row]
    assert len(ours_logs) == len(stock_logs) == UPDATES
    same = ["objective/kl", "objective/entropy", "objective/non_score_reward", "objective/rlhf_reward",
            "objective/scores", "loss/policy_avg", "loss/value_avg", "val/num_eos_tokens", "lr", "episode"]  # fmt: skip
    over_all_positions = ["policy/approxkl_avg", "policy/entropy_avg", "val/ratio"]  # stock counts the padding too
    of_tokens = ["policy/clipfrac_avg", "val/clipfrac_avg"]
    for a, b in zip(ours_logs, stock_logs, strict=True):
        keys = same + (over_all_positions if full else []) + of_tokens
        assert {k: a[k] for k in keys} == pytest.approx({k: b[k] for k in keys}, rel=1e-3, abs=2e-5)
        assert abs(a["objective/kl"]) > 1e-3

    got = weights(ours.model)
    for prefix, start, end in (
        ("", policy(0), stock.model.policy),
        ("value_function.value_model.", scorer(3), stock.model.value_model),
    ):
        before, after = weights(start), weights(end)
        moved = max((after[k] - before[k]).abs().max().item() for k in before)
        apart = max((after[k] - got[prefix + k]).abs().max().item() for k in before)
        assert moved > 1e-3 and apart < 1e-3 * moved


def test_mini_batches_of_whole_micro_batches_are_optimizer_steps_here_and_were_not_in_stock(tmp_path, monkeypatch):
    """Accelerate counts `gradient_accumulation_steps` micro-batches, whatever `num_mini_batches` says."""
    case = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "num_mini_batches": 2}
    with monkeypatch.context() as patch:
        _, theirs = run_stock(tmp_path / "stock", patch, case, False)
    with monkeypatch.context() as patch:
        ours, _ = run_ours(tmp_path / "ours", patch, case, False)
    assert (theirs["steps"], ours.state.global_step) == (UPDATES, 2 * UPDATES)
