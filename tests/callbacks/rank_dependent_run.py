"""Run it in two processes, RANK and WORLD_SIZE set: `rank_dependent_run.py FOLDER`. The ranks see different things:

`monitor`: rank 1 a NaN at step 3 of 6. `others`: rank 0 its best reward at step 2, rank 1 at the last of 12, and the
time of rank 1 is over at step 3. `rewards`: a reward function of rank 1 fails on half of its completions, and on every
edited one when it is probed. `checkpoints`: the main process alone reads the checkpoints, in which weights are NaN.
`trackers`: both see what is odd, and have a run of W&B open, each in a folder of its own.
"""

import json
import math
import os
import sys
import time
from pathlib import Path

import torch
from transformers import PrinterCallback, Trainer, TrainingArguments

from trl_ext import tiny
from trl_ext.callbacks import (
    BestCheckpointCallback,
    CheckpointHealthCallback,
    PPOMonitoringCallback,
    RewardReliabilityCallback,
    TimeBudgetCallback,
)
from trl_ext.rewards import CheckedReward


class OneNumber(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x, labels):
        return {"loss": ((x * self.weight - labels) ** 2).mean()}


class RankDependentTrainer(Trainer):
    def log(self, logs, *args, **kwargs):
        if "loss" in logs:
            logs["reward"] = self.reward(self, self.args.process_index, self.state.global_step)
        super().log(logs, *args, **kwargs)


def train(folder, callbacks, reward, steps, **options):
    args = TrainingArguments(
        str(folder), max_steps=steps, logging_steps=1, report_to="none", use_cpu=True,
        disable_tqdm=True, per_device_train_batch_size=2, learning_rate=0.1, **{"save_strategy": "no", **options},
    )  # fmt: skip
    data = [{"x": torch.ones(1), "labels": torch.ones(1)}] * 64
    trainer = RankDependentTrainer(OneNumber(), args, train_dataset=data, callbacks=callbacks)
    trainer.remove_callback(PrinterCallback)
    trainer.reward = reward
    trainer.train()
    return trainer, {"step": trainer.state.global_step, "processes": args.world_size}


def monitor(folder):
    def reward(trainer, rank, step):
        return math.nan if rank and step >= 3 else 1.0

    heard = []
    callback = PPOMonitoringCallback(on_critical="stop", on_alert=heard.append, rules=["nonfinite_metric"])
    trainer, report = train(folder, [callback], reward, 6)
    return trainer, {**report, "alerts": len(callback.alerts), "heard": len(heard),
                     "stopped": callback.summary()["stopped"]}  # fmt: skip


def others(folder):
    best, budget = BestCheckpointCallback("reward"), TimeBudgetCallback(hours=1)
    weights = {}

    def reward(trainer, rank, step):
        weights[step] = trainer.accelerator.unwrap_model(trainer.model).weight.item()
        if rank and step == 3:
            budget._end = 0.0
        return float(step) if rank else {1: 1.0, 2: 3.0}.get(step, 2.0)

    trainer, report = train(folder, [best, budget], reward, 12)
    restored = trainer.accelerator.unwrap_model(trainer.model).weight.item()
    return trainer, {**report, "best": best.best["step"], "restored": restored == weights[2] != weights[9]}


def rewards(folder):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    args = GRPOConfig(
        str(folder), max_steps=4, logging_steps=1, report_to="none", use_cpu=True, save_strategy="no", bf16=False,
        disable_tqdm=True, per_device_train_batch_size=32, num_generations=4, max_completion_length=6,
    )  # fmt: skip

    def length(prompts, completions, **kwargs):
        if args.process_index and any("That is all" in completion for completion in completions):
            raise ValueError("edited")
        values = [float(len(completion)) for completion in completions]
        return ["bad" if args.process_index and i % 2 else value for i, value in enumerate(values)]

    def plain(prompts, completions, **kwargs):
        if args.process_index and any(completion.endswith("  \n") for completion in completions):
            raise ValueError("edited")
        return [0.5 * len(completion) for completion in completions]

    monitor = PPOMonitoringCallback(rules=["reward_failures"])
    reliability = RewardReliabilityCallback(rescore_every=1, evaluate_every=1)
    trainer = GRPOTrainer(
        model=tiny.random_policy(0), reward_funcs=[CheckedReward(length), plain], args=args,
        processing_class=tiny.byte_tokenizer(), callbacks=[monitor, reliability],
        train_dataset=Dataset.from_dict({"prompt": ["hello", "go", "more", "why"] * 32}),
    )  # fmt: skip
    trainer.train()
    report = reliability.report
    return trainer, {
        "step": trainer.state.global_step, "processes": args.world_size,
        "completions": report.completions if report else None,
        "alerts": {alert.rule: str(alert.severity) for alert in monitor.alerts},
    }  # fmt: skip


def checkpoints(folder):
    """The weights are NaN from step 3 on; the main process alone looks at what is saved."""
    callback = CheckpointHealthCallback(on_critical="stop", keep_last_healthy=True)

    def reward(trainer, rank, step):
        if step == 3:
            trainer.accelerator.unwrap_model(trainer.model).weight.data.fill_(math.nan)
        time.sleep(0.02)
        return 1.0

    trainer, report = train(folder, [callback], reward, 200, save_strategy="steps", save_steps=2)
    alerts = [alert.rule for alert in callback.alerts]
    return trainer, {**report, "alerts": alerts, "judges": callback._judge is not None}


def trackers(folder):
    import wandb
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    own = folder / f"sent-by-{os.environ['RANK']}"
    os.environ["WANDB_DIR"], os.environ["TENSORBOARD_LOGGING_DIR"] = str(own), str(own)
    own.mkdir(parents=True)
    wandb.init(project="ranks")  # as users do who want the system metrics of each process
    args = GRPOConfig(
        str(folder), max_steps=2, logging_steps=1, report_to=["wandb", "tensorboard"], use_cpu=True, bf16=False,
        save_strategy="steps", save_steps=1, disable_tqdm=True, per_device_train_batch_size=8, num_generations=4,
        max_completion_length=6,
    )  # fmt: skip
    callback = PPOMonitoringCallback(rules=[], custom_rules=[lambda metrics: f"seen by {args.process_index}"])
    trainer = GRPOTrainer(
        model=tiny.random_policy(0), reward_funcs=[lambda completions, **_: [float(len(c)) for c in completions]],
        args=args, processing_class=tiny.byte_tokenizer(), callbacks=[callback],
        train_dataset=Dataset.from_dict({"prompt": ["hello", "go", "more", "why"] * 8}),
    )  # fmt: skip
    trainer.train()
    wandb.finish()
    return trainer, {"processes": args.world_size, "alerts": len(callback.alerts)}


if __name__ == "__main__":
    for run in (monitor, others, rewards, checkpoints, trackers):
        folder = Path(sys.argv[1], run.__name__)
        trainer, report = run(folder)
        Path(folder, f"rank{trainer.args.process_index}.json").write_text(json.dumps(report))
