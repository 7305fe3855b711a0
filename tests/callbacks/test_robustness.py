"""Whatever is logged, however the process dies, whatever the disk does: training goes on, and the files stay whole."""

import copy
import json
import math
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import TrainerControl, TrainerState, TrainingArguments

from trl_ext.callbacks import AnomalyDetectionCallback, BestCheckpointCallback, PPOMonitoringCallback
from trl_ext.callbacks._run import MonitoredRun
from trl_ext.monitor import Finding, Rule, Verdict, read_alerts, read_metrics

ROOT = Path(__file__).parents[2]
KEYS = ["reward", "kl", "objective/kl", "entropy", "loss", "grad_norm", "val/ratio", "loss/value_avg", "epoch",
        "loss/policy_avg", "rewards/f/mean", "eval_loss", "train_loss", "trl_ext/alerts_open", "%", 3]  # fmt: skip
VALUES = st.one_of(
    st.none(), st.booleans(), st.text(max_size=5), st.floats(), st.integers(), st.just(10**5000),
    st.sampled_from([np.float32(0.5), np.int64(3), np.float64("nan"), np.bool_(True), np.array([1.0]), np.ones(3),
                     torch.tensor(0.5), torch.tensor([2]), torch.ones(2), torch.tensor(float("inf")),
                     torch.tensor(True), 1j, [1.0], {"a": 1}, object()]),
)  # fmt: skip


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


@settings(max_examples=60)
@given(sequence=st.lists(st.dictionaries(st.sampled_from(KEYS), VALUES), max_size=8))
def test_no_sequence_of_logs_raises_or_changes_what_was_logged(tmp_path_factory, sequence):
    args = TrainingArguments(str(tmp_path_factory.mktemp("run")), report_to="none", use_cpu=True)
    state, control = TrainerState(max_steps=10, epoch=0.0), TrainerControl()
    callbacks = [
        PPOMonitoringCallback(warmup_steps=0, log_system_metrics=False, on_critical="stop"),
        AnomalyDetectionCallback(output_dir=args.output_dir, log_system_metrics=False, watch={"reward": 1}),
        BestCheckpointCallback("reward", patience=2),
    ]
    reported = []
    for callback in callbacks:
        callback.on_train_begin(args, state, control)
    for step, logs in enumerate(sequence, start=1):
        state.global_step, state.epoch = step, step / 3
        before = dict(logs)
        for callback in callbacks:
            assert callback.on_log(args, state, control, logs=logs) is control
            callback.on_step_end(args, state, control)
        assert list(logs)[: len(before)] == list(before)
        assert all(logs[key] is value for key, value in before.items())
        assert all(str(key).startswith("trl_ext/") for key in list(logs)[len(before) :])
    for callback in callbacks:
        json.dumps(callback.state())
        reported += [name for name in vars(callback) if name.startswith("_reported")]
        callback.on_train_end(args, state, control)
    assert reported == []  # nothing raised inside either
    text = Path(args.output_dir, "trl_ext", "metrics.jsonl").read_text()
    assert [json.loads(line, parse_constant=refuse)["step"] for line in text.splitlines()] == [
        step for step, logs in enumerate(sequence, start=1)
    ]


def test_logs_may_be_empty_missing_or_not_to_be_changed(scripted):
    callback = PPOMonitoringCallback(log_system_metrics=False)
    trainer = scripted(callback)
    callback.on_train_begin(trainer.args, trainer.state, trainer.control)
    from types import MappingProxyType

    for logs in ({}, None, MappingProxyType({"reward": 1.0})):
        callback.on_log(trainer.args, trainer.state, trainer.control, logs=logs)
    assert callback.summary()["metrics"]["reward"]["last"] == 1.0


