"""Stock PPO of TRL 1.12, which logs before the end of a step and ignores `control.should_training_stop`."""

import copy
import json
import math

import pytest
import torch
from transformers import PrinterCallback, TrainerCallback

from trl_ext.callbacks import BestCheckpointCallback, PPOMonitoringCallback, TimeBudgetCallback, TrainingStopped
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
    with pytest.raises(TrainingStopped, match="nonfinite_metric: objective/scores is nan"):
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


def test_the_best_policy_is_restored_and_patience_stops(stock_ppo, tmp_path):
    seen = {}

    class Scripted(TrainerCallback):
        """Ahead of the callback under test: writes the reward, and remembers the policy."""

        def on_log(self, args, state, control, logs=None, model=None, **kwargs):
            logs["reward"] = {1: 1.0, 2: 3.0}.get(state.global_step, 2.0)
            seen[state.global_step] = [p.detach().clone() for p in model.policy.parameters()]

    callback = BestCheckpointCallback("reward", patience=2)
    trainer = stock_ppo(None, learning_rate=0.1)
    trainer.add_callback(Scripted())
    trainer.add_callback(callback)
    with pytest.raises(TrainingStopped, match="2 values of reward in a row"):
        trainer.train()
    assert callback.best["step"] == 2 and trainer.state.global_step == 4
    now = list(trainer.model.policy.parameters())
    assert all(torch.equal(a, b) for a, b in zip(now, seen[2], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(now, seen[4], strict=True))


def test_a_time_budget_stops_it_and_the_monitor_behind_still_writes_its_state(stock_ppo, tmp_path, monkeypatch):
    budget, monitor = TimeBudgetCallback(seconds=3600), PPOMonitoringCallback()
    trainer = stock_ppo(budget)
    trainer.add_callback(monitor)
    monkeypatch.setattr(budget, "_end", 0.0)
    with pytest.raises(TrainingStopped, match="seconds are left"):
        trainer.train()
    assert trainer.state.global_step == 1
    assert (tmp_path / "run" / "checkpoint-1" / "trl_ext_monitor.json").is_file()


def test_the_trackers_receive_what_the_monitor_derives(stock_ppo, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    stock_ppo(PPOMonitoringCallback(), total_episodes=16, report_to="tensorboard").train()
    (path,) = (tmp_path / "run").rglob("events.out.tfevents*")
    events = EventAccumulator(str(path))
    events.Reload()
    ratios = [event.value for event in events.Scalars("train/trl_ext/value_policy_ratio")]
    rows = read_metrics(tmp_path / "run" / "trl_ext" / "metrics.jsonl")
    assert ratios == pytest.approx([row["value_policy_ratio"] for row in rows], rel=1e-6) and len(ratios) == 2
