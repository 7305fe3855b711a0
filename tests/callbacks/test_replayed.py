"""What a callback said of a run, `trl-ext replay` says of its folder, whatever options the callback had."""

import json
import math
import random

import pytest

from trl_ext import cli
from trl_ext.callbacks import AnomalyDetectionCallback, PPOMonitoringCallback
from trl_ext.monitor import Finding, Rule, read_alerts


def logs(step):
    noise = random.Random(step)
    return {
        "objective/kl": 3.0 if step < 20 else 12.0, "objective/scores": math.nan if step == 35 else 1.0,
        "my_metric": noise.gauss(0, 1) + (90 if step > 30 else 0), "policy/entropy_avg": 2.0,
    }  # fmt: skip


def too_high(metrics):
    return "too high" if metrics.get("my_metric", 0) > 50 else None


class Mine(Rule):
    name, metrics = "mine", ("reward",)

    def check(self, row):
        return Finding("info", "reward", 1.0, "seen", "nothing")


DECLARED = {"name": "long", "metric": "my_metric", "comparison": ">", "value": 10, "logs": 2, "severity": "error"}
OPTIONS = [
    {},
    {"rules": ["kl_high"]},
    {"rules": [], "watch": {"my_metric": {"z": 6, "severity": "error"}}},
    {"rules": [], "custom_rules": [DECLARED]},
    {"thresholds": {"kl_high.per_sequence_warning": 20}},
    {"preset": "ppo_safe", "warmup_steps": 25, "window": 16, "watch": {"my_metric": None}},
]


def replayed(capsys, *arguments):
    assert cli.main(["replay", *map(str, arguments), "--json"]) == 0
    said = capsys.readouterr()
    return [(a["rule"], a["severity"], a["opened"]) for a in json.loads(said.out)["alerts"]], said.err


@pytest.mark.parametrize("options", OPTIONS)
def test_replay_says_what_the_callback_said(scripted, tmp_path, capsys, options):
    callback = PPOMonitoringCallback(**options)
    scripted(callback, logs, steps=40).train()
    said, notes = replayed(capsys, tmp_path / "run")
    assert said == [(a.rule, a.severity.value, a.opened) for a in callback.alerts] and said
    assert ("options of the run's own monitor" in notes) == bool(options)
    assert read_alerts(tmp_path / "run" / "trl_ext" / "alerts.jsonl")


def test_rules_that_no_file_can_hold_are_named(scripted, tmp_path, capsys):
    callback = AnomalyDetectionCallback(rules=["kl_high", Mine({})], custom_rules=[too_high, DECLARED])
    scripted(callback, logs, steps=40).train()
    assert {alert.rule for alert in callback.alerts} == {"kl_high", "mine", "too_high", "long"}
    said, notes = replayed(capsys, tmp_path / "run")
    assert {rule for rule, *_ in said} == {"kl_high", "long"}
    assert "a file cannot hold them: mine, too_high" in notes


def test_what_the_command_asks_for_comes_first(scripted, tmp_path, capsys):
    scripted(AnomalyDetectionCallback(rules=["kl_high"]), logs, steps=40).train()
    said, notes = replayed(capsys, tmp_path / "run", "--rules", "nonfinite_metric")
    assert said == [("nonfinite_metric", "critical", 35)] and "own monitor" not in notes


@pytest.mark.parametrize("stored", [{"rules": ["gone"]}, {"window": "x"}, {"custom_rules": [3]}, [], {"not_stored": 3}])
def test_stored_options_that_make_no_sense_are_left_out(scripted, tmp_path, capsys, stored):
    scripted(AnomalyDetectionCallback(), logs, steps=40).train()
    path = tmp_path / "run" / "trl_ext" / "facts.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "monitor": stored}))
    said, notes = replayed(capsys, tmp_path / "run")
    assert ("nonfinite_metric", "critical", 35) in said
    assert ("judged without the options" in notes) == bool(stored and "not_stored" not in stored)


def test_each_session_is_replayed_by_its_own_facts(scripted, tmp_path, capsys):
    """A resume with more steps has another schedule; the rows before it followed the first."""
    saving = {"save_strategy": "steps", "save_steps": 8, "learning_rate": 0.1}
    scripted(AnomalyDetectionCallback(rules=["lr_schedule_drift"]), logs, steps=16, **saving).train()
    callback = AnomalyDetectionCallback(rules=["lr_schedule_drift"])
    resumed = scripted(callback, logs, steps=64, **saving)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-8"))
    facts = json.loads((tmp_path / "run" / "trl_ext" / "facts.json").read_text())
    assert (facts["max_steps"], facts["earlier"]["0"]["max_steps"]) == (64, 16)
    said, _ = replayed(capsys, tmp_path / "run")
    assert said == [(alert.rule, str(alert.severity), alert.opened) for alert in callback.alerts]
