"""Alerts and the closing summary in real trackers, read back from what those wrote."""

import json
import logging
import math
from pathlib import Path

import pytest
import rl_trainers
from tracker_files import tensorboard_run, trackio_run, wandb_run
from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback, WandbCallback

from trl_ext.callbacks import AnomalyDetectionCallback, CheckpointHealthCallback, PPOMonitoringCallback
from trl_ext.callbacks._trackers import Trackers
from trl_ext.monitor.alerts import Alert, Severity
from trl_ext.reporting.log_sources import open_log

RULES = ["kl_high", "nonfinite_metric"]


def sick(step):
    """A KL that is too high at steps 3 to 5 and much too high from 6 on, and a NaN at step 8."""
    kl = 1.0 if step < 3 else 40.0 if step < 6 else 400.0
    return {"objective/kl": kl, "reward": math.nan if step == 8 else 0.5 * step, "loss/policy_avg": 0.1}


def expected(callback):
    """(title, start of the text) of each alert, in the order they were told; severities of `alerts.jsonl`."""
    lines = Path(callback.summary()["files"]["alerts"]).read_text().splitlines()
    events = [json.loads(line) for line in lines]
    return [
        (f"[{event['severity']}] {event['rule']}", f"Step {event['step']}: {event['message']}.", event["severity"])
        for event in events
        if event["event"] in ("opened", "raised")
    ]


LEVELS = {"info": "INFO", "warning": "WARN", "error": "ERROR", "critical": "ERROR"}


def told(alerts, callback):
    for (title, text, level), (wanted, start, severity) in zip(alerts, expected(callback), strict=True):
        assert title == wanted and text.startswith(start) and level.upper() == LEVELS[severity]
    assert len({title for title, *_ in alerts}) == len(alerts) >= 2
    return True


