"""The best checkpoint is kept, waited for, and restored."""

import logging
import math

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import PrinterCallback, Trainer, TrainingArguments

from trl_ext.callbacks import BestCheckpointCallback
from trl_ext.callbacks._best import greater_is_better_for
from trl_ext.errors import UserError
from trl_ext.tiny import random_policy

REWARDS = {1: 1.0, 2: 3.0, 3: 2.0, 4: 2.5}  # by step; 2.9 afterwards


def reward(step):
    return {"reward": REWARDS.get(step, 2.9)}


def recording(trainer, script):
    """The model's weight after each step, by step."""
    weights = {}

    def recorded(step):
        weights[step] = trainer.model.weight.item()
        return script(step)

    trainer.script = recorded
    return weights


def checkpoints(tmp_path):
    return sorted(path.name for path in (tmp_path / "run").glob("checkpoint-*"))


def test_the_model_of_the_best_step_is_there_at_the_end(scripted, tmp_path):
    callback = BestCheckpointCallback("reward")
    trainer = scripted(callback, steps=6, learning_rate=0.1)
    weights = recording(trainer, reward)
    trainer.train()
    assert trainer.model.weight.item() == weights[2] != weights[6]
    best = {"step": 2, "value": 3.0, "checkpoint": str(tmp_path / "run" / "checkpoint-2")}
    assert callback.best == best and trainer.state.best_model_checkpoint == best["checkpoint"]
    assert checkpoints(tmp_path) == ["checkpoint-1", "checkpoint-2"]  # whenever it was better than ever


def test_restoring_can_be_left_out(scripted):
    trainer = scripted(BestCheckpointCallback("reward", restore_best=False), steps=6)
    weights = recording(trainer, reward)
    trainer.train()
    assert trainer.model.weight.item() == weights[6]


def test_it_is_safe_from_the_rotation_of_checkpoints(scripted, tmp_path):
    options = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}
    trainer = scripted(BestCheckpointCallback("reward"), reward, steps=6, **options)
    trainer.train()
    assert checkpoints(tmp_path) == ["checkpoint-2", "checkpoint-6"]


def test_it_is_safe_also_where_nothing_else_is_saved(scripted, tmp_path):
    # the only other checkpoint is that of the stop; with a limit of 1 Transformers keeps the best alone at the end
    scripted(BestCheckpointCallback("reward", patience=2), reward, steps=6, save_total_limit=1).train()
    assert checkpoints(tmp_path) == ["checkpoint-2"]


@pytest.mark.parametrize(
    ("options", "script", "stops", "best"),
    [
        ({"patience": 3}, REWARDS, 5, 2),
        ({"patience": 5}, REWARDS, 7, 2),
        ({"patience": np.int64(2), "min_improvement": np.float32(5)}, REWARDS, 3, 1),
        ({"patience": 2, "min_improvement": 5}, REWARDS, 3, 1),
        ({"patience": 2, "min_improvement": 1.9}, REWARDS, 4, 2),
        ({"patience": 2, "min_improvement": 2.0}, REWARDS, 3, 1),  # exactly as much is not more
        ({"patience": 2, "greater_is_better": False}, REWARDS, 3, 1),
        ({"patience": 2}, {1: math.nan, 2: math.nan}, 2, None),
        ({"patience": 2}, {1: 1.0, 2: None, 3: None, 4: math.inf, 5: -math.inf}, 5, 1),
    ],
)
def test_patience(scripted, tmp_path, options, script, stops, best):
    callback = BestCheckpointCallback("reward", **options)
    trainer = scripted(callback, lambda step: {"reward": script.get(step, 2.9)}, steps=12)
    trainer.train()
    assert trainer.state.global_step == stops
    assert (callback.best["step"] if callback.best else None) == best
    assert f"checkpoint-{stops}" in checkpoints(tmp_path)  # a stop saves as well


def test_an_evaluation_metric_and_its_canonical_name(scripted):
    for metric in ("eval_loss", "eval/loss"):
        callback = BestCheckpointCallback(metric, patience=2)
        data = [{"x": torch.ones(1), "labels": torch.ones(1)}] * 4
        # the weight goes 0, 50, 0, 50, ...: the loss is 1 (at step 0, where nothing can be saved), 2401, 1, 2401, ...
        trainer = scripted(
            callback, steps=8, eval_strategy="steps", eval_steps=1, eval_dataset=data, learning_rate=50.0, optim="sgd",
            lr_scheduler_type="constant", eval_on_start=True,
        )  # fmt: skip
        trainer.train()
        assert callback.best["step"] == 2 and callback.best["value"] == pytest.approx(1.0, abs=1e-3)
        assert trainer.state.global_step == 4


