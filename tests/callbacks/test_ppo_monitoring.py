"""The callback in a real Transformers trainer: files, stopping, resuming, and faults of its own."""

import gc
import json
import logging
import math
import os
import shutil
from pathlib import Path

import pytest

from trl_ext.callbacks import AnomalyDetectionCallback, PPOMonitoringCallback
from trl_ext.errors import UserError
from trl_ext.monitor import Finding, Rule, read_alerts, read_metrics
from trl_ext.monitor.statistics import Streak

KL = ["kl_high"]  # where a test is about the callback, one rule whose verdict is plain
HEALTHY = {"objective/kl": 3.0, "objective/scores": 1.0, "policy/entropy_avg": 2.0}


def nan_reward_at(step):
    return lambda now: {**HEALTHY, "objective/scores": math.nan if now >= step else 1.0}


def kl_from(step):
    return lambda now: {**HEALTHY, "objective/kl": 12.0 if now >= step else 3.0}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_healthy_run_leaves_its_metrics_a_summary_and_no_alert(scripted, tmp_path):
    callback = PPOMonitoringCallback()
    scripted(callback, lambda step: {**HEALTHY, "objective/scores": float(step)}).train()
    folder = tmp_path / "run" / "trl_ext"
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in rows if "reward" in row] == [1, 2, 3, 4, 5, 6]
    assert all(row["system/rss_mb"] > 10 for row in rows if "reward" in row)
    assert {row["kl_per_sequence"] for row in rows if "reward" in row} == {3.0}
    assert (folder / "alerts.jsonl").read_text() == ""
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["completed"] and summary["stopped"] is None and summary["alerts"] == []
    assert summary["metrics"]["reward"] == {"first": 1.0, "last": 6.0, "min": 1.0, "max": 6.0, "mean": 3.5, "logs": 6}
    assert summary["files"]["metrics"] == str(folder / "metrics.jsonl")
    assert callback.alerts == []
    assert callback.summary()["metrics"] == summary["metrics"]


def test_options_reach_where_they_belong(scripted, tmp_path):
    callback = PPOMonitoringCallback(
        output_dir=tmp_path / "elsewhere", rules=["kl_high"], thresholds={"kl_high.logs": 1}, log_system_metrics=False
    )
    scripted(callback, lambda step: {"objective/kl": 11.0, "objective/scores": math.nan}, steps=2).train()
    assert [(alert.rule, alert.opened) for alert in callback.alerts] == [("kl_high", 1)]
    assert "system/rss_mb" not in lines(tmp_path / "elsewhere" / "metrics.jsonl")[0]


def test_thresholds_from_yaml(scripted, tmp_path):
    path = tmp_path / "thresholds.yaml"
    path.write_text("kl_high:\n  logs: 1\nratio_out_of_band.logs: 4\n")
    callback = PPOMonitoringCallback(rules=["kl_high"], thresholds=path)
    scripted(callback, lambda step: {"objective/kl": 12.0}, steps=2).train()
    assert [(alert.rule, alert.opened) for alert in callback.alerts] == [("kl_high", 1)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_critical": "stopp"}, "did you mean 'stop'"),
        ({"rules": ["kl_hihg"]}, "did you mean 'kl_high'"),
        ({"thresholds": {"kl_high.log": 3}}, "did you mean"),
        ({"thresholds": "no_such_file.yaml"}, "no_such_file"),
        ({"thresholds": 3}, "mapping"),
        ({"window": 1}, "window"),
        ({"on_alert": "print"}, "on_alert"),
        ({"output_dir": 3}, "output_dir"),
        ({"history_size": 0}, "history_size"),
        ({"log_system_metrics": "no"}, "log_system_metrics must be True or False"),
        ({"preset": "ppo_save"}, "did you mean 'ppo_safe'"),
        ({"watch": ["reward"]}, "watch"),
        ({"watch": {"reward": {"sigma": 3}}}, "sigma"),
        ({"custom_rules": 3}, "custom_rules must be a list"),
        ({"custom_rules": {"metric": "kl"}}, "custom_rules must be a list"),
        ({"custom_rules": [{"metric": "kl"}]}, "comparison"),
        ({"custom_rules": "no_such_rules.yaml"}, "no_such_rules"),
    ],
)
def test_a_mistake_is_one_line_at_once(options, message):
    with pytest.raises(UserError, match=message) as raised:
        PPOMonitoringCallback(**options)
    assert "\n" not in str(raised.value)


