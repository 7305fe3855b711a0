"""Equivalent runs follow one trajectory: stock GRPO, the same seed, a checkpoint and its resumption."""

import warnings

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file
from trainer_builders import SGD, log_rows, loo_trainer, policy, ppo_trainer, prompts, scorer, weights
from trl import GRPOConfig, GRPOTrainer

from trl_ext.callbacks import BestCheckpointCallback
from trl_ext.tiny import random_policy


def test_loo_is_stock_grpo_with_g_over_g_minus_1_times_the_learning_rate(tmp_path):
    options = SGD | {"max_steps": 6, "beta": 0.0, "loss_type": "dr_grpo", "scale_rewards": "none"}
    # one trains before the other is built: the constructor sets the seed, sampling draws from the global generator
    ours = loo_trainer(tmp_path, **options | {"learning_rate": 3.0})
    before = weights(ours.model)
    ours.train()
    stock = loo_trainer(tmp_path, GRPOTrainer, config=GRPOConfig, **options | {"learning_rate": 3.0 * 4 / 3})
    stock.train()
    moved = max((weights(ours.model)[k] - before[k]).abs().max() for k in before)
    apart = max((weights(ours.model)[k] - weights(stock.model)[k]).abs().max() for k in before)
    assert moved > 1e-2 and apart < 1e-4 * moved
    for a, b in zip(ours.state.log_history[:-1], stock.state.log_history[:-1], strict=True):
        assert a["reward"] == b["reward"] and a["loss"] == pytest.approx(4 / 3 * b["loss"], abs=1e-6)
        assert a["grad_norm"] == pytest.approx(4 / 3 * b["grad_norm"], rel=1e-3)


RUNS = {
    "loo": (loo_trainer, {"beta": 0.1}),
    "value": (loo_trainer, {"beta": 0.1, "baseline": "value", "entropy_coef": 0.01}),
    "value-model": (loo_trainer, {"beta": 0.1, "baseline": "value", "num_generations": 1}),
    "lora-value": (loo_trainer, {"beta": 0.1, "baseline": "value", "learning_rate": 0.03}),
    "mean, normalised by group": (loo_trainer, {"baseline": "mean", "advantage_normalize": "group"}),
    "ema, target of the KL": (
        loo_trainer, {"baseline": "ema", "num_generations": 1, "kl_target": 0.1, "kl_horizon": 50},
    ),
    "greedy, normalised by batch": (
        loo_trainer, {"baseline": "greedy", "num_generations": 1, "advantage_normalize": "batch"},
    ),
    "turns": (loo_trainer, {"baseline": "value", "gae_steps": "turn", "whiten_rewards": True, "gamma": 0.9}),
    "KL in the loss, entropy decays": (
        loo_trainer, {"kl_in_reward": False, "kl_estimator": "k2", "entropy_coef": 0.1, "entropy_decay": 0.5},
    ),
    "periodic": (loo_trainer, {"reference": "periodic", "ref_update_interval": 3}),
    "actions": (loo_trainer, {"invalid_json": "penalise", "mask": "json_actions"}),
    "ppo": (ppo_trainer, {"total_episodes": 16 * 4, "num_ppo_epochs": 2, "num_mini_batches": 2}),
    "ppo-cut-batch": (
        ppo_trainer,
        {"total_episodes": 16 * 4, "num_ppo_epochs": 2, "num_mini_batches": 2, "per_device_train_batch_size": 16,
         "gradient_accumulation_steps": 1},
    ),
}  # fmt: skip


def build(name, tmp_path, **kwargs):
    function, options = RUNS[name]
    extra = {"value_model": scorer(3)} if name == "value-model" else {}
    if "lora" in name:
        extra["peft_config"] = LoraConfig(r=4, target_modules="all-linear")
    return function(tmp_path, trainer=extra, **{"dataset": prompts(8), **options, **kwargs})


@pytest.mark.parametrize("name", ["loo", "value", "ppo"])
def test_same_seed_gives_identical_logs_and_another_seed_does_not(tmp_path, name):
    def logs(seed):
        trainer = build(name, tmp_path, seed=seed)
        trainer.train()
        return log_rows(trainer)

    first = logs(1)
    assert first == logs(1) and first != logs(2)