KILLED = """
import os, signal, sys
sys.path.insert(0, {root!r})
import torch
from tests.callbacks.conftest import ScriptedTrainer, OneNumber
from transformers import TrainingArguments
from trl_ext.callbacks import PPOMonitoringCallback
from trl_ext.monitor.files import LineFile

append = LineFile.append
def torn(self, line):
    if '"step":7,' in line and self._path.name == "metrics.jsonl":
        self._file.write(line[:40].encode())  # half a line is on disk when the process dies
        os.kill(os.getpid(), signal.SIGKILL)
    append(self, line)
LineFile.append = torn

args = TrainingArguments({folder!r}, max_steps=12, logging_steps=1, report_to="none", use_cpu=True, save_steps=4,
                         disable_tqdm=True, per_device_train_batch_size=2)
data = [{{"x": torch.ones(1), "labels": torch.ones(1)}}] * 64
trainer = ScriptedTrainer(OneNumber(), args, train_dataset=data, callbacks=[PPOMonitoringCallback(rules=["kl_high"])])
trainer.script = lambda step: {{"objective/kl": 12.0}}
trainer.train()
"""


@pytest.mark.current_trl  # a process of its own, in one lane
def test_killed_in_the_middle_of_a_line_it_resumes_whole(scripted, tmp_path):
    script = KILLED.format(root=str(ROOT), folder=str(tmp_path / "run"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    folder = tmp_path / "run" / "trl_ext"
    assert not (folder / "metrics.jsonl").read_text().endswith("\n")
    callback = PPOMonitoringCallback(rules=["kl_high"])
    trainer = scripted(callback, lambda step: {"objective/kl": 12.0}, steps=12, save_strategy="steps", save_steps=4)
    trainer.train(resume_from_checkpoint=True)
    assert [(alert.opened, alert.evidence["logs"]) for alert in callback.alerts] == [(3, 10)]
    events = [json.loads(line) for line in (folder / "alerts.jsonl").read_text().splitlines()]
    assert [(event["event"], event["step"]) for event in events] == [("opened", 3)]
    assert len(read_alerts(folder / "alerts.jsonl")) == 1
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if "kl_per_sequence" in row]
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert json.loads((folder / "summary.json").read_text())["metrics"]["kl_per_sequence"]["logs"] == 12


@pytest.mark.parametrize("where", ["metrics.jsonl", "alerts.jsonl", "summary.json", "trl_ext_monitor.json"])
def test_a_full_disk_is_one_warning_and_training_goes_on(scripted, tmp_path, caplog, monkeypatch, where):
    if where in ("summary.json", "trl_ext_monitor.json"):
        replace = os.replace

        def no_space(source, target):
            if str(target).endswith(where):
                raise OSError(28, "No space left on device")
            replace(source, target)

        monkeypatch.setattr("os.replace", no_space)
    else:
        if not os.path.exists("/dev/full"):
            pytest.skip("needs /dev/full, which Linux has")
        (tmp_path / "run" / "trl_ext").mkdir(parents=True)
        (tmp_path / "run" / "trl_ext" / where).symlink_to("/dev/full")
    callback = PPOMonitoringCallback(rules=["kl_high"], log_system_metrics=False)
    trainer = scripted(callback, lambda step: {"objective/kl": 40.0 if step % 9 < 4 else 1.0}, steps=20,
                       save_strategy="steps", save_steps=2)  # fmt: skip
    trainer.train()
    assert trainer.state.global_step == 20 and callback.alerts
    warnings = [record for record in caplog.records if "No space left" in record.getMessage()]
    assert len(warnings) == 1


DAMAGES = (
    "", '{"step": 2, "sl', "[]", '{"step": 2, "slot": 1}', '{"step": 2, "slot": 1, "engine": {}, "totals": "x"}',
    '{"step": 2, "slot": 1, "engine": {"logs": "many", "rules": {}, "alerts": [], "healthy_logs": {}}, "totals": {}}',
)  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("copy_is_there", [True, False])
def test_a_damaged_state_file_never_switches_the_monitor_off(scripted, tmp_path, damage, copy_is_there):
    """The copy in `trainer_state.json` takes its place; without one the monitor starts afresh."""
    saving = {"save_strategy": "steps", "save_steps": 2}

    def script(step):
        return {"objective/kl": 40.0}

    scripted(PPOMonitoringCallback(rules=["kl_high"]), script, steps=2, **saving).train()
    checkpoint = tmp_path / "run" / "checkpoint-2"
    (checkpoint / "trl_ext_monitor.json").write_text(damage)
    if not copy_is_there:
        state = json.loads((checkpoint / "trainer_state.json").read_text())
        del state["stateful_callbacks"]["PPOMonitoringCallback"]
        (checkpoint / "trainer_state.json").write_text(json.dumps(state))
    callback = PPOMonitoringCallback(rules=["kl_high"])
    trainer = scripted(callback, script, steps=6, **saving)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    assert trainer.state.global_step == 6
    assert [alert.opened for alert in callback.alerts] == [3 if copy_is_there else 5]  # the third log in a row
    steps = [row["step"] for row in read_metrics(tmp_path / "run" / "trl_ext" / "metrics.jsonl")]
    assert [step for step in steps if step > 2][:4] == [3, 4, 5, 6]


def test_zero_and_sharded_models_are_left_alone(scripted):
    class Untouchable:
        def __getattr__(self, name):
            if name in ("config", "module", "policy"):
                raise AttributeError(name)
            raise AssertionError(f"{name} of the model was touched")

    callback = PPOMonitoringCallback(log_system_metrics=False)
    trainer = scripted(callback)
    event = {"model": Untouchable(), "optimizer": SimpleNamespace(), "processing_class": None, "train_dataloader": None}
    callback.on_train_begin(trainer.args, trainer.state, trainer.control, **event)
    callback.on_log(trainer.args, trainer.state, trainer.control, logs={"loss": math.pi}, **event)
    callback.on_save(trainer.args, trainer.state, trainer.control, **event)
    callback.on_train_end(trainer.args, trainer.state, trainer.control, **event)
    assert callback.summary()["logs"] == 1


def test_what_is_done_to_an_alert_is_not_done_to_the_monitor(scripted, tmp_path):
    def spoil(alert):
        alert.severity = alert.evidence = alert.message = None

    callback = PPOMonitoringCallback(rules=["kl_high"], on_alert=spoil)
    scripted(callback, lambda step: {"objective/kl": 50.0}).train()
    callback.alerts[0].rule = "another"
    assert [(alert.rule, str(alert.severity)) for alert in callback.alerts] == [("kl_high", "error")]
    assert json.loads((tmp_path / "run/trl_ext/summary.json").read_text())["alert_counts"]["error"] == 1


def test_the_summary_of_a_run_that_raised_knows_its_alerts(scripted, tmp_path):
    """The callback is still there, as in a notebook, so that nothing else has said that the run is over."""

    def script(step):
        if step == 5:
            raise RuntimeError("out of memory")
        return {"objective/kl": 50.0}

    callback = PPOMonitoringCallback(rules=["kl_high"])
    with pytest.raises(RuntimeError, match="out of memory"):
        scripted(callback, script).train()
    summary = json.loads((tmp_path / "run/trl_ext/summary.json").read_text())
    assert (summary["completed"], summary["logs"], summary["alert_counts"]["error"]) == (False, 3, 1)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda callback: pickle.loads(pickle.dumps(callback))])
