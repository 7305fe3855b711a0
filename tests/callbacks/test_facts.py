"""What the monitor reads from the arguments, the model, the tokenizer and the data."""

import json
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset, IterableDataset
from torch.utils.data import DataLoader
from transformers import TrainerState
from trl import DPOConfig, GRPOConfig

from trl_ext.callbacks import AnomalyDetectionCallback
from trl_ext.callbacks._facts import read_facts
from trl_ext.tiny import byte_tokenizer, random_policy

STATE = TrainerState(max_steps=200, logging_steps=5)


def arguments(tmp_path, config=GRPOConfig, **options):
    options = {"per_device_train_batch_size": 4, "use_cpu": True, "bf16": False, "report_to": "none", **options}
    if config is GRPOConfig:
        options["num_generations"] = 4
    return config(str(tmp_path), **options)


def loader(texts):
    return DataLoader(Dataset.from_dict({"prompt": texts}))


def data(texts, tmp_path, **options):
    return read_facts(arguments(tmp_path, **options), STATE, train_dataloader=loader(texts))["data"]


def test_the_options_of_grpo(tmp_path):
    args = arguments(
        tmp_path, learning_rate=3e-6, lr_scheduler_type="cosine", warmup_steps=0.1, gradient_accumulation_steps=2,
        beta=0.04, num_iterations=3, max_completion_length=77, loss_type="dr_grpo", reward_weights=[1.0, 0.0],
    )  # fmt: skip
    trainer = SimpleNamespace(reward_func_names=["correct", "gold"])
    tokenizer = byte_tokenizer()
    facts = read_facts(args, STATE, trainer, model=random_policy(), processing_class=tokenizer)
    json.dumps(facts)
    expected = {
        "trainer": "SimpleNamespace", "learning_rate": 3e-6, "lr_scheduler_type": "cosine", "warmup_steps": 20,
        "max_steps": 200, "gradient_accumulation_steps": 2, "beta": 0.04, "num_iterations": 3, "logging_steps": 5,
        "max_completion_length": 77, "loss_type": "dr_grpo", "fp16": False, "held_back_rewards": ["gold"],
        "pad_is_eos": tokenizer.pad_token_id == tokenizer.eos_token_id,
        "vocab_size": random_policy().config.vocab_size,
    }  # fmt: skip
    assert {fact: facts[fact] for fact in expected} == expected
    assert "kl_coef" not in facts and "vf_coef" not in facts
    assert "padding_side" not in facts  # stock PPO alone pads as the tokenizer says


def test_the_trainer_is_guessed_from_its_arguments(tmp_path):
    assert read_facts(arguments(tmp_path, DPOConfig), STATE)["trainer"] == "DPOTrainer"


def test_the_data_of_a_run(tmp_path):
    args = {"seed": 3, "data_seed": 4, "ignore_data_skip": True, "gradient_accumulation_steps": 8}
    facts = data(["a", "b"], tmp_path, **args)
    assert isinstance(facts.pop("dataset_fingerprint"), str)
    assert facts == {
        "seed": 3, "data_seed": 4, "ignore_data_skip": True, "samples_per_step": 32, "dataset_rows": 2
    }  # fmt: skip


def test_the_fingerprint_is_of_content_and_order(tmp_path):
    texts = [f"text {i}" for i in range(100)]

    def of(texts):
        return data(texts, tmp_path)["dataset_fingerprint"]

    assert of(texts) == of(list(texts))
    assert len({of(texts), of(texts[::-1]), of(texts[:99]), of(["other", *texts[1:]]), of([])}) == 5
    shuffled = DataLoader(Dataset.from_dict({"prompt": texts}).shuffle(seed=1))
    assert read_facts(arguments(tmp_path), STATE, train_dataloader=shuffled)["data"]["dataset_fingerprint"] != of(texts)


@pytest.mark.parametrize(
    "dataset", [[1, 2], None, IterableDataset.from_generator(lambda: iter([{"x": 1}])), SimpleNamespace()]
)
def test_data_of_other_kinds_has_no_fingerprint(tmp_path, dataset):
    loader = SimpleNamespace(dataset=dataset)
    facts = read_facts(arguments(tmp_path), STATE, train_dataloader=loader)["data"]
    assert facts["dataset_fingerprint"] is None and facts["dataset_rows"] == (2 if dataset == [1, 2] else None)


def test_what_cannot_be_read_is_left_out_and_nothing_raises(tmp_path):
    class Hostile:
        def __getattr__(self, name):
            raise RuntimeError(name)

    hostile = Hostile()
    facts = read_facts(arguments(tmp_path), STATE, model=hostile, processing_class=hostile, train_dataloader=hostile)
    assert facts["learning_rate"] > 0 and not {"vocab_size", "padding_side", "data"} & set(facts)


def test_no_parameter_is_touched(tmp_path):
    class Sharded(torch.nn.Module):
        def named_parameters(self, *args, **kwargs):
            raise AssertionError("a collective under ZeRO-3")

        parameters = state_dict = named_parameters

    read_facts(arguments(tmp_path), STATE, model=Sharded())


def test_the_engine_gets_them_and_those_of_the_run_before(scripted, monkeypatch):
    saving = {"save_strategy": "steps", "save_steps": 2}
    callback = AnomalyDetectionCallback(rules=["kl_high"])
    scripted(callback, steps=2, learning_rate=1e-3, seed=1, **saving).train()
    facts = callback._run.engine.facts
    assert (facts["learning_rate"], facts["max_steps"], facts["trainer"]) == (1e-3, 2, "ScriptedTrainer")
    assert "data_before" not in facts

    told = []
    monkeypatch.setattr("trl_ext.monitor.engine.Engine.resumed", lambda engine: told.append(engine))
    resumed = AnomalyDetectionCallback(rules=["kl_high"])
    scripted(resumed, steps=4, seed=2, **saving).train(resume_from_checkpoint=True)
    facts = resumed._run.engine.facts
    assert facts["data_before"] == {**facts["data"], "seed": 1} and facts["data"]["seed"] == 2
    assert told == [resumed._run.engine]


@pytest.mark.stock_ppo
def test_stock_ppo_has_its_own_names(tmp_path):
    from trl.experimental.ppo import PPOConfig
    from trl.experimental.ppo.ppo_trainer import OnlineTrainerState

    args = PPOConfig(str(tmp_path), response_length=9, num_ppo_epochs=2, kl_coef=0.1, vf_coef=0.2, use_cpu=True,
                     bf16=False, report_to="none")  # fmt: skip
    args.batch_size = 64  # set by the trainer
    facts = read_facts(args, OnlineTrainerState(max_steps=10, logging_steps=10))
    names = ("trainer", "max_completion_length", "num_iterations", "kl_coef", "vf_coef", "logging_steps")
    assert [facts[name] for name in names] == ["PPOTrainer", 9, 2, 0.1, 0.2, 1]
    assert facts["data"]["samples_per_step"] == 64
