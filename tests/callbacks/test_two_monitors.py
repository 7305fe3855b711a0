"""Two monitors in one run: each has its files and its state, also after a resume."""

import json

import pytest
from transformers import TrainerCallback

from trl_ext.callbacks import AnomalyDetectionCallback, PPOMonitoringCallback
from trl_ext.monitor import read_alerts, read_metrics

SAVING = {"save_strategy": "steps", "save_steps": 2}


def monitors(kinds, options=({}, {})):
    """The first judges the KL, the second the reward."""
    return [
        kind(rules=[], custom_rules=[{"metric": metric, "comparison": ">", "value": 2, "logs": 1, "name": metric}],
             **more)
        for kind, metric, more in zip(kinds, ("kl", "reward"), options, strict=True)
    ]  # fmt: skip


def script(step):
    return {"kl": float(step), "reward": float(step)}


KINDS = [
    (PPOMonitoringCallback, PPOMonitoringCallback),
    (AnomalyDetectionCallback, PPOMonitoringCallback),
    (PPOMonitoringCallback, AnomalyDetectionCallback),
]


@pytest.mark.parametrize("restore", [False, True])
@pytest.mark.parametrize("kinds", KINDS)
def test_both_resume_and_neither_alerts_twice(scripted, tmp_path, kinds, restore):
    scripted(monitors(kinds), script, steps=4, **SAVING).train()
    callbacks = monitors(kinds)
    trainer = scripted(callbacks, script, steps=6, restore_callback_states_from_checkpoint=restore, **SAVING)
    trainer.train(resume_from_checkpoint=True)
    run = tmp_path / "run"
    for callback, folder, rule in zip(callbacks, ("trl_ext", "trl_ext-2"), ("kl", "reward"), strict=True):
        assert [(alert.rule, alert.opened) for alert in read_alerts(run / folder / "alerts.jsonl")] == [(rule, 3)]
        assert len((run / folder / "alerts.jsonl").read_text().splitlines()) == 1
        rows = [row for row in read_metrics(run / folder / "metrics.jsonl") if "reward" in row]
        assert [(row["step"], row["session"]) for row in rows] == [(s, s > 4) for s in range(1, 7)]
        assert not any(key.startswith("trl_ext") for key in rows[0])
        summary = json.loads((run / folder / "summary.json").read_text())
        assert summary["completed"] and summary["metrics"]["reward"]["logs"] == 6
        assert summary["files"]["metrics"] == str(run / folder / "metrics.jsonl")
        assert [(alert.rule, alert.opened) for alert in callback.alerts] == [(rule, 3)]
    assert trainer.state.global_step == 6
    assert {path.name for path in (run / "checkpoint-6").glob("trl_ext*")} == {
        "trl_ext_monitor.json", "trl_ext_monitor-2.json"
    }  # fmt: skip


def test_the_second_adds_its_own_numbers(scripted):
    seen = []

    class Keeper(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            seen.append(dict(logs))

    callbacks = monitors((AnomalyDetectionCallback, AnomalyDetectionCallback))
    scripted([*callbacks, Keeper()], lambda step: {"kl": 1.0, "reward": 3.0}, steps=1).train()
    assert (seen[0]["trl_ext/alerts_open"], seen[0]["trl_ext-2/alerts_open"]) == (0, 1)


def test_folders_that_differ_stay_as_they_are(scripted, tmp_path):
    callbacks = monitors((PPOMonitoringCallback,) * 2, ({"output_dir": tmp_path / "a"}, {"output_dir": tmp_path / "b"}))
    scripted(callbacks, script, steps=1).train()
    assert (tmp_path / "a" / "summary.json").is_file() and (tmp_path / "b" / "summary.json").is_file()
    same = monitors((PPOMonitoringCallback,) * 2, ({"output_dir": tmp_path / "c"}, {"output_dir": tmp_path / "c"}))
    scripted(same, script, steps=1).train()
    assert (tmp_path / "c" / "summary.json").is_file() and (tmp_path / "c-2" / "summary.json").is_file()


def test_one_that_is_added_late_takes_the_next_place(scripted, tmp_path):
    first, second = monitors((PPOMonitoringCallback,) * 2)
    trainer = scripted(first, script, steps=1)
    trainer.add_callback(second)
    trainer.train()
    assert (first.slot, second.slot) == (1, 2) and (tmp_path / "run" / "trl_ext-2" / "summary.json").is_file()


def test_the_state_file_does_not_grow_with_every_save(scripted, tmp_path):
    scripted(monitors((PPOMonitoringCallback,) * 2), script, steps=8, **SAVING).train()
    state = json.loads((tmp_path / "run" / "checkpoint-8" / "trainer_state.json").read_text())
    assert isinstance(state["stateful_callbacks"]["PPOMonitoringCallback"], dict)