def test_a_copy_is_a_monitor_with_the_same_options_before_any_run(scripted, copied):
    callback = PPOMonitoringCallback(rules=["kl_high"], thresholds={"kl_high.logs": 1})
    scripted(callback, lambda step: {"objective/kl": 50.0}).train()
    other = copied(callback)
    assert (other.alerts, other.get_metrics_history()) == ([], [])
    scripted(other, lambda step: {"objective/kl": 50.0}).train()
    assert [alert.opened for alert in other.alerts] == [alert.opened for alert in callback.alerts] == [1]


def test_what_comes_back_within_a_few_logs_is_written_and_not_said_again(scripted, tmp_path, caplog):
    values = [40.0] * 4 + [1.0] * 10 + [40.0] * 4
    callback = PPOMonitoringCallback(rules=["kl_high"])
    scripted(callback, lambda step: {"objective/kl": values[step - 1]}, steps=len(values)).train()
    events = [json.loads(line)["event"] for line in (tmp_path / "run/trl_ext/alerts.jsonl").read_text().splitlines()]
    assert events == ["opened", "recovered", "reopened"]
    assert sum("kl_high" in record.getMessage() for record in caplog.records if record.levelname == "ERROR") == 1


FINDINGS = [
    {"value": np.float32(9), "evidence": {"a": np.int64(1), "b": torch.tensor(2.5), "c": {1}, "d": [np.float64(0.5)]}},
    {"value": torch.tensor(9), "evidence": None},
    {"value": np.float64("inf"), "evidence": {1: object(), "x": np.ones(3)}},
]


