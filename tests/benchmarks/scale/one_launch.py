"""`accelerate launch one_launch.py PLAN.json`: recipes at a few steps each, one after the other in the same processes.

Each runs three times: to its end with a checkpoint half way; from that checkpoint to the end; and with a NaN that the
last process alone sees in its logs, on which `on_critical: stop` has to end all of them. What was seen is written into
the plan's folder by the main process; scale_runs.py compares it.
"""

import faulthandler
import gc
import importlib.util
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from safetensors.torch import save_file
from transformers import TrainerCallback

import trl_ext
from trl_ext.callbacks import BestCheckpointCallback, TimeBudgetCallback
from trl_ext.callbacks._monitoring import MonitoringCallback

sys.path.insert(0, str(Path(__file__).parent))
from gloo_engines import allow_engines_on_the_cpu
from same_samples import same_samples

ROOT = Path(__file__).resolve().parents[3]
GLOBAL_BATCH = 16
FAULT_AT = 3
RL = ["--dataset_test_split", "train", "--validation_prompts", "8", "--samples_every", "1000", "--time_budget", "1",
      "--patience", "100", "--rescore_every", "3"]  # fmt: skip
# Steps, and what they are called in the options: PPO counts updates of two optimizer steps
OPTIONS = {
    # bnpo, the default, weighs the tokens of each micro-batch alone, as stock PPO does: two processes differ from one
    "ppo": ["--total_episodes", str(4 * GLOBAL_BATCH), "--save_steps", "2", "--response_length", "12",
            "--loss_type", "dapo", *RL],
    "reinforce_loo": ["--max_steps", "8", "--save_steps", "4", "--num_generations", "4", "--num_generations_eval", "2",
                      "--max_completion_length", "12", "--validation_frequency", "4", *RL],
    "sft": ["--max_steps", "8", "--save_steps", "4", "--dataset_test_split", "train", "--neftune_noise_alpha", "0",
            "--num_samples", "2", "--max_new_tokens", "8", "--model_name_or_path", "trl_ext/tiny", "--dtype", "float32",
            "--learning_rate", "1e-3"],
    "reward": ["--max_steps", "8", "--save_steps", "4", "--dataset_test_split", "train", "--num_degenerate_pairs", "0"],
    "dpo": ["--max_steps", "8", "--save_steps", "4", "--dataset_test_split", "train"],
}  # fmt: skip
# A recipe with more options: `reinforce_loo+lora`
LORA = [
    "--use_peft",
    "--lora_dropout",
    "0",
    "--lora_r",
    "4",
    "--lora_target_modules",
    "all-linear",
    "--learning_rate",
    "2e-3",
]
VARIANTS = {
    "lora": LORA,
    "ema": ["--reference", "ema", "--ema_tau", "0.5"],
    "periodic": ["--reference", "periodic", "--ref_update_interval", "2"],
    "ema-lora": ["--reference", "ema", "--ema_tau", "0.5", *LORA],
    "value": ["--baseline", "value"],
    "value-lora": ["--baseline", "value", *LORA],
    "greedy": ["--baseline", "greedy"],
    "value-model": ["--value_model_name_or_path", "trl_ext/tiny"],
    "entropy": ["--entropy_coef", "0.1", "--entropy_decay", "0.5", "--kl_target", "0.5", "--kl_horizon", "50"],
    "bf16": ["--bf16", "true"],
    "bfloat16": ["--dtype", "bfloat16"],
    "bfloat16-lora": ["--dtype", "bfloat16", *LORA],
    "checkpointing": ["--gradient_checkpointing", "true"],
    "accumulate": ["--gradient_accumulation_steps", "2"],
}
HALF_WAY = 4


class Probe(TrainerCallback):
    """The weights at the end of training, before `BestCheckpointCallback` goes back to better ones."""

    def __init__(self, trainer: Any):
        self.trainer, self.weights = trainer, {}

    def on_train_end(self, args, state, control, **_):
        self.weights = whole_weights(self.trainer)


def whole_weights(trainer: Any) -> dict[str, torch.Tensor]:
    """The weights, gathered, in the main process; a collective where they are divided."""
    accelerator = trainer.accelerator
    if trainer.is_fsdp_enabled:
        state = accelerator.get_state_dict(trainer.model)
    elif trainer.is_deepspeed_enabled:
        state = accelerator.get_state_dict(trainer.deepspeed)
    else:
        state = accelerator.unwrap_model(trainer.model).state_dict()
    return {name: tensor.detach().float().cpu().clone() for name, tensor in (state or {}).items()}