def test_a_resume_goes_on_with_the_best_and_the_count(scripted, tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 2}
    scripted(BestCheckpointCallback("reward", patience=4), reward, steps=4, **saving).train()
    for options in ({}, {"restore_callback_states_from_checkpoint": True}):
        callback = BestCheckpointCallback("reward", patience=4)
        trainer = scripted(callback, reward, steps=12, **saving, **options)
        trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-4"))
        assert trainer.state.global_step == 6  # the values of 3, 4, 5 and 6
        assert trainer.state.best_global_step == 2
        assert callback.best["step"] == 2  # the object that the user holds


def test_a_resume_with_another_metric_begins_anew(scripted):
    saving = {"save_strategy": "steps", "save_steps": 2}
    scripted(BestCheckpointCallback("reward"), reward, steps=4, **saving).train()
    callback = BestCheckpointCallback("kl")
    scripted(callback, lambda step: {"kl": 9.0 - step}, steps=6, **saving).train(resume_from_checkpoint=True)
    assert callback.best["step"] == 6 and callback.best["value"] == 3.0


def test_a_second_training_begins_anew(scripted):
    callback = BestCheckpointCallback("reward")
    trainer = scripted(callback, reward, steps=3)
    trainer.train()
    trainer.script = lambda step: {"reward": -1.0}
    trainer.train()
    assert callback.best["value"] == -1.0 and callback.best["step"] == 1


def test_a_metric_that_never_came_is_named_with_those_that_did(scripted, caplog):
    scripted(BestCheckpointCallback("rewards/typo/mean"), reward, steps=2).train()
    (message,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "'rewards/typo/mean'" in message and "reward" in message.split("were:")[1] and "loss" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": ""}, "metric must be"),
        ({"greater_is_better": "false"}, "greater_is_better must be True or False"),
        ({"restore_best": "no"}, "restore_best must be True or False"),
        ({"restore_best": None}, "restore_best must be True or False"),
        ({"min_improvement": True}, "min_improvement must be a number"),
        ({"metric": "mine"}, "greater_is_better"),
        ({"metric": "reward_std"}, "greater_is_better"),
        ({"patience": 0}, "patience"),
        ({"patience": True}, "patience"),
        ({"min_improvement": -1}, "min_improvement"),
        ({"min_improvement": math.nan}, "min_improvement"),
    ],
)
def test_a_mistake_is_one_line_at_once(options, message):
    with pytest.raises(UserError, match=message):
        BestCheckpointCallback(**options)


@pytest.mark.parametrize(
    ("callbacks", "arguments", "message"),
    [
        (["eval_loss"], {}, "eval_strategy"),
        (["reward"], {"metric_for_best_model": "loss"}, "leave these out"),
        (["reward", "kl"], {}, "two BestCheckpointCallbacks"),
    ],
)
def test_what_cannot_work_is_said_when_training_begins(scripted, callbacks, arguments, message):
    trainer = scripted([BestCheckpointCallback(metric) for metric in callbacks], reward, **arguments)
    with pytest.raises(UserError, match=message):
        trainer.train()


@pytest.mark.parametrize(
    ("metric", "greater"),
    [("eval_loss", False), ("reward", True), ("objective/rlhf_reward", True), ("eval_rewards/accuracies", True),
     ("loss/value_avg", False), ("kl_per_token", False), ("explained_variance", True), ("eval_perplexity", False)],
)  # fmt: skip
def test_the_direction_is_in_the_name(metric, greater):
    assert greater_is_better_for(metric) is greater


def test_lora(tmp_path):
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(random_policy(), LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    ids = {"input_ids": [[1, 2, 3, 4]] * 8, "labels": [[1, 2, 3, 4]] * 8}
    args = TrainingArguments(str(tmp_path), max_steps=4, logging_steps=1, report_to="none", use_cpu=True,
                             save_strategy="no", learning_rate=0.1, disable_tqdm=True)  # fmt: skip
    seen = {}

    class Scripted(Trainer):
        def log(self, logs, *args, **kwargs):
            if "loss" in logs:
                weights = [p.detach().clone() for name, p in model.named_parameters() if "lora" in name]
                seen[self.state.global_step] = weights
                logs.update(reward(self.state.global_step))
            super().log(logs, *args, **kwargs)

    trainer = Scripted(model, args, train_dataset=Dataset.from_dict(ids), callbacks=[BestCheckpointCallback("reward")])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    assert (tmp_path / "checkpoint-2" / "adapter_model.safetensors").is_file()
    now = [p for name, p in trainer.model.named_parameters() if "lora" in name]
    assert all(torch.equal(a, b) for a, b in zip(now, seen[2], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(now, seen[4], strict=True))
