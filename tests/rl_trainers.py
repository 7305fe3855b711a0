"""The five trainers that take reward functions, each over in a second: four steps of 32 completions of 8 tokens.

`build(tmp_path, reward_funcs, callbacks, **changes)`; the options are those of GRPO, `reward_weights` among them.
"""

from typing import Any

from datasets import Dataset

from trl_ext import tiny
from trl_ext.compat import build_ppo_trainer
from trl_ext.trainers import PPOConfig, PPOTrainer, ReinforceLOOConfig, ReinforceLOOTrainer

PROMPTS = ["hello", "go", "more", "why", "what now", "and then", "a b c", "list it"]


def options(tmp_path, **changes):
    return {
        "output_dir": str(tmp_path), "per_device_train_batch_size": 32, "num_generations": 4, "max_steps": 4,
        "max_completion_length": 8, "logging_steps": 1, "report_to": [], "save_strategy": "no", "use_cpu": True,
        "bf16": False, "disable_tqdm": True, "gradient_checkpointing": False, **changes,
    }  # fmt: skip


def dataset():
    return Dataset.from_dict({"prompt": PROMPTS * 8, "bonus": [float(i % 3) for i in range(64)]})


def grpo(tmp_path, reward_funcs, callback, **changes):
    from trl import GRPOConfig, GRPOTrainer

    return GRPOTrainer(
        model=tiny.random_policy(0), reward_funcs=reward_funcs, args=GRPOConfig(**options(tmp_path, **changes)),
        processing_class=tiny.byte_tokenizer(), train_dataset=dataset(), callbacks=_list(callback),
    )  # fmt: skip


def rloo(tmp_path, reward_funcs, callback, **changes):
    from trl import RLOOConfig, RLOOTrainer

    return RLOOTrainer(
        model=tiny.random_policy(0), reward_funcs=reward_funcs,
        args=RLOOConfig(beta=0.0, **options(tmp_path, **changes)), processing_class=tiny.byte_tokenizer(),
        train_dataset=dataset(), callbacks=_list(callback),
    )  # fmt: skip


def reinforce_loo(tmp_path, reward_funcs, callback, **changes):
    return ReinforceLOOTrainer(
        tiny.random_policy(0), reward_funcs, ReinforceLOOConfig(**options(tmp_path, **changes)),
        train_dataset=dataset(), processing_class=tiny.byte_tokenizer(), callbacks=_list(callback),
    )  # fmt: skip


def ppo(tmp_path, reward_funcs, callback, **changes):
    wanted = options(tmp_path, **changes)
    wanted.pop("num_generations")
    wanted["response_length"] = wanted.pop("max_completion_length")
    wanted["total_episodes"] = 32 * wanted.pop("max_steps")
    return PPOTrainer(
        PPOConfig(num_ppo_epochs=1, num_mini_batches=1, stop_token="eos", **wanted),
        tiny.byte_tokenizer(), tiny.random_policy(0),
        reward_funcs=reward_funcs, train_dataset=dataset(), callbacks=_list(callback),
    )  # fmt: skip


def stock_ppo(tmp_path, reward_funcs, callback, **changes):
    """Of TRL 1.12; a test that uses it has the marker `stock_ppo`."""
    from trl.experimental.ppo import PPOConfig as StockConfig

    wanted: dict[str, Any] = options(tmp_path, **changes)
    wanted.pop("num_generations")
    weights = wanted.pop("reward_weights", None)
    wanted["response_length"] = wanted.pop("max_completion_length")
    wanted["total_episodes"] = 32 * wanted.pop("max_steps")
    args = StockConfig(
        num_ppo_epochs=1, num_mini_batches=1, stop_token="eos", gradient_accumulation_steps=1,
        local_rollout_forward_batch_size=32, num_sample_generations=0, **wanted,
    )  # fmt: skip
    return build_ppo_trainer(
        args, tiny.random_policy(0), tiny.byte_tokenizer(), dataset(), reward_funcs, weights, callbacks=_list(callback)
    )


def _list(callback):
    return callback if isinstance(callback, list) else [callback]