def watch(trainer: Any) -> None:
    """The callbacks that a recipe brings on request alone."""
    there = trainer.callback_handler.callbacks
    metric = "reward" if hasattr(trainer, "_generate_single_turn") else "loss"
    wanted = [
        (BestCheckpointCallback, lambda: BestCheckpointCallback(metric)),
        (TimeBudgetCallback, lambda: TimeBudgetCallback(hours=1)),
    ]
    for kind, make in wanted:
        if not any(isinstance(callback, kind) for callback in there):
            trainer.add_callback(make())


def inject(trainer: Any) -> None:
    original = trainer.log

    def log(logs: dict, *args: Any, **kwargs: Any) -> None:
        last = trainer.accelerator.num_processes - 1
        if "loss" in logs and trainer.state.global_step >= FAULT_AT and trainer.accelerator.process_index == last:
            logs["loss"] = math.nan
        original(logs, *args, **kwargs)

    trainer.log = log


def run(recipe: str, words: list[str], folder: Path, fault: bool = False) -> dict[str, Any]:
    """The recipe's own `main`, whose `train` is watched; what its processes saw, in all of them."""
    name = recipe.partition("+")[0]
    spec = importlib.util.spec_from_file_location(name, ROOT / "recipes" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    seen: dict[str, Any] = {}

    def train(trainer: Any, **kwargs: Any) -> Any:
        seen["trainer"], seen["probe"] = trainer, Probe(trainer)
        trainer.callback_handler.callbacks.insert(0, seen["probe"])
        watch(trainer)
        if fault:
            inject(trainer)
        if not hasattr(trainer, "_generate_single_turn"):
            return trl_ext.train(trainer, **kwargs)
        with same_samples(trainer):
            return trl_ext.train(trainer, **kwargs)

    module.train = train
    module.main([*words, "--output_dir", str(folder)])
    trainer, end = seen["trainer"], seen["probe"].weights
    monitor = next(c for c in trainer.callback_handler.callbacks if isinstance(c, MonitoringCallback))
    own = [[trainer.state.global_step, sorted({alert.rule for alert in monitor.alerts})]]
    report = {
        "logs": trainer.state.log_history,
        "ranks": gather_object(own),
        "engine": type(trainer.model_wrapped).__name__ + (" (shards)" if is_divided(trainer) else ""),
        "best": trainer.state.best_global_step,
        "peak": torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else None,
    }
    saved = whole_weights(trainer)
    if trainer.accelerator.is_main_process:
        save_file(end, folder / "end.safetensors")
        save_file(saved, folder / "trained.safetensors")
    trainer.accelerator.wait_for_everyone()
    return report


def is_divided(trainer: Any) -> bool:
    parameters = list(trainer.accelerator.unwrap_model(trainer.model).parameters())
    return any(hasattr(one, "full_tensor") or hasattr(one, "ds_id") for one in parameters)


def words_of(recipe: str, plan: dict[str, Any]) -> list[str]:
    name, _, variant = recipe.partition("+")
    size = GLOBAL_BATCH // int(os.environ.get("WORLD_SIZE", 1)) // (2 if variant == "accumulate" else 1)
    options = {
        "config": ROOT / "recipes" / f"{name}.yaml", "dataset_name": plan["data"][recipe], "save_strategy": "steps",
        "logging_steps": 1, "on_critical": "stop", "report_to": "none", "disable_tqdm": "true",
        "per_device_train_batch_size": size, "per_device_eval_batch_size": size, "warmup_steps": 0,
        "use_cpu": str(plan["device"] == "cpu").lower(),
    }  # fmt: skip
    return [
        *(str(x) for name, value in options.items() for x in (f"--{name}", value)),
        *OPTIONS[name],
        *VARIANTS.get(variant, []),
    ]


def main(path: str) -> None:
    plan = json.loads(Path(path).read_text())
    faulthandler.dump_traceback_later(plan["limit"], exit=True)  # says where it hangs, and ends
    folder, rank = Path(plan["folder"]), os.environ.get("RANK", "0")
    (folder / f"rank{rank}.pid").write_text(str(os.getpid()))
    torch.set_num_threads(1)
    if plan["device"] == "cpu":
        allow_engines_on_the_cpu()
    for recipe in plan["recipes"]:
        words, own = words_of(recipe, plan), folder / recipe
        reports = {"whole": run(recipe, words, own / "whole")}
        half = str(own / "whole" / f"checkpoint-{HALF_WAY}")
        gc.collect()
        reports["resumed"] = run(recipe, [*words, "--resume_from_checkpoint", half], own / "resumed")
        gc.collect()
        reports["stopped"] = run(recipe, words, own / "stopped", fault=True)
        gc.collect()
        if rank == "0":
            (own / "report.json").write_text(json.dumps(reports))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
