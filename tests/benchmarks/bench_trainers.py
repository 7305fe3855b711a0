"""Samples a second and peak memory of our trainers against TRL's, side by side.

    python tests/benchmarks/bench_trainers.py --stock-python .venv-trl112/bin/python

Every run is a process of its own; the trainers of a comparison take turns, round after round, and the ratios are taken
round by round: this survives a machine whose speed drifts. Work is counted, not assumed: tokens through each model's
backbone, and optimizer steps. Responses have a fixed length; models are random; the reward costs nothing.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

SHAPES = {
    "embedded": {
        "model": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4,
                  "num_key_value_heads": 2, "vocab_size": 2048, "tie_word_embeddings": True},
        "prompt": 6, "response": 24, "samples": 64, "micro_batch": 64, "epochs": 4, "updates": 12,
    },
    "30M": {
        "model": {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 6,
                  "num_key_value_heads": 6, "vocab_size": 32768, "tie_word_embeddings": True},
        "prompt": 16, "response": 32, "samples": 16, "micro_batch": 8, "epochs": 2, "updates": 4,
    },
}  # fmt: skip
GENERATIONS = 4
# (title, ours, theirs, whose Python runs theirs)
COMPARISONS = [
    ("REINFORCE-LOO / GRPO", "reinforce_loo", "grpo", "current"),
    ("REINFORCE-LOO with KL / RLOO", "reinforce_loo_kl", "rloo", "current"),
    ("PPO / stock PPO 1.12, both with a value model", "ppo", "stock_ppo", "stock"),
    ("PPO with its own value head / stock PPO 1.12", "ppo_head", "stock_ppo", "stock"),
]


# One run -----------------------------------------------------------------------------------------


def run(trainer_name: str, shape_name: str, threads: int) -> dict:
    import torch

    torch.set_num_threads(threads)
    shape = SHAPES[shape_name]
    with tempfile.TemporaryDirectory() as folder:
        return measure(*build(trainer_name, shape, folder), shape["samples"])


def measure(trainer, every: int, samples: int) -> dict:
    """Trains; `every` optimizer steps are an update, of `samples` completions."""
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from transformers import TrainerCallback

    counts = {"tokens": 0, "optimizer_steps": 0}
    policy = getattr(trainer.model, "policy", trainer.model)
    models = [policy, getattr(trainer, "ref_model", None), trainer.bench_value_model]
    for model in [m for m in models if m is not None]:
        backbone = getattr(model, model.base_model_prefix)
        backbone.register_forward_pre_hook(
            lambda _m, args, kwargs: counts.__setitem__("tokens", counts["tokens"] + ids_of(args, kwargs).numel()),
            with_kwargs=True,
        )

    def count_step(*_):
        counts["optimizer_steps"] += 1

    register_optimizer_step_post_hook(count_step)

    class Clock(TrainerCallback):
        def __init__(self):
            self.wall, self.cpu = [], []

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step % every == 0:
                self.wall.append(time.perf_counter())
                self.cpu.append(time.process_time())

    clock = Clock()
    trainer.add_callback(clock)
    base = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak, VmHWM
    trainer.train()
    updates = len(clock.wall)
    wall, cpu = (statistics.median(b - a for a, b in pairwise(times)) for times in (clock.wall, clock.cpu))
    return {
        "samples_per_second": samples / wall,
        "samples_per_cpu_second": samples / cpu,
        "peak_mb": (resident("VmHWM") - base) / 1024,
        "tokens_per_update": counts["tokens"] // updates,
        "optimizer_steps_per_update": counts["optimizer_steps"] / updates,
    }


def ids_of(args, kwargs):
    return kwargs["input_ids"] if kwargs.get("input_ids") is not None else args[0]


def resident(field: str) -> int:
    """A field of /proc/self/status, in kB."""
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field))


def build(name: str, shape: dict, folder: str):
    if "ppo" in name:
        return build_ppo(name, shape, folder)
    trainer, options = {
        "reinforce_loo": ("reinforce_loo", {"beta": 0.0}),
        "reinforce_loo_kl": ("reinforce_loo", {"beta": 0.05}),
        "grpo": ("grpo", {"beta": 0.0, "loss_type": "dr_grpo"}),
        "rloo": ("rloo", {"beta": 0.05}),
    }[name]
    return build_groups(trainer, shape, folder, options), 1


def common(shape: dict, folder: str):
    """(tokenizer, the model's configuration, prompts, options of every trainer)."""
    import torch
    from transformers import Qwen2Config

    from trl_ext import tiny

    torch.manual_seed(0)
    tokenizer = tiny.byte_tokenizer()
    pads = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    rows = (shape["updates"] + 2) * shape["samples"]  # stock PPO steps more often where a pass over the data ends
    letters = torch.randint(97, 123, (rows, shape["prompt"])).tolist()  # one token a letter
    options = {
        "output_dir": folder, "per_device_train_batch_size": shape["micro_batch"], "report_to": "none",
        "gradient_accumulation_steps": shape["samples"] // shape["micro_batch"], "learning_rate": 1e-5,
        "use_cpu": True, "bf16": False, "logging_steps": 1,
        "gradient_checkpointing": False, "disable_tqdm": True, "save_strategy": "no", "temperature": 1.0,
        "log_level": "error",
    }  # fmt: skip
    return tokenizer, Qwen2Config(**shape["model"], **pads), ["".join(map(chr, row)) for row in letters], options


def no_end(shape: dict) -> dict:
    """No EOS before the end, for TRL's GRPO family."""
    return {"generation_kwargs": {"min_new_tokens": shape["response"]}}


def build_ppo(name: str, shape: dict, folder: str):
    import torch
    from datasets import Dataset
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2ForSequenceClassification

    tokenizer, config, prompts, options = common(shape, folder)
    model = Qwen2ForCausalLM(config)
    torch.manual_seed(1)
    value_model = Qwen2ForSequenceClassification(Qwen2Config(**{**config.to_dict(), "num_labels": 1}))
    options |= {
        "num_ppo_epochs": shape["epochs"], "num_mini_batches": 1, "response_length": shape["response"],
        "total_episodes": shape["samples"] * shape["updates"], "num_sample_generations": 0,
    }  # fmt: skip
    data = Dataset.from_dict({"input_ids": tokenizer(prompts)["input_ids"]})
    if name == "stock_ppo":
        from trl.experimental.ppo import PPOConfig, PPOTrainer

        trainer = PPOTrainer(PPOConfig(**options), tokenizer, model, None, free_reward(), data, value_model,
                             eval_dataset=data)  # fmt: skip
        every = 1
    else:
        from trl_ext import PPOConfig, PPOTrainer

        value_model = None if name == "ppo_head" else value_model
        args = PPOConfig(**options, **no_end(shape), stop_token="eos")
        trainer = PPOTrainer(args, tokenizer, model, None, free_reward(), data, value_model)
        every = shape["epochs"]
    trainer.bench_value_model = value_model
    return trainer, every


def build_groups(name: str, shape: dict, folder: str, more: dict):
    """`reinforce_loo`, `grpo` or `rloo` with the options in `more`."""
    from datasets import Dataset
    from transformers import Qwen2ForCausalLM
    from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

    from trl_ext import ReinforceLOOConfig, ReinforceLOOTrainer

    tokenizer, config, prompts, options = common(shape, folder)
    model = Qwen2ForCausalLM(config)
    if name == "rloo":  # it loads its reference by name
        model.save_pretrained(f"{folder}/policy")
        model = Qwen2ForCausalLM.from_pretrained(f"{folder}/policy")
    make_args, make_trainer = {
        "reinforce_loo": (ReinforceLOOConfig, ReinforceLOOTrainer),
        "grpo": (GRPOConfig, GRPOTrainer),
        "rloo": (RLOOConfig, RLOOTrainer),
    }[name]
    args = make_args(
        **options, **no_end(shape), max_completion_length=shape["response"], num_generations=GENERATIONS,
        max_steps=shape["updates"], **more,
    )  # fmt: skip
    data = Dataset.from_dict({"prompt": prompts})
    trainer = make_trainer(model, free_function, args, train_dataset=data, processing_class=tokenizer)
    trainer.bench_value_model = None
    return trainer


def free_function(completion_ids, **kwargs):
    return [float(ids[0] % 7) for ids in completion_ids]


def free_reward():
    """A reward module by stock PPO's protocol that costs nothing."""
    from types import SimpleNamespace

    from torch import nn

    class FreeReward(nn.Module):
        base_model_prefix = "backbone"

        def __init__(self):
            super().__init__()
            self.score = nn.Identity()

        def backbone(self, input_ids, **kwargs):
            return SimpleNamespace(hidden_states=[(input_ids % 7).float().unsqueeze(-1)])

    return FreeReward()


# The comparison ----------------------------------------------------------------------------------


def worker(python: str, trainer: str, shape: str, threads: int) -> dict:
    command = [python, "-W", "ignore", __file__, "--worker", trainer, shape, "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{trainer} at {shape} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare(comparison, shape: str, options) -> None:
    title, ours, theirs, where = comparison
    python = options.stock_python if where == "stock" else sys.executable
    rounds = [
        (worker(sys.executable, ours, shape, options.threads), worker(python, theirs, shape, options.threads))
        for _ in range(options.rounds)
    ]
    ratio = [a["samples_per_second"] / b["samples_per_second"] for a, b in rounds]
    memory = [a["peak_mb"] / b["peak_mb"] for a, b in rounds]
    a, b = rounds[-1]
    print(
        f"{title}, {shape}: samples/s x {statistics.median(ratio):.2f} ({min(ratio):.2f} to {max(ratio):.2f}), "
        f"peak memory x {statistics.median(memory):.2f}; last round, ours / theirs: "
        f"{a['samples_per_second']:.1f} / {b['samples_per_second']:.1f} samples/s, "
        f"{a['peak_mb']:.0f} / {b['peak_mb']:.0f} MB, {a['tokens_per_update']} / {b['tokens_per_update']} tokens and "
        f"{a['optimizer_steps_per_update']:g} / {b['optimizer_steps_per_update']:g} optimizer steps an update",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stock-python", help="a Python with trl 1.12, for stock PPO; without it PPO is left out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES))
    parser.add_argument("--only", help="part of a comparison's title")
    parser.add_argument("--worker", nargs=2, metavar=("TRAINER", "SHAPE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(run(*options.worker, options.threads)))
        return
    for shape in options.shapes:
        for comparison in COMPARISONS:
            if (comparison[3] != "stock" or options.stock_python) and (options.only or "") in comparison[0]:
                compare(comparison, shape, options)


if __name__ == "__main__":
    main()
