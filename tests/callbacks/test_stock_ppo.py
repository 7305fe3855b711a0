"""Stock PPO of TRL 1.12, which logs before the end of a step and ignores `control.should_training_stop`."""

import copy
import json
import math

import pytest
from transformers import PrinterCallback

from trl_ext.callbacks import PPOMonitoringCallback, TrainingStopped
from trl_ext.callbacks.stopping import ignores_control
from trl_ext.monitor import read_metrics
from trl_ext.monitor.metrics import KEY_MAP

# A random policy never ends a completion, and the monitor says so
TRUE_OF_A_RANDOM_POLICY = {"all_truncated", "eos_missing"}

pytestmark = pytest.mark.stock_ppo


@pytest.fixture
def stock_ppo(tmp_path):
    """`stock_ppo(callback, nan_from=None)`: five updates; from that update on the reward model returns NaN."""
    from datasets import Dataset
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    from trl_ext.tiny import byte_tokenizer, random_policy, random_scorer

    def build(callback, nan_from=None, **arguments):
        tokenizer, policy, scorer = byte_tokenizer(), random_policy(), random_scorer(1)
        score, calls = scorer.score.forward, []

        def counted(hidden):
            calls.append(1)  # the reward model is called once an update
            return score(hidden) * (math.nan if nan_from and len(calls) >= nan_from else 1.0)

        scorer.score.forward = counted
        prompts = Dataset.from_dict(
            {"input_ids": [tokenizer(text)["input_ids"] for text in ("say yes", "sum 2 3")] * 20}
        )
        options = {
            "per_device_train_batch_size": 8, "num_ppo_epochs": 1, "num_mini_batches": 1, "total_episodes": 40,
            "response_length": 6, "local_rollout_forward_batch_size": 8, "num_sample_generations": 0, "bf16": False,
            "save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True, **arguments,
        }  # fmt: skip
        trainer = PPOTrainer(
            PPOConfig(str(tmp_path / "run"), **options), tokenizer, policy, copy.deepcopy(policy), scorer, prompts,
            value_model=random_scorer(2), callbacks=[callback] if callback else None,
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        return trainer

    return build


def test_a_healthy_run_is_silent_and_every_key_is_known(stock_ppo, tmp_path):
    callback = PPOMonitoringCallback(on_critical="stop", warmup_steps=0)
    trainer = stock_ppo(callback)
    trainer.train()
    assert trainer.state.global_step == 5
    assert {alert.rule for alert in callback.alerts} <= TRUE_OF_A_RANDOM_POLICY
    rows = read_metrics(tmp_path / "run" / "trl_ext" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert all(math.isnan(row["val/ratio_var"]) for row in rows)  # healthy: the variance of one number
    assert set(trainer.state.log_history[0]) - {"step"} <= set(KEY_MAP)
    summary = json.loads((tmp_path / "run" / "trl_ext" / "summary.json").read_text())
    assert summary["completed"] and summary["metrics"]["kl_per_sequence"]["logs"] == 5


def test_a_nan_reward_stops_at_that_very_log_with_a_checkpoint(stock_ppo, tmp_path):
    callback = PPOMonitoringCallback(on_critical="stop")
    trainer = stock_ppo(callback, nan_from=3)
    with pytest.raises(TrainingStopped, match="nonfinite_metric: reward is nan"):
        trainer.train()
    assert trainer.state.global_step == 3
    checkpoint = tmp_path / "run" / "checkpoint-3"
    assert (checkpoint / "model.safetensors").is_file() and (checkpoint / "trl_ext_monitor.json").is_file()
    summary = json.loads((tmp_path / "run" / "trl_ext" / "summary.json").read_text())
    assert not summary["completed"] and "step 3" in summary["stopped"]


def test_without_the_stop_it_dies_in_the_next_generation(stock_ppo):
    """Why the stop cannot wait: the fact this callback rests on."""
    trainer = stock_ppo(PPOMonitoringCallback(), nan_from=3)
    with pytest.raises(RuntimeError, match="probability tensor"):
        trainer.train()
    assert trainer.state.global_step == 3


def test_a_callback_added_after_the_trainer_was_built_can_save(stock_ppo, tmp_path):
    trainer = stock_ppo(None, save_strategy="steps", save_steps=2, total_episodes=16)
    trainer.add_callback(PPOMonitoringCallback())
    trainer.train()
    assert (tmp_path / "run" / "checkpoint-2" / "trl_ext_monitor.json").is_file()


def test_stock_ppo_is_told_by_its_state(stock_ppo):
    from transformers import TrainerState

    assert ignores_control(stock_ppo(None).state)
    assert not ignores_control(TrainerState())
