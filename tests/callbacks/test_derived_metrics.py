"""What the monitor derives, in the logs of real trackers, in its own files and in its summary."""

import json
import math
import time

import numpy as np
import pytest
from transformers import TrainerCallback

from trl_ext.callbacks import AnomalyDetectionCallback, PPOMonitoringCallback
from trl_ext.callbacks._ppo_view import PPOView
from trl_ext.monitor import read_metrics

LOSSES = [0.02, -0.04, 0.06, -0.01, 0.03]  # of the policy, by step
MEAN_SIZES = [0.02, 0.03, 0.04, 0.0325, 0.032]


def ppo_logs(step):
    return {"objective/kl": 2.0 * step, "loss/policy_avg": LOSSES[step - 1], "loss/value_avg": 0.5, "reward": step / 2}


def curves(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (path,) = folder.rglob("events.out.tfevents*")
    events = EventAccumulator(str(path))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_receives_them(scripted, tmp_path):
    trainer = scripted(PPOMonitoringCallback(rules=["kl_high"]), ppo_logs, steps=5, report_to="tensorboard")
    trainer.train()
    seen = curves(tmp_path / "run")
    expected = [(step, pytest.approx(2.0 * step / MEAN_SIZES[step - 1])) for step in range(1, 6)]
    assert seen["train/trl_ext/kl_policy_ratio"] == expected
    assert [value for _, value in seen["train/trl_ext/value_policy_ratio"]] == pytest.approx(0.5 / np.array(MEAN_SIZES))
    assert all(value > 10 for _, value in seen["train/trl_ext/system/rss_mb"])
    assert seen["train/trl_ext/alerts_open"] == [(step, 0.0) for step in range(1, 6)]
    assert [value for _, value in seen["train/objective/kl"]] == [2.0, 4.0, 6.0, 8.0, 10.0]


def test_wandb_receives_them(scripted, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    import wandb

    trainer = scripted(PPOMonitoringCallback(rules=["kl_high"]), ppo_logs, steps=3, report_to="wandb", run_name="x")
    trainer.train()
    assert wandb.run.summary["train/trl_ext/kl_policy_ratio"] == pytest.approx(6.0 / 0.04)
    wandb.finish()
    end = time.monotonic() + 30  # another process writes the file, and may still do so
    while sum(path.read_bytes().count(b"train/trl_ext/value_policy_ratio") for path in tmp_path.rglob("*.wandb")) < 3:
        assert time.monotonic() < end
        time.sleep(0.1)


def test_the_files_hold_them_under_plain_names(scripted, tmp_path):
    scripted(PPOMonitoringCallback(rules=["kl_high"]), ppo_logs, steps=3).train()
    row = read_metrics(tmp_path / "run" / "trl_ext" / "metrics.jsonl")[1]
    assert row["kl_policy_ratio"] == pytest.approx(4.0 / 0.03) and row["system/vms_mb"] >= row["system/rss_mb"]
    assert not any(key.startswith("trl_ext") for key in row)


def test_nothing_of_the_trainers_own_changes(scripted):
    trainer = scripted(PPOMonitoringCallback(), lambda step: {"trl_ext/alerts_open": -1.0, "reward": 1.0}, steps=2)
    seen = []
    trainer.add_callback(Keeper(seen))
    trainer.train()
    assert [logs["trl_ext/alerts_open"] for logs in seen[:2]] == [-1.0, -1.0]
    assert not any("system" in key for logs in trainer.state.log_history for key in logs)


def test_evaluations_and_the_closing_log_stay_as_they_are(scripted):
    trainer = scripted(PPOMonitoringCallback(), steps=2)
    trainer.eval_dataset = trainer.train_dataset[:4]
    output = trainer.train()
    evaluated = trainer.evaluate()
    assert "eval_loss" in evaluated and "train_loss" in output.metrics
    assert not any(key.startswith("trl_ext") for key in {**output.metrics, **evaluated})


def test_open_alerts_are_counted_by_severity(scripted):
    seen = []
    kl = {1: 40.0, 2: 40.0, 3: 40.0}
    callback = AnomalyDetectionCallback(rules=["kl_high"])
    trainer = scripted(callback, lambda step: {"objective/kl": kl.get(step, 1.0)}, steps=14)
    trainer.add_callback(Keeper(seen))
    trainer.train()
    assert [logs["trl_ext/alerts_open"] for logs in seen[:14]] == [0, 0, *[1] * 10, 0, 0]
    assert [logs.get("trl_ext/alerts_open/error") for logs in seen[:14]] == [None, None, *[1] * 10, 0, 0]
    assert not any("ratio" in key for logs in seen for key in logs)  # the PPO view is the other callback's


def test_a_rule_of_the_user_sees_them(scripted):
    rule = {"metric": "kl_policy_ratio", "comparison": ">", "value": 100, "logs": 1}
    memory = []
    callback = PPOMonitoringCallback(rules=[], custom_rules=[rule, lambda m: memory.append(m.get("system/rss_mb"))])
    scripted(callback, ppo_logs, steps=3).train()
    assert callback.alerts[0].metric == "kl_policy_ratio" and memory[0] > 10


class Keeper(TrainerCallback):
    def __init__(self, seen):
        self.seen = seen

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.seen.append(dict(logs))


# --- the PPO view against NumPy


def derived(logs):
    return PPOView(8).derive(logs, tuple(logs))


def test_the_policy_loss_is_averaged_over_the_window():
    view, rng = PPOView(8), np.random.default_rng(0)
    losses = rng.normal(size=50)
    mean = None
    for n, loss in enumerate(losses, start=1):
        mean = abs(loss) if mean is None else mean + (abs(loss) - mean) / min(n, 8)
        got = view.derive(logs := {"loss/policy_avg": float(loss), "loss/value_avg": 3.0}, tuple(logs))
        assert got == {"value_policy_ratio": pytest.approx(3.0 / mean)}
        if n == 8:
            assert mean == pytest.approx(np.abs(losses[:8]).mean())


@pytest.mark.parametrize("loss", [0.0, math.nan, None, "x", 10**400])
def test_without_a_policy_loss_there_is_no_ratio(loss):
    assert derived({"loss/policy_avg": loss, "loss/value_avg": 3.0, "kl": 1.0}) == {}


def test_the_kl_is_that_of_the_sequence_where_both_are_logged():
    logs = {"kl": 0.5, "objective/kl": 8.0, "loss/policy_avg": 2.0}
    assert derived(logs) == {"kl_policy_ratio": 4.0}
    assert derived({"kl": 0.5, "policy_loss": -2.0}) == {"kl_policy_ratio": 0.25}


def test_trends_are_slopes_of_a_line_fitted_to_the_window():
    view, rng = PPOView(16), np.random.default_rng(1)
    values = rng.normal(size=40) + 0.3 * np.arange(40)
    logged = []
    for step, value in enumerate(values):
        logged.append(view.derive({}, ()).get("trend/reward"))
        view.add(step, None, {"reward": value, **({"kl_per_token": value} if step % 2 else {})})
    expected = np.polyfit(np.arange(16), values[-16:], 1)[0]
    assert view.trends()["reward"] == pytest.approx(expected)
    assert view.trends()["kl_per_token"] == pytest.approx(np.polyfit(np.arange(8), values[25::2], 1)[0])
    assert [i for i, slope in enumerate(logged) if slope is not None] == list(range(4, 40, 4))
    assert logged[36] == pytest.approx(np.polyfit(np.arange(16), values[20:36], 1)[0])


def test_the_last_epochs_are_kept():
    view = PPOView(8)
    for step in range(1, 71):
        view.add(step, step / 10, {"reward": float(step), "mine": 1.0})
    epochs = view.epochs()
    assert [epoch["epoch"] for epoch in epochs] == [3, 4, 5, 6, 7]
    assert epochs[0] == {"epoch": 3, "logs": 10, "metrics": {"reward": {"mean": 25.5, "min": 21.0, "max": 30.0}}}


def test_the_view_survives_a_resume():
    whole, first, second = PPOView(8), PPOView(8), PPOView(8)
    for step in range(1, 31):
        logs, metrics = {"policy_loss": step / 7, "kl": 1.0}, {"reward": float(step)}
        part = first if step <= 17 else second
        if step == 18:
            second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        ours, theirs = part.derive(logs, tuple(logs)), whole.derive(logs, tuple(logs))
        assert {k: v for k, v in ours.items() if "ratio" in k} == {k: v for k, v in theirs.items() if "ratio" in k}
        for view in (whole, part):
            view.add(step, step / 10, metrics)
    assert second.epochs() == whole.epochs()


def test_the_history_is_bounded_and_has_canonical_names(scripted):
    callback = AnomalyDetectionCallback(rules=["kl_high"], history_size=3, log_system_metrics=False)
    scripted(callback, lambda step: {"objective/kl": 0.5 * step, "entropy": math.nan}, steps=6).train()
    history = callback.get_metrics_history()
    assert [log["step"] for log in history] == [5, 6, 6]  # the last is the closing log
    assert history[0]["kl_per_sequence"] == 2.5 and "entropy_per_token" not in history[0]
