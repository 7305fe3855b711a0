"""Stock GRPO and RLOO of the installed TRL, on a random policy."""

import math

import pytest
from datasets import Dataset
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from trl_ext.callbacks import PPOMonitoringCallback
from trl_ext.monitor import read_metrics
from trl_ext.monitor.metrics import KEY_MAP, canonical_name
from trl_ext.tiny import byte_tokenizer, random_policy

# A random policy never ends a completion, and the monitor says so
TRUE_OF_A_RANDOM_POLICY = {"all_truncated", "eos_missing"}


@pytest.fixture(scope="module")
def policy_folder(tmp_path_factory):
    """A policy that can be loaded a second time, as the reference model."""
    folder = tmp_path_factory.mktemp("policy")
    random_policy().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def build(tmp_path, policy_folder):
    def build(name, callback, nan_from=None, **arguments):
        trainer_class, config_class = {"GRPO": (GRPOTrainer, GRPOConfig), "RLOO": (RLOOTrainer, RLOOConfig)}[name]
        options = {
            "per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 6, "max_steps": 4,
            "beta": 0.05, "logging_steps": 1, "bf16": False, "save_strategy": "no", "report_to": "none",
            "use_cpu": True, "disable_tqdm": True, "gradient_checkpointing": False, **arguments,
        }  # fmt: skip

        def vowels(completions, trainer_state, **_):
            sick = nan_from and trainer_state.global_step + 1 >= nan_from  # 0 while the first step is taken
            return [math.nan if sick else sum(text.count(v) for v in "aeiou") for text in completions]

        trainer = trainer_class(
            policy_folder, vowels, config_class(str(tmp_path / "run"), **options), callbacks=[callback],
            train_dataset=Dataset.from_dict({"prompt": ["say yes", "sum 2 3"] * 20}), processing_class=byte_tokenizer(),
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        return trainer

    return build


@pytest.mark.parametrize("name", ["GRPO", "RLOO"])
def test_a_healthy_run_is_silent_and_every_key_is_known(build, name, tmp_path):
    callback = PPOMonitoringCallback(on_critical="stop", warmup_steps=0)
    trainer = build(name, callback)
    trainer.train()
    assert trainer.state.global_step == 4
    assert {alert.rule for alert in callback.alerts} <= TRUE_OF_A_RANDOM_POLICY
    keys = set(trainer.state.log_history[0]) - {"step"}
    assert {key for key in keys if canonical_name(key) == key} <= set(KEY_MAP)
    row = read_metrics(tmp_path / "run" / "trl_ext" / "metrics.jsonl")[0]
    assert row["kl_per_token"] == row["kl"] and row["reward/vowels/mean"] == row["reward"]


@pytest.mark.parametrize("name", ["GRPO", "RLOO"])
def test_a_nan_reward_stops_at_that_very_log_with_a_checkpoint(build, name, tmp_path):
    callback = PPOMonitoringCallback(on_critical="stop")
    trainer = build(name, callback, nan_from=3)
    trainer.train()
    assert trainer.state.global_step == 3
    assert (tmp_path / "run" / "checkpoint-3" / "model.safetensors").is_file()
    (alert,) = (alert for alert in callback.alerts if alert.rule not in TRUE_OF_A_RANDOM_POLICY)
    assert (alert.rule, alert.opened, alert.metric) == ("nonfinite_metric", 3, "reward/vowels/mean")


def test_a_resumed_run_alerts_nothing_twice(build, tmp_path):
    rule = {"name": "always", "metric": "reward", "comparison": ">", "value": -1e9, "logs": 1}
    always = {"rules": [], "custom_rules": [rule]}
    saving = {"save_strategy": "steps", "save_steps": 2}
    first = PPOMonitoringCallback(**always)
    build("GRPO", first, max_steps=2, **saving).train()
    second = PPOMonitoringCallback(**always)
    build("GRPO", second, max_steps=4, **saving).train(resume_from_checkpoint=True)
    assert [(a.rule, a.opened) for a in first.alerts] == [(a.rule, a.opened) for a in second.alerts] == [("always", 1)]
    assert len((tmp_path / "run" / "trl_ext" / "alerts.jsonl").read_text().splitlines()) == 1
    rows = read_metrics(tmp_path / "run" / "trl_ext" / "metrics.jsonl")
    assert [(row["step"], row["session"]) for row in rows if "reward" in row] == [(1, 0), (2, 0), (3, 1), (4, 1)]