@pytest.mark.parametrize("parts", FINDINGS)
def test_what_a_user_puts_into_a_finding_can_be_written(scripted, tmp_path, parts):
    def mine(metrics):
        return Finding("error", "kl", parts["value"], "high", "lower it", parts["evidence"])

    callback = PPOMonitoringCallback(custom_rules=[mine], rules=[])
    scripted(callback, save_strategy="steps", save_steps=2).train()
    (alert,) = read_alerts(tmp_path / "run" / "trl_ext" / "alerts.jsonl")
    assert alert.rule == "mine" and len(read_metrics(tmp_path / "run" / "trl_ext" / "metrics.jsonl")) == 7
    state = json.loads((tmp_path / "run" / "checkpoint-4" / "trl_ext_monitor.json").read_text(), parse_constant=refuse)
    assert [kept["rule"] for kept in state["engine"]["alerts"]] == ["mine"]


@pytest.mark.parametrize("wrong", [{"message": 5}, {"value": None}, {"value": "x"}])
def test_a_finding_that_is_none_switches_its_rule_off(scripted, wrong, caplog):
    parts = {"severity": "error", "metric": "kl", "value": 1.0, "message": "m", "advice": "a", **wrong}
    callback = PPOMonitoringCallback(custom_rules=[lambda metrics: Finding(**parts)], rules=[])
    trainer = scripted(callback, save_strategy="steps", save_steps=2)
    trainer.train()
    assert trainer.state.global_step == 6 and callback.alerts == []
    assert sum("failed and is off" in record.getMessage() for record in caplog.records) == 1


class StatefulRule(Rule):
    name = "stateful"
    kept: object = np.float32(1.5)

    def check(self, row):
        return Verdict.HEALTHY

    def state_dict(self):
        if self.kept is None:
            raise RuntimeError("no state")
        return {"kept": self.kept}

    def load_state_dict(self, state):
        self.kept = state["kept"]


@pytest.mark.parametrize("kept", [np.float32(1.5), None])
def test_a_state_that_json_cannot_hold_ends_no_run(scripted, tmp_path, kept):
    rule = StatefulRule({})
    rule.kept = kept
    trainer = scripted(PPOMonitoringCallback(rules=["kl_high", rule]), save_strategy="steps", save_steps=2)
    trainer.train()
    state = json.loads((tmp_path / "run" / "checkpoint-4" / "trl_ext_monitor.json").read_text())
    assert state["engine"]["rules"].get("stateful") == (None if kept is None else {"kept": 1.5})


def test_a_monitor_that_fails_to_give_its_state_ends_no_run(scripted, monkeypatch):
    monkeypatch.setattr(MonitoredRun, "state_dict", lambda self, step: 1 / 0)
    trainer = scripted(PPOMonitoringCallback(), save_strategy="steps", save_steps=2)
    trainer.train()
    assert trainer.state.global_step == 6


class Tagged(PPOMonitoringCallback):
    def __init__(self, tag):
        super().__init__(rules=["kl_high"])
        self.tag = tag


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda callback: pickle.loads(pickle.dumps(callback))])
def test_a_copy_of_a_subclass_keeps_what_is_its_own(scripted, copied):
    callback = Tagged("mine")
    scripted(callback, lambda step: {"objective/kl": 50.0}).train()
    other = copied(callback)
    assert (type(other), other.tag, other.alerts) == (Tagged, "mine", [])