def test_wandb_gets_alerts_and_the_summary(scripted, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    callback = PPOMonitoringCallback(rules=RULES)
    scripted(callback, sick, steps=9, report_to="wandb", run_name="x").train()
    run = wandb_run(tmp_path)
    assert told(run["alerts"], callback)
    assert {level for *_, level in run["alerts"]} == {"ERROR"}
    summary, ours = run["summary"], callback.summary()
    assert summary["trl_ext/completed"] is True and summary["trl_ext/steps"] == 9
    for name in ("first", "last", "min", "max", "mean"):
        assert summary[f"trl_ext/metrics/reward/{name}"] == ours["metrics"]["reward"][name]
    assert summary["trl_ext/alerts/critical"] == ours["alert_counts"]["critical"] >= 1
    assert "400 nats" in summary["trl_ext/alert/kl_high"]
    assert [row["train/trl_ext/kl_policy_ratio"] for row in run["history"] if "train/objective/kl" in row][:2] == [
        pytest.approx(10.0)
    ] * 2
    # and what replay reads of that file says the same
    (path,) = tmp_path.rglob("*.wandb")
    assert [row.step for row in open_log(path).rows if "train/objective/kl" in row.logs] == list(range(1, 10))


def test_tensorboard_gets_them_as_text(scripted, tmp_path):
    callback = PPOMonitoringCallback(rules=RULES)
    scripted(callback, sick, steps=9, report_to="tensorboard").train()
    run = tensorboard_run(tmp_path / "run")
    texts = [text for rule in RULES for _, text in run["texts"][f"trl_ext/alerts/{rule}"]]
    assert len(texts) == len(expected(callback))
    for (title, *_), text in zip(
        sorted(expected(callback), key=lambda e: RULES.index(e[0].split()[1])), texts, strict=True
    ):
        assert text.startswith("**" + title.replace("[", r"\[").replace("]", r"\]") + "**: Step ")
    ((step, table),) = run["texts"]["trl_ext/summary"]
    assert step == 9 and "| metrics/reward/first | 0.5 |" in table.splitlines()
    assert [step for step, _ in run["scalars"]["train/trl_ext/alerts_open"]] == list(range(1, 10))


def test_trackio_gets_them(scripted, trackio_folder):
    callback = PPOMonitoringCallback(rules=RULES)
    scripted(callback, sick, steps=9, report_to="trackio", project="p", run_name="x").train()
    run = trackio_run(trackio_folder)
    assert told(run["alerts"], callback)
    ratios = [row["train/trl_ext/kl_policy_ratio"] for row in run["history"] if "train/objective/kl" in row]
    assert len(ratios) == 9 and ratios[0] == pytest.approx(10.0)
    (summary,) = [row["trl_ext/summary"]["_value"] for row in run["history"] if "trl_ext/summary" in row]
    assert {"quantity": "metrics/reward/first", "value": "0.5"} in summary


def test_what_comes_back_soon_is_not_sent_again(scripted, tmp_path):
    """Open at steps 3 to 5, gone, back within ten logs: `reopened`, and no second text."""
    kl = dict.fromkeys((1, 2, 3, 15, 16, 17), 40.0)
    callback = AnomalyDetectionCallback(rules=["kl_high"])
    trainer = scripted(callback, lambda step: {"objective/kl": kl.get(step, 1.0)}, steps=20, report_to="tensorboard")
    trainer.train()
    lines = (tmp_path / "run" / "trl_ext" / "alerts.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["opened", "recovered", "reopened"]
    assert len(tensorboard_run(tmp_path / "run")["texts"]["trl_ext/alerts/kl_high"]) == 1


def test_a_resumed_run_does_not_send_what_it_knew(scripted, tmp_path):
    def logs(step):
        return {"objective/kl": 40.0}

    saving = {"save_strategy": "steps", "save_steps": 4, "report_to": "tensorboard"}
    scripted(AnomalyDetectionCallback(rules=["kl_high"]), logs, steps=4, **saving).train()
    (first,) = (tmp_path / "run").rglob("events.out.tfevents*")
    assert "trl_ext/alerts/kl_high" in tensorboard_run(first.parent)["texts"]
    first.unlink()
    scripted(AnomalyDetectionCallback(rules=["kl_high"]), logs, steps=8, **saving).train(resume_from_checkpoint=True)
    texts = tensorboard_run(tmp_path / "run")["texts"]
    assert "trl_ext/alerts/kl_high" not in texts and "trl_ext/summary" in texts


def test_without_a_tracker_nothing_is_sent(scripted, tmp_path, monkeypatch):
    monkeypatch.setattr(Trackers, "_send", lambda *_: pytest.fail("sent"))
    monkeypatch.setattr("trl_ext.callbacks._sample_tables.latest_completions", lambda _: pytest.fail("looked"))
    callback = PPOMonitoringCallback(rules=RULES)
    scripted(callback, sick, steps=9).train()
    assert callback.alerts
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["trl_ext"]


class Broken(TensorBoardCallback):
    """A tracker whose every call fails, as where the network is gone."""

    def __init__(self):
        self.calls = []
        self.tb_writer = self

    def add_text(self, *_):
        self.calls.append("add_text")
        raise ConnectionError("the network is gone")

    def on_train_begin(self, args, state, control, **_):
        self.calls.append("on_train_begin")

    def on_log(self, args, state, control, **_):
        self.calls.append("on_log")
        raise RuntimeError("nobody listens")

    def on_train_end(self, args, state, control, **_):
        self.calls.append("on_train_end")
        raise RuntimeError("still nobody")


@pytest.mark.parametrize("first", ["alert", "log"])
def test_a_tracker_that_raises_is_one_warning_and_training_goes_on(scripted, caplog, first):
    broken = Broken()
    callback = AnomalyDetectionCallback(rules=RULES)
    logs = (lambda step: {"reward": math.nan}) if first == "alert" else (lambda step: {"reward": 1.0})
    trainer = scripted([broken, callback], logs, steps=6)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert trainer.state.global_step == 6
    assert broken.calls == ["on_train_begin", "add_text" if first == "alert" else "on_log"]
    assert [r.getMessage() for r in caplog.records if "TensorBoard" in r.getMessage()] == [
        f"TensorBoard failed ({'the network is gone' if first == 'alert' else 'nobody listens'}): "
        "no more curves there, training goes on."
    ]
    assert not [r for r in caplog.records if r.name.startswith("trl_ext") and r.levelno >= logging.ERROR
                and r.name != "trl_ext.monitor"]  # fmt: skip


def test_one_tracker_that_raises_leaves_the_others_alone(scripted, tmp_path):
    callback = AnomalyDetectionCallback(rules=RULES)
    trainer = scripted([Broken(), callback], sick, steps=9, report_to="tensorboard")
    trainer.train()
    assert "trl_ext/alerts/kl_high" in tensorboard_run(tmp_path / "run")["texts"]


def test_wandb_that_cannot_begin_is_one_warning(scripted, monkeypatch, caplog):
    import wandb

    def no_network(**_):
        raise wandb.errors.CommError("Run initialization has timed out")

    monkeypatch.setattr(wandb, "init", no_network)
    trainer = scripted(AnomalyDetectionCallback(rules=RULES), sick, steps=4, report_to="wandb")
    trainer.train()
    assert trainer.state.global_step == 4
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and "Wandb" in r.getMessage()] == [
        "Wandb failed (Run initialization has timed out): no more curves there, training goes on."
    ]


def test_a_tracker_that_cannot_begin_is_not_asked_by_trl_either(tmp_path, trackio_folder, monkeypatch):
    """GRPO sends timings and completions by itself, and without a run `trackio.log` raises."""
    import trackio

    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trackio, "init", full)
    trainer = rl_trainers.grpo(
        tmp_path, [lambda completions, **_: [1.0] * len(completions)], AnomalyDetectionCallback(),
        report_to=["trackio", "tensorboard"], log_completions=True,
    )  # fmt: skip
    trainer.train()
    assert trainer.state.global_step == 4 and trainer.args.report_to == ["tensorboard"]
    assert len(tensorboard_run(tmp_path)["scalars"]["train/reward"]) == 4


def test_each_severity_has_a_level_of_wandb():
    class Heard(WandbCallback):
        def __init__(self):
            self.sent = []
            self._wandb = type("wandb", (), {"run": 1, "alert": lambda title, text, level: self.sent.append(level)})

    heard = Heard()
    trackers = Trackers([heard, TrainerCallback()])
    for severity in Severity:
        alert = Alert(step=1, rule=f"r-{severity}", severity=severity, metric="", value=0.0, message="m", advice="")
        trackers.alert(alert)
        trackers.alert(alert.copy())  # said once
        alert.closed = 2
        trackers.alert(alert)
    assert heard.sent == ["INFO", "WARN", "ERROR", "ERROR"]


def test_alerts_about_checkpoints_arrive_too(scripted, tmp_path):
    def script(step):
        if step == 2:
            trainer.model.weight.data.fill_(math.nan)
        return {}

    callback = CheckpointHealthCallback()
    trainer = scripted(callback, script, steps=4, report_to="tensorboard", save_strategy="steps", save_steps=3)
    trainer.train()
    texts = tensorboard_run(tmp_path / "run")["texts"]
    assert any("nonfinite" in text for _, text in texts["trl_ext/alerts/nonfinite_weights"])
