"""Run it in two processes, RANK and WORLD_SIZE set: `rank_dependent_run.py FOLDER`. The ranks see different things:

`monitor`: rank 1 a NaN at step 3 of 6. `others`: rank 0 its best reward at step 2, rank 1 at the last of 12, and the
time of rank 1 is over at step 3.
"""

import json
import math
import sys
from pathlib import Path

import torch
from transformers import PrinterCallback, Trainer, TrainingArguments

from trl_ext.callbacks import BestCheckpointCallback, PPOMonitoringCallback, TimeBudgetCallback


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


def train(folder, callbacks, reward, steps):
    args = TrainingArguments(
        str(folder), max_steps=steps, logging_steps=1, report_to="none", use_cpu=True, save_strategy="no",
        disable_tqdm=True, per_device_train_batch_size=2, learning_rate=0.1,
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


if __name__ == "__main__":
    for run in (monitor, others):
        folder = Path(sys.argv[1], run.__name__)
        trainer, report = run(folder)
        Path(folder, f"rank{trainer.args.process_index}.json").write_text(json.dumps(report))
