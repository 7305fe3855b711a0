"""Which PPO: the stock trainer where TRL ships it (until 1.12), trl_ext's elsewhere. One script serves both."""

import contextlib
import importlib
import os
import warnings
from typing import Any

from datasets import Dataset
from transformers import AutoModelForSequenceClassification, set_seed

from .errors import UserError
from .rewards.stock import as_reward_model
from .trainers import PPOConfig as OurPPOConfig
from .trainers import PPOTrainer as OurPPOTrainer
from .trainers.batches import require_divisible

STOCK: Any = None
with contextlib.suppress(ImportError), warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TRL warns about everything under `trl.experimental`
    STOCK = importlib.import_module("trl.experimental.ppo")


def ppo_classes(implementation: str | None = None) -> tuple[type, type]:
    """(PPOConfig, PPOTrainer) to use.

    Args:
        implementation (`str`, *optional*): "stock", "trl_ext" or "auto" (stock where TRL ships it, ours elsewhere).
            Defaults to the environment variable TRL_EXT_PPO, then to "auto".
    Raises:
        UserError: another value, or "stock" where TRL does not ship it.
    """
    implementation = implementation or os.environ.get("TRL_EXT_PPO", "auto")
    if implementation not in ("auto", "stock", "trl_ext"):
        raise UserError(f"TRL_EXT_PPO={implementation!r}: use 'auto', 'stock' or 'trl_ext'.")
    if implementation == "stock" and STOCK is None:
        raise UserError("TRL dropped its PPO after 1.12: install trl==1.12.0, or use TRL_EXT_PPO=trl_ext.")
    if implementation == "trl_ext" or STOCK is None:
        return OurPPOConfig, OurPPOTrainer
    return STOCK.PPOConfig, STOCK.PPOTrainer


def build_ppo_trainer(
    args, model, processing_class, train_dataset, reward_funcs, reward_weights=None, peft_config=None, callbacks=None,
    eval_dataset=None, value_model=None,
):  # fmt: skip
    """The PPO trainer that `args` belongs to, from what the current trainer takes: prompts and reward functions.

    Stock PPO wants more: prompts as token ids, here padded to one width so that `as_reward_model` knows where a
    completion begins; a reward module; a value model, here the policy's backbone with a score head that starts at zero.

    Args:
        args: a `PPOConfig` of either kind (see `ppo_classes`).
        train_dataset (`Dataset`): with a `prompt` column.
        reward_funcs (`list[Callable]`), reward_weights (`list[float]`, *optional*): as for `trl.GRPOTrainer`.
        value_model (`nn.Module`, *optional*): by default a head on the policy, with stock PPO a copy of its body.
        eval_dataset (`Dataset`, *optional*): held-out prompts; stock PPO does not evaluate and takes none.
    """
    if isinstance(args, OurPPOConfig):
        args.reward_weights = reward_weights
        return OurPPOTrainer(
            args, processing_class, model, reward_funcs=reward_funcs, train_dataset=train_dataset,
            eval_dataset=eval_dataset, value_model=value_model, peft_config=peft_config, callbacks=callbacks,
        )  # fmt: skip
    require_divisible(
        "Rollouts of a process",
        args.per_device_train_batch_size * args.gradient_accumulation_steps,
        f"per_device_train_batch_size x gradient_accumulation_steps ({args.per_device_train_batch_size} x "
        f"{args.gradient_accumulation_steps})",
        "num_mini_batches",
        args.num_mini_batches,
    )
    set_seed(args.seed)  # stock PPO seeds torch alone, and shuffles its mini-batches with NumPy
    tokenised = tokenise_prompts(train_dataset, processing_class)
    width = len(tokenised[0]["input_ids"])
    return STOCK.PPOTrainer(
        args, processing_class, model, None,
        as_reward_model(reward_funcs, processing_class, reward_weights=reward_weights, prompt_length=width),
        tokenised, value_model or value_model_of(model), eval_dataset=tokenised.select(range(min(8, len(tokenised)))),
        peft_config=peft_config, callbacks=callbacks,
    )  # fmt: skip


def tokenise_prompts(dataset: Dataset, processing_class) -> Dataset:
    """Prompts as `input_ids`, left-padded to the width of the longest: stock PPO pads a batch no further then."""
    if isinstance(dataset[0]["prompt"], list):
        ids = [
            processing_class.apply_chat_template(p, add_generation_prompt=True, tokenize=True, return_dict=True)[
                "input_ids"
            ]
            for p in dataset["prompt"][:]
        ]
    else:
        ids = processing_class(dataset["prompt"][:])["input_ids"]
    width, pad = max(map(len, ids)), processing_class.pad_token_id
    return Dataset.from_dict({"input_ids": [[pad] * (width - len(row)) + row for row in ids]})


def value_model_of(model):
    """A value model for stock PPO: the policy's backbone, copied, and a `score` head at zero."""
    config = type(model.config).from_dict({**model.config.to_dict(), "num_labels": 1})
    value_model = AutoModelForSequenceClassification.from_config(config, dtype=model.dtype)
    prefix = model.base_model_prefix
    getattr(value_model, prefix).load_state_dict(getattr(model, prefix).state_dict())
    value_model.score.weight.data.zero_()
    return value_model