def test_custom_rules_from_yaml_and_python_side_by_side_with_watched_metrics(scripted, tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text('- {name: too_high, metric: mine, comparison: ">", value: 5, logs: 1, severity: error}\n')
    jump = {"mine": 9.0, "other": 50.0}
    callback = AnomalyDetectionCallback(rules=[], custom_rules=path, watch={"other": None}, warmup_steps=2)
    scripted(callback, lambda step: jump if step == 20 else {"mine": 1.0, "other": step % 3 / 10}, steps=20).train()
    assert [(a.rule, a.severity, a.opened) for a in callback.alerts] == [
        ("watch:other", "error", 20), ("too_high", "error", 20)
    ]  # fmt: skip

    def mine(metrics):
        return "mine is high" if metrics["mine"] > 5 else None

    callback = AnomalyDetectionCallback(rules=[], custom_rules=[mine])
    scripted(callback, lambda step: {"mine": 3.0 * step}, steps=2).train()
    assert [(a.rule, a.message, a.opened) for a in callback.alerts] == [("mine", "mine is high", 2)]


def test_a_metric_that_never_came_is_named_once_at_the_end(scripted, tmp_path, caplog):
    rule = {"name": "r", "metric": "rewards/typo/mean", "comparison": ">", "value": 5}
    callback = AnomalyDetectionCallback(custom_rules=[rule])
    scripted(callback, lambda step: {"reward": 1.0}, steps=2).train()
    (note,) = json.loads((tmp_path / "run" / "trl_ext" / "summary.json").read_text())["notes"]
    assert "'rewards/typo/mean' was never logged" in note and "reward" in note
    assert [record.levelname for record in caplog.records if record.getMessage() == note] == ["WARNING"]
    assert callback.summary()["notes"] == [note]


def test_broken_yaml_is_one_line(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("a: [1,\nb: }")
    with pytest.raises(UserError) as raised:
        PPOMonitoringCallback(thresholds=path)
    assert "\n" not in str(raised.value)


def test_stop_saves_at_that_very_log_and_then_ends(scripted, tmp_path, caplog):
    callback = PPOMonitoringCallback(on_critical="stop")
    trainer = scripted(callback, nan_reward_at(3))
    trainer.train()
    assert trainer.state.global_step == 3
    assert (tmp_path / "run" / "checkpoint-3" / "trainer_state.json").is_file()
    summary = json.loads((tmp_path / "run" / "trl_ext" / "summary.json").read_text())
    assert not summary["completed"] and "nonfinite_metric" in summary["stopped"]
    assert summary["alert_counts"]["critical"] == 1
    assert "[critical] nonfinite_metric at step 3" in caplog.text and "What to do: 1." in caplog.text


def test_warn_goes_on(scripted):
    callback = PPOMonitoringCallback()
    trainer = scripted(callback, nan_reward_at(3))
    trainer.train()
    assert trainer.state.global_step == 6
    assert [(alert.opened, alert.evidence["logs"]) for alert in callback.alerts] == [(3, 4)]


def test_an_error_does_not_stop(scripted):
    callback = PPOMonitoringCallback(on_critical="stop")
    trainer = scripted(callback, lambda step: {"objective/kl": 50.0})
    trainer.train()
    assert trainer.state.global_step == 6 and callback.alerts[0].severity == "error"


def test_on_alert_hears_what_opens_rises_and_closes(scripted):
    heard = []
    script = {1: 12, 2: 12, 3: 40, 4: 40, 5: 40}
    callback = PPOMonitoringCallback(rules=KL, on_alert=lambda a: heard.append((str(a.severity), a.step, a.closed)))
    scripted(callback, lambda step: {"objective/kl": float(script.get(step, 1))}, steps=16).train()
    assert heard == [("warning", 3, None), ("error", 5, None), ("error", 5, 15)]


def test_a_fault_in_on_alert_is_logged_once_and_training_goes_on(scripted, caplog):
    def fails(alert):
        raise RuntimeError("no network")

    trainer = scripted(PPOMonitoringCallback(on_alert=fails, rules=["kl_high", "nonfinite_metric"]),
                       lambda step: {"objective/kl": math.nan if step == 1 else 200.0})  # fmt: skip
    trainer.train()
    assert trainer.state.global_step == 6
    assert sum("on_alert failed" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("method", ["observe", "start", "state_dict", "finish"])
def test_a_fault_of_the_monitor_itself_never_ends_a_run(scripted, monkeypatch, caplog, method):
    def fails(*args, **kwargs):
        raise KeyError("a bug")

    callback = PPOMonitoringCallback(on_critical="stop")
    trainer = scripted(callback, save_strategy="steps", save_steps=3)
    monkeypatch.setattr("trl_ext.callbacks._run.MonitoredRun." + method, fails)
    if method == "state_dict":  # Transformers calls `state()` outside our guard: it must hold by itself
        monkeypatch.setattr(PPOMonitoringCallback, "state", lambda self: {"args": {}, "attributes": {}})
    trainer.train()
    assert trainer.state.global_step == 6
    assert 1 <= sum("training goes on" in record.getMessage() for record in caplog.records) <= 2


def test_a_blocked_folder_is_one_warning(scripted, tmp_path, caplog):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "trl_ext").write_text("in the way")
    caplog.set_level(logging.WARNING)
    trainer = scripted(PPOMonitoringCallback(rules=KL), kl_from(1))
    trainer.train()
    assert trainer.state.global_step == 6
    assert sum("Cannot write" in record.getMessage() for record in caplog.records) == 1


class CrashError(Exception):
    pass


def crash_at(step, script):
    def scripted_crash(now):
        if now == step:
            raise CrashError
        return script(now)

    return scripted_crash


def test_when_training_raises_the_summary_is_written_all_the_same(scripted, tmp_path):
    trainer = scripted(PPOMonitoringCallback(rules=KL), crash_at(4, kl_from(1)))
    with pytest.raises(CrashError):
        trainer.train()
    del trainer
    gc.collect()
    summary = json.loads((tmp_path / "run" / "trl_ext" / "summary.json").read_text())
    assert not summary["completed"] and summary["last_step"] == 3 and summary["alert_counts"]["warning"] == 1


SAVING = {"save_strategy": "steps", "save_steps": 2}


class Patient(Rule):
    """Its verdict on a log is heard up to three logs later."""

    name, metrics, patient = "patient", ("reward",), True

    def check(self, row):
        return Finding("error", "reward", row.metrics["reward"], "too much", "less")


def test_what_waits_is_told_when_training_raises(scripted, tmp_path, caplog):
    heard = []
    callback = PPOMonitoringCallback(rules=[Patient({})], on_alert=lambda alert: heard.append(alert.rule))
    with pytest.raises(ZeroDivisionError):
        scripted(callback, lambda step: {"reward": 1 / (3 - step)}).train()
    del callback
    gc.collect()
    assert heard == ["patient"] and "[error] patient at step 1" in caplog.text
    assert [alert.opened for alert in read_alerts(tmp_path / "run" / "trl_ext" / "alerts.jsonl")] == [1]


def test_the_summary_at_the_end_is_the_one_in_the_file(scripted, tmp_path):
    callback = PPOMonitoringCallback(rules=KL)
    scripted(callback, kl_from(2)).train()
    written = json.loads((tmp_path / "run" / "trl_ext" / "summary.json").read_text())
    assert written["completed"] and json.loads(json.dumps(callback.summary())) == written


def test_what_an_earlier_run_left_is_not_said_of_one_that_was_killed(scripted, tmp_path):
    scripted(PPOMonitoringCallback(rules=KL), kl_from(2)).train()
    summary = tmp_path / "run" / "trl_ext" / "summary.json"

    def dies(step):
        written = json.loads(summary.read_text())
        assert not written["completed"] and written["last_step"] == 0 and not written["alerts"]
        return {}

    scripted(PPOMonitoringCallback(rules=KL), dies, steps=2).train()


def test_a_resumed_run_goes_on_as_if_never_stopped(scripted, tmp_path):
    # KL is high from step 3 on: the third high log, step 5, comes after the checkpoint at 4
    with pytest.raises(CrashError):
        scripted(PPOMonitoringCallback(rules=KL), crash_at(8, kl_from(3)), steps=9, **SAVING).train()
    shutil.rmtree(tmp_path / "run" / "checkpoint-6")
    callback = PPOMonitoringCallback(rules=KL)
    scripted(callback, kl_from(3), steps=9, **SAVING).train(resume_from_checkpoint=True)
    assert [(alert.rule, alert.opened) for alert in callback.alerts] == [("kl_high", 5)]
    folder = tmp_path / "run" / "trl_ext"
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if "kl_per_sequence" in row]
    assert [row["step"] for row in rows] == list(range(1, 10))
    assert [row["session"] for row in rows] == [0] * 4 + [1] * 5
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["metrics"]["kl_per_sequence"]["logs"] == 9 and summary["metrics"]["kl_per_sequence"]["first"] == 3.0


def how_it_resumes():
    def in_place(path):
        return {}, True

    def elsewhere(path):
        shutil.move(path / "checkpoint-6", path.parent / "moved")
        return {}, str(path.parent / "moved")

    def elsewhere_without_our_file(path):
        options, folder = elsewhere(path)
        os.remove(os.path.join(folder, "trl_ext_monitor.json"))
        return options, folder

    def by_transformers(path):
        return {"restore_callback_states_from_checkpoint": True}, True

    return [in_place, elsewhere, elsewhere_without_our_file, by_transformers]


@pytest.mark.parametrize("how", how_it_resumes())
def test_nothing_is_alerted_twice_after_a_resume(scripted, tmp_path, how):
    scripted(PPOMonitoringCallback(rules=KL), kl_from(1), steps=6, **SAVING).train()
    options, checkpoint = how(tmp_path / "run")
    trainer = scripted(PPOMonitoringCallback(rules=KL), kl_from(1), steps=9, **SAVING, **options)
    trainer.train(resume_from_checkpoint=checkpoint)
    (callback,) = (c for c in trainer.callback_handler.callbacks if isinstance(c, PPOMonitoringCallback))
    assert [(alert.opened, alert.evidence["logs"]) for alert in callback.alerts] == [(3, 7)]
    events = lines(tmp_path / "run" / "trl_ext" / "alerts.jsonl")
    assert [(event["event"], event["step"]) for event in events] == [("opened", 3)]
    assert len(read_alerts(tmp_path / "run" / "trl_ext" / "alerts.jsonl")) == 1


def test_a_run_that_was_stopped_stops_again_if_the_fault_is_still_there_and_goes_on_if_not(scripted):
    scripted(PPOMonitoringCallback(on_critical="stop"), nan_reward_at(3)).train()
    again = scripted(PPOMonitoringCallback(on_critical="stop"), nan_reward_at(3))
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 4
    mended = scripted(PPOMonitoringCallback(on_critical="stop"), lambda step: HEALTHY)
    mended.train(resume_from_checkpoint=True)
    assert mended.state.global_step == 6


def test_a_callback_added_late_does_not_break_saving(scripted, tmp_path):
    trainer = scripted(None, steps=4, **SAVING)
    trainer.train()
    resumed = scripted(PPOMonitoringCallback(), steps=6, **SAVING)
    resumed.train(resume_from_checkpoint=True)
    assert (tmp_path / "run" / "checkpoint-6" / "trl_ext_monitor.json").is_file()


def test_a_second_run_starts_afresh_also_with_rule_instances(scripted):
    class EveryThird(Rule):
        name = "every_third"

        def __init__(self):
            super().__init__({})
            self.streak = Streak()

        def check(self, row):
            count = self.streak.push(True)
            return Finding("info", "loss", count, f"log {count}", "nothing")

    callback = PPOMonitoringCallback(rules=[EveryThird()])
    trainer = scripted(callback, steps=2)
    for _ in range(2):
        trainer.train()
        assert [alert.value for alert in callback.alerts] == [1]
    assert [row["session"] for row in lines(Path(trainer.args.output_dir, "trl_ext", "metrics.jsonl"))] == [0] * 3 + [
        1
    ] * 3


def test_under_fp16_a_single_overflow_is_the_scalers_work(scripted):
    for fp16, expected in ((True, []), (False, [2])):
        callback = PPOMonitoringCallback()
        trainer = scripted(callback, lambda step: {"grad_norm": math.nan if step == 2 else 1.0}, steps=4)
        trainer.args.fp16 = fp16
        callback.on_train_begin(trainer.args, trainer.state, trainer.control)
        for step in range(1, 5):
            trainer.state.global_step = step
            logs = {"loss": 1.0, "grad_norm": math.nan if step == 2 else 1.0}
            callback.on_log(trainer.args, trainer.state, trainer.control, logs=logs)
        assert [alert.opened for alert in callback.alerts] == expected


def test_state_is_strict_json(scripted):
    callback = PPOMonitoringCallback()
    scripted(callback, nan_reward_at(2), steps=3).train()

    def refuse(constant):
        raise AssertionError(constant)

    json.loads(json.dumps(callback.state()), parse_constant=refuse)


def test_evaluation_logs_are_recorded_and_raise_nothing(scripted, tmp_path):
    callback = PPOMonitoringCallback(on_critical="stop")
    trainer = scripted(callback, steps=4)
    trainer.eval_dataset = trainer.train_dataset[:4]
    trainer.evaluate()
    trainer.train()
    trainer.evaluate()
    assert trainer.state.global_step == 4 and callback.alerts == []
