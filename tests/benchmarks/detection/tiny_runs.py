"""Real trainers, small enough for a minute on one thread: the embedded policy, 60 logs, a monitor in `callbacks`.

`build(setting, folder, callbacks)` makes a healthy trainer of `setting.trainer`; what a setting overrides is how
`faults.py` injects a fault. `recording.py` trains it.
"""

import gc
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback, set_seed

import trl_ext
from trl_ext import tiny
from trl_ext.data import load_reviews, review_prompts
from trl_ext.rewards.repetition import RepetitionReward
from trl_ext.rewards.sentiment import SentimentReward

STEPS = 60
TOKENS = 24
COMMON: dict[str, Any] = {
    "report_to": "none", "use_cpu": True, "bf16": False, "save_strategy": "no", "logging_steps": 1,
    "disable_tqdm": True, "gradient_checkpointing": False, "log_level": "error",
}  # fmt: skip
ONLINE: dict[str, Any] = {
    "per_device_train_batch_size": 32,
    "learning_rate": 3e-4,
    "lr_scheduler_type": "linear",
    "temperature": 1.0,
}
GROUPS = {**ONLINE, "num_generations": 4, "max_completion_length": TOKENS, "max_steps": STEPS, "beta": 0.05}
PPO = {
    **ONLINE, "num_ppo_epochs": 2, "num_mini_batches": 1, "response_length": TOKENS, "kl_coef": 0.05,
    "stop_token": "eos", "vf_coef": 1.0, "total_episodes": 32 * STEPS, "num_sample_generations": 0,
}  # fmt: skip
OFFLINE: dict[str, Any] = {"per_device_train_batch_size": 16, "max_steps": STEPS, "warmup_steps": 5}
DEFAULTS: dict[str, dict[str, Any]] = {
    "grpo": GROUPS,
    "reinforce_loo": GROUPS,
    "ppo": PPO,
    "stock_ppo": {**PPO, "local_rollout_forward_batch_size": 64},
    "dpo": {**OFFLINE, "learning_rate": 1e-4, "beta": 0.1, "max_length": 96},
    "sft": {**OFFLINE, "learning_rate": 1e-3, "max_length": 96},
    "reward": {**OFFLINE, "learning_rate": 1e-4, "max_length": 96},
}


@dataclass(frozen=True)
class Setting:
    """A healthy run of `trainer`; every other field changes it.

    Attributes:
        options: of the trainer's config.
        reward: `(texts, token ids, number of the call from 0) -> rewards`; sentiment by default.
        held_back: a second reward of weight 0 that sees what the first one does not.
        model, tokenizer, data, trainer_change: `x -> x`, called before the trainer is built, the last one after.
        resume: run half, then go on from its checkpoint with `data` and `options` as they are (healthy before).
    """

    trainer: str
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    reward: Callable[[list[str], list, int], list[float]] | None = None
    held_back: bool = False
    model: Callable = lambda x: x
    tokenizer: Callable = lambda x: x
    data: Callable = lambda x: x
    trainer_change: Callable = lambda x: x
    resume: bool = False


def sentiment(texts: list[str], ids: list, call: int) -> list[float]:
    return SentimentReward()(prompts=texts, completions=list(texts))


def build(setting: Setting, folder: str, callbacks: list[TrainerCallback]) -> Any:
    set_seed(setting.seed)
    kind = setting.trainer
    options = {**COMMON, **DEFAULTS[kind], "seed": setting.seed, "output_dir": folder, **setting.options}
    tokenizer = setting.tokenizer(tiny.load_tokenizer())
    if kind in ("sft", "dpo", "reward"):
        trainer = _offline(kind, setting, options, tokenizer, callbacks)
    else:
        trainer = _online(kind, setting, options, tokenizer, callbacks)
    trainer.remove_callback(PrinterCallback)
    return setting.trainer_change(trainer)


