"""Our own trainers, which log TRL's GRPO keys and stock PPO's names side by side."""

import math

import pytest
from datasets import Dataset
from transformers import PrinterCallback

import trl_ext
from trl_ext.callbacks import PPOMonitoringCallback
from trl_ext.monitor import read_metrics
from trl_ext.monitor.metrics import KEY_MAP, canonical_name
from trl_ext.tiny import byte_tokenizer, random_policy

# A random policy never ends a completion, and the monitor says so
TRUE_OF_A_RANDOM_POLICY = {"all_truncated", "eos_missing"}

pytestmark = pytest.mark.current_trl


def vowels(completions, **_):
    return [float(sum(text.count(v) for v in "aeiou")) for text in completions]


def build(tmp_path, callback, reward=vowels):
    args = trl_ext.PPOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=8, num_ppo_epochs=1, num_mini_batches=1,
        total_episodes=32, response_length=6, bf16=False, save_strategy="no", report_to="none", use_cpu=True,
        disable_tqdm=True, gradient_checkpointing=False, logging_steps=1, num_sample_generations=0,
    )  # fmt: skip
    dataset = Dataset.from_dict({"prompt": ["say yes", "sum 2 3"] * 20})
    trainer = trl_ext.PPOTrainer(
        args, byte_tokenizer(), random_policy(), None, reward, dataset, callbacks=[callback]
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    return trainer


def test_a_healthy_run_is_silent_and_every_key_is_known(tmp_path):
    callback = PPOMonitoringCallback(on_critical="stop", warmup_steps=0)
    trainer = build(tmp_path, callback)
    trl_ext.train(trainer)
    assert trainer.state.global_step == 4
    assert {alert.rule for alert in callback.alerts} <= TRUE_OF_A_RANDOM_POLICY
    keys = set(trainer.state.log_history[0]) - {"step"}
    assert {key for key in keys if canonical_name(key) == key} <= set(KEY_MAP)
    row = read_metrics(tmp_path / "trl_ext" / "metrics.jsonl")[0]
    assert row["kl_per_sequence"] == row["objective/kl"] and row["explained_variance"] <= 1
    for name in ("reward", "kl_per_sequence", "entropy_per_token", "value_loss", "ratio_mean", "completion_length"):
        assert math.isfinite(row[name])


def test_a_nan_reward_stops_at_that_very_log(tmp_path):
    def sick(completions, trainer_state, **_):
        return [math.nan if trainer_state.global_step >= 2 else 1.0 for _ in completions]

    callback = PPOMonitoringCallback(on_critical="stop")
    trainer = build(tmp_path, callback, sick)
    trl_ext.train(trainer)
    assert trainer.state.global_step == 3 and (tmp_path / "checkpoint-3").is_dir()
    # tokens that nobody scored are no data: no ratio of 0, and the stop names the root cause
    assert {alert.rule for alert in callback.alerts if alert.severity == "critical"} == {"nonfinite_metric"}
    assert "nonfinite_metric" in callback.summary()["stopped"]


def test_a_reward_that_is_nan_from_the_first_step_stops_there(tmp_path):
    callback = PPOMonitoringCallback(on_critical="stop")
    trainer = build(tmp_path, callback, lambda completions, **_: [math.nan] * len(completions))
    trl_ext.train(trainer)
    assert trainer.state.global_step == 1 and "nonfinite_metric: reward is None" in callback.summary()["stopped"]
