"""A real Transformers trainer that takes a second: a linear model whose logs a test writes."""

import pytest
import torch
from transformers import PrinterCallback, Trainer, TrainingArguments


class OneNumber(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x, labels):
        return {"loss": ((x * self.weight - labels) ** 2).mean()}


class ScriptedTrainer(Trainer):
    """Adds `script(step)` to what it logs at that step of training; may raise instead, as a crash would."""

    script = staticmethod(lambda step: {})

    def log(self, logs, *args, **kwargs):
        if "loss" in logs:
            logs.update(self.script(self.state.global_step))
        super().log(logs, *args, **kwargs)


@pytest.fixture
def scripted(tmp_path):
    """`scripted(callback or list, script, steps=..., **arguments)`: a trainer that logs each step and never saves by
    itself."""

    def build(callback, script=lambda step: {}, steps=6, eval_dataset=None, **arguments):
        options = {"max_steps": steps, "logging_steps": 1, "report_to": "none", "use_cpu": True, "save_strategy": "no",
                   "disable_tqdm": True, "per_device_train_batch_size": 2, **arguments}  # fmt: skip
        data = [{"x": torch.ones(1), "labels": torch.ones(1)}] * 64
        trainer = ScriptedTrainer(
            OneNumber(), TrainingArguments(str(tmp_path / "run"), **options), train_dataset=data,
            eval_dataset=eval_dataset,
            callbacks=callback if callback is None or isinstance(callback, list) else [callback],
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        trainer.script = script
        return trainer

    return build


@pytest.fixture
def trackio_folder(tmp_path, monkeypatch):
    """trackio reads where it writes when it is imported."""
    pytest.importorskip("trackio")
    import trackio.sqlite_storage
    import trackio.utils

    for module in (trackio.utils, trackio.sqlite_storage):
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    return tmp_path / "trackio"