def _offline(kind: str, setting: Setting, options: dict, tokenizer: Any, callbacks: list) -> Any:
    from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer

    common = {"processing_class": tokenizer, "callbacks": callbacks}
    if kind == "sft":  # from scratch, so that there is something to learn
        model = setting.model(tiny.new_policy(tiny.PolicyShape(hidden_size=64, intermediate_size=192), tokenizer))
        data = setting.data(load_reviews().select_columns(["text"]).shuffle(seed=setting.seed).select(range(640)))
        return SFTTrainer(model, SFTConfig(**options), train_dataset=data, **common)
    data = setting.data(preference_pairs(setting.seed))
    if kind == "dpo":
        return DPOTrainer(setting.model(tiny.load_policy()), args=DPOConfig(**options), train_dataset=data, **common)
    from transformers import AutoModelForSequenceClassification

    scorer = AutoModelForSequenceClassification.from_pretrained(tiny.PATH, num_labels=1, dtype=torch.float32)
    return RewardTrainer(setting.model(scorer), RewardConfig(**options), train_dataset=data, **common)


def _online(kind: str, setting: Setting, options: dict, tokenizer: Any, callbacks: list) -> Any:
    prompts = setting.data(review_prompts().shuffle(seed=setting.seed).select(range(256)))
    model = setting.model(tiny.load_policy())
    rewards, weights = [named_reward(setting.reward or sentiment)], None
    if setting.held_back:
        rewards.append(RepetitionReward())
        weights = [1.0, 0.0]
    if kind == "ppo":
        args = trl_ext.PPOConfig(**options, reward_weights=weights)
        return trl_ext.PPOTrainer(
            args, tokenizer, model, reward_funcs=rewards, train_dataset=prompts, callbacks=callbacks
        )
    if kind == "stock_ppo":
        return _stock_ppo(model, options, tokenizer, prompts, rewards, weights, callbacks)
    from trl import GRPOConfig, GRPOTrainer

    ours = kind == "reinforce_loo"
    config, trainer = (trl_ext.ReinforceLOOConfig, trl_ext.ReinforceLOOTrainer) if ours else (GRPOConfig, GRPOTrainer)
    args = config(**options, reward_weights=weights)
    return trainer(model, rewards, args, train_dataset=prompts, processing_class=tokenizer, callbacks=callbacks)


def _stock_ppo(
    model: Any, options: dict, tokenizer: Any, prompts: Dataset, rewards: list, weights: Any, callbacks: list
) -> Any:
    """Prompts are padded by the trainer's own collator, on the tokenizer's side, as in TRL's example."""
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    from trl_ext.compat import value_model_of
    from trl_ext.rewards.stock import as_reward_model

    gc.freeze()  # the trainer collects garbage between mini-batches: not over all that was imported
    data = Dataset.from_dict({"input_ids": tokenizer(list(prompts["prompt"]))["input_ids"]})
    scorer = as_reward_model(rewards, tokenizer, reward_weights=weights)
    return PPOTrainer(
        PPOConfig(**options), tokenizer, model, None, scorer, data, value_model_of(model),
        eval_dataset=data.select(range(8)), callbacks=callbacks,
    )  # fmt: skip


def named_reward(function: Callable) -> Callable:
    """TRL's signature, and a count of the calls."""
    calls = iter(range(10**9))

    def reward(prompts: list, completions: list, completion_ids: list | None = None, **_: Any) -> list[float]:
        return function(completions, completion_ids or [], next(calls))

    reward.__name__ = function.__name__
    return reward


def preference_pairs(seed: int, rows: int = 640) -> Dataset:
    """An opening, a kind ending and an unkind one."""
    reviews = load_reviews()
    ends: dict[bool, list[str]] = {True: [], False: []}
    for text, rating in zip(reviews["text"], reviews["rating"], strict=True):
        words = text.split()
        if abs(rating) > 1 and 6 < len(words) < 25:
            ends[rating > 0].append(" " + " ".join(words[3:]))
    chance = random.Random(seed)
    openings = chance.sample(review_prompts()["prompt"], rows)
    return Dataset.from_dict(
        {"prompt": openings, "chosen": chance.sample(ends[True], rows), "rejected": chance.sample(ends[False], rows)}
    )
