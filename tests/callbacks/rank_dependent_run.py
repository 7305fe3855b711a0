"""Run it in two processes, RANK and WORLD_SIZE set: `rank_dependent_run.py FOLDER`. Rank 1 sees NaN at step 3 of 6."""

import json
import math
import sys
from pathlib import Path

import torch
from transformers import PrinterCallback, Trainer, TrainingArguments

from trl_ext.callbacks import PPOMonitoringCallback


class OneNumber(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x, labels):
        return {"loss": ((x * self.weight - labels) ** 2).mean()}


class RankDependentTrainer(Trainer):
    def log(self, logs, *args, **kwargs):
        sick = self.args.process_index == 1 and self.state.global_step >= 3
        super().log({**logs, "reward": math.nan if sick else 1.0}, *args, **kwargs)


def main(folder):
    heard = []
    callback = PPOMonitoringCallback(on_critical="stop", on_alert=heard.append)
    args = TrainingArguments(
        folder, max_steps=6, logging_steps=1, report_to="none", use_cpu=True, save_strategy="no", disable_tqdm=True,
        per_device_train_batch_size=2,
    )  # fmt: skip
    data = [{"x": torch.ones(1), "labels": torch.ones(1)}] * 64
    trainer = RankDependentTrainer(OneNumber(), args, train_dataset=data, callbacks=[callback])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    report = {"step": trainer.state.global_step, "alerts": len(callback.alerts), "heard": len(heard),
              "processes": args.world_size, "stopped": callback.summary()["stopped"]}  # fmt: skip
    Path(folder, f"rank{args.process_index}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1])