@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path, name):
    """Both count `save_steps` in updates; PPO has several optimizer steps in one."""
    saving = {"save_strategy": "steps", "save_steps": 2}
    uninterrupted = build(name, tmp_path, **saving)
    uninterrupted.train()
    half = uninterrupted.state.global_step // 2
    folders = {int(p.name.split("-")[1]) for p in tmp_path.glob("checkpoint-*")}
    assert folders == {half, 2 * half}
    resumed = build(name, tmp_path / "resumed", **saving)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{half}"))
    assert log_rows(uninterrupted)[:-1] == log_rows(resumed)[:-1]
    assert len({row["step"] for row in log_rows(resumed)[:-1]}) == 4
    got = weights(resumed.model)
    for key, value in weights(uninterrupted.model).items():
        assert torch.equal(value, got[key]), key


@pytest.mark.parametrize("name", ["value", "ppo"])
def test_a_run_resumed_in_its_second_pass_over_the_data_equals_the_uninterrupted_one(tmp_path, name):
    """TRL's sampler draws each pass's order from one generator, whose state is in no checkpoint."""
    saving = {"save_strategy": "steps", "save_steps": 3, "dataset": prompts(4), "num_generations": 1}
    uninterrupted = build(name, tmp_path, **saving)  # 16 of 32 prompts an update: the third is in the second pass
    uninterrupted.train()
    resumed = build(name, tmp_path / "resumed", **saving)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{uninterrupted.state.global_step // 4 * 3}"))
    assert log_rows(uninterrupted)[:-1] == log_rows(resumed)[:-1]


@pytest.mark.parametrize("name", ["value", "value-model", "lora-value", "ppo"])
def test_the_value_function_lies_beside_a_policy_that_loads_by_itself(tmp_path, name):
    trainer = build(name, tmp_path, save_strategy="steps", save_steps=4)
    trainer.train()
    folder = tmp_path / f"checkpoint-{trainer.state.global_step}"
    saved = load_file(folder / "value_function.safetensors")
    expected = {k.split("value_function.")[1]: v for k, v in weights(trainer.model).items() if "value_function." in k}
    assert set(saved) == set(expected) and all(torch.equal(v, saved[k]) for k, v in expected.items())
    assert saved.get("head.weight", saved.get("value_model.score.weight")).any()
    if "lora" in name:
        assert not any("value_function" in k for k in load_file(folder / "adapter_model.safetensors"))
    else:
        loaded, info = type(policy()).from_pretrained(folder, output_loading_info=True)
        assert not info["unexpected_keys"] and not info["missing_keys"]
        assert all(torch.equal(v, weights(trainer.model)[k]) for k, v in weights(loaded).items())


def test_loo_saves_no_value_function(tmp_path):
    trainer = build("loo", tmp_path, save_strategy="steps", save_steps=4)
    trainer.train()
    assert not (tmp_path / "checkpoint-4" / "value_function.safetensors").exists()


def mean(values):
    return sum(values) / len(values)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (loo_trainer, {"max_steps": 30}),
        (loo_trainer, {"max_steps": 30, "baseline": "value", "num_generations": 1}),
        (ppo_trainer, {"total_episodes": 32 * 15, "gradient_accumulation_steps": 1, "num_ppo_epochs": 2}),
    ],
    ids=["loo", "value", "ppo"],
)
def test_the_reward_rises(tmp_path, function, options):
    coefficient = "kl_coef" if function is ppo_trainer else "beta"
    options = {"per_device_train_batch_size": 32, "learning_rate": 3e-2, coefficient: 0.01, **options}
    trainer = function(tmp_path, model=random_policy(0), **options)
    trainer.train()
    rewards = [row["reward"] for row in trainer.state.log_history if "reward" in row]
    assert mean(rewards[:3]) < 0.2 and mean(rewards[-3:]) > 0.5


def test_saving_in_the_middle_of_a_generation_is_told(tmp_path):
    """TRL keeps the rollouts that are still to be learned from in no checkpoint: a resumed run generates anew."""
    with pytest.warns(UserWarning, match="Set save_steps to a multiple of 2"):
        loo_trainer(tmp_path, num_iterations=2, save_strategy="steps", save_steps=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        loo_trainer(tmp_path, num_iterations=2, save_strategy="steps", save_steps=4)


def test_the_best_model_has_its_own_value_function(tmp_path):
    best = BestCheckpointCallback("reward", greater_is_better=False, patience=2)
    trainer = loo_trainer(tmp_path, baseline="value", beta=0.0, max_steps=6, trainer={"callbacks": [best]})
    trainer.train()
    saved = load_file(f"{best.best['checkpoint']}/value_function.safetensors")
    kept = trainer._value_function.state_dict()
    assert best.best["step"] < trainer.state.global_step
    assert all(torch.equal(kept[name], value) for name, value in saved.items())
