"""CheckpointHealthCallback in real trainers."""

import json
import logging
import math
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from rl_trainers import grpo, ppo, reinforce_loo, rloo, stock_ppo
from safetensors.torch import load_file, save_file

from trl_ext import tiny
from trl_ext.callbacks import AnomalyDetectionCallback, CheckpointHealthCallback, TrainingStopped
from trl_ext.callbacks._last_healthy import LastHealthy
from trl_ext.errors import UserError


def lines(folder, name):
    path = folder / "trl_ext" / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def nan_at(step, get):
    """A script for the trainer: its weight becomes NaN."""

    def script(now):
        if now == step:
            get().model.weight.data.fill_(math.nan)
        return {}

    return script


@pytest.fixture
def poisoned(scripted):
    """A trainer whose weight is NaN from the log of a step on."""

    def build(callback, step, others=(), **arguments):
        built = []
        options = {"save_strategy": "steps", "save_steps": 1, "learning_rate": 0.1, **arguments}
        trainer = scripted([*others, callback], nan_at(step, lambda: built[0]), **options)
        built.append(trainer)
        return trainer

    return build


def test_each_checkpoint_has_a_line_and_the_next_log_its_numbers(scripted, tmp_path):
    callback = CheckpointHealthCallback()
    trainer = scripted(callback, steps=4, save_strategy="steps", save_steps=2, learning_rate=0.1)
    trainer.train()
    found = lines(tmp_path / "run", "checkpoint_health.jsonl")
    assert [(line["step"], line["score"]) for line in found] == [(2, 1.0), (4, 1.0)]
    weights = [load_file(tmp_path / "run" / f"checkpoint-{step}" / "model.safetensors")["weight"] for step in (2, 4)]
    drift = float((weights[1] - weights[0]).norm() / weights[0].norm())
    assert found[1]["drift_previous"] == found[1]["drift_first"] == pytest.approx(drift, rel=1e-5)
    assert callback.alerts == []


def test_nan_weights_are_an_alert_beside_the_monitors(poisoned, tmp_path):
    heard = []
    callback = CheckpointHealthCallback(on_alert=heard.append)
    trainer = poisoned(callback, 2, others=[AnomalyDetectionCallback()], steps=4)
    trainer.train()
    assert trainer.state.global_step == 4
    (alert,) = callback.alerts
    assert (alert.rule, alert.severity, alert.closed) == ("nonfinite_weights", "critical", None)
    assert [one.rule for one in heard] == ["nonfinite_weights"]
    written = [line for line in lines(tmp_path / "run", "alerts.jsonl") if line["rule"] == "nonfinite_weights"]
    assert [(line["event"], line["session"]) for line in written] == [("opened", 0)]
    assert written[0]["evidence"]["tensors"] == ["weight"]


def test_on_critical_stops_and_saves_nothing_more(poisoned, tmp_path):
    trainer = poisoned(CheckpointHealthCallback(on_critical="stop"), 2, steps=500, save_total_limit=2, save_steps=5)
    trainer.train()
    assert trainer.state.global_step < 100
    assert sorted(path.name for path in (tmp_path / "run").glob("checkpoint-*"))[-1] != "checkpoint-100"


def test_the_last_healthy_checkpoint_outlives_the_limit(poisoned, tmp_path):
    callback = CheckpointHealthCallback(keep_last_healthy=True)
    original = callback.on_save

    def patient(*args, **kwargs):  # every save is judged before the next step
        original(*args, **kwargs)
        callback._judge.wait()

    callback.on_save = patient
    trainer = poisoned(callback, 3, steps=6, save_total_limit=1)
    trainer.train()
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-6"]
    kept = tmp_path / "run" / "trl_ext" / "last_healthy"
    assert [path.name for path in kept.iterdir()] == ["checkpoint-2"]
    assert callback.last_healthy == kept / "checkpoint-2"
    assert torch.isfinite(load_file(kept / "checkpoint-2" / "model.safetensors")["weight"]).all()
    fresh = poisoned(CheckpointHealthCallback(), 100, steps=3)
    fresh.train(resume_from_checkpoint=str(kept / "checkpoint-2"))
    assert fresh.state.global_step == 3


def test_the_same_weights_with_and_without(scripted, tmp_path):
    results = []
    for callback in (None, CheckpointHealthCallback(keep_last_healthy=True)):
        trainer = scripted(callback, steps=6, save_strategy="steps", save_steps=1, learning_rate=0.1)
        trainer.train()
        results.append(trainer.model.weight.item())
        shutil.rmtree(tmp_path / "run")
    assert results[0] == results[1]


def test_a_run_that_goes_on_judges_the_checkpoint_it_resumes_from(scripted, tmp_path):
    options = {"save_strategy": "steps", "save_steps": 2, "learning_rate": 0.1}
    scripted(None, steps=2, **options).train()
    callback = CheckpointHealthCallback()
    scripted(callback, steps=4, **options).train(resume_from_checkpoint=True)
    found = lines(tmp_path / "run", "checkpoint_health.jsonl")
    assert [line["step"] for line in found] == [2, 4]
    assert found[1]["drift_previous"] > 0


def test_a_run_in_which_nothing_moves_is_told_and_the_alert_closes(scripted, tmp_path):
    callback = CheckpointHealthCallback()
    trainer = scripted(callback, steps=6, save_strategy="steps", save_steps=1, learning_rate=0.1)
    original, step = trainer.create_optimizer, []

    def create(*args):
        optimizer = original(*args)
        take = optimizer.step

        def some(*a, **k):
            step.append(1)
            return None if len(step) in (3, 4) else take(*a, **k)

        optimizer.step = some
        return optimizer

    trainer.create_optimizer = create
    patient = callback.on_save

    def waiting(*args, **kwargs):
        patient(*args, **kwargs)
        callback._judge.wait()

    callback.on_save = waiting
    trainer.train()
    alerts = {alert.rule: alert for alert in callback.alerts}
    assert (alerts["nothing_moved"].opened, alerts["nothing_moved"].closed) == (3, 5)
    assert "since checkpoint-2" in alerts["nothing_moved"].message


def test_saves_that_come_faster_than_they_are_read_do_not_gather(scripted, tmp_path, monkeypatch):
    from trl_ext.callbacks import _checkpoint_judge

    judge = _checkpoint_judge.judge

    def slow(*args, **kwargs):
        time.sleep(0.3)
        return judge(*args, **kwargs)

    monkeypatch.setattr(_checkpoint_judge, "judge", slow)
    callback = CheckpointHealthCallback()
    scripted(callback, steps=30, save_strategy="steps", save_steps=1).train()
    found = [line["step"] for line in lines(tmp_path / "run", "checkpoint_health.jsonl")]
    assert found[0] == 1 and found[-1] == 30 and len(found) < 15


def test_a_checkpoint_deleted_before_its_turn_is_no_alarm(scripted, tmp_path, monkeypatch):
    from trl_ext.callbacks import _checkpoint_judge

    judge = _checkpoint_judge.judge

    def late(path, *args, **kwargs):
        if path.name == "checkpoint-1":
            shutil.rmtree(path)
        return judge(path, *args, **kwargs)

    monkeypatch.setattr(_checkpoint_judge, "judge", late)
    callback = CheckpointHealthCallback()
    trainer = scripted(callback, steps=2, save_strategy="steps", save_steps=1)
    trainer.train()
    assert callback.alerts == []
    assert [line["step"] for line in lines(tmp_path / "run", "checkpoint_health.jsonl")] == [2]


def test_a_judge_that_fails_is_logged_once_and_training_goes_on(scripted, monkeypatch, caplog):
    from trl_ext.callbacks import _checkpoint_judge

    monkeypatch.setattr(_checkpoint_judge, "judge", lambda *args, **kwargs: 1 / 0)
    trainer = scripted(CheckpointHealthCallback(), steps=3, save_strategy="steps", save_steps=1)
    trainer.train()
    assert trainer.state.global_step == 3
    assert caplog.text.count("could not be judged") == 1


def test_training_that_raises_still_leaves_its_line(scripted, tmp_path):
    callback = CheckpointHealthCallback()

    def crash(step):
        if step == 3:
            raise ValueError("crash")
        return {}

    trainer = scripted(callback, crash, steps=5, save_strategy="steps", save_steps=2)
    with pytest.raises(ValueError, match="crash"):
        trainer.train()
    callback._judge.wait()
    assert [line["step"] for line in lines(tmp_path / "run", "checkpoint_health.jsonl")] == [2]


def test_a_folder_that_cannot_be_written_is_one_warning(scripted, tmp_path, caplog):
    (tmp_path / "file").write_text("x")
    callback = CheckpointHealthCallback(output_dir=tmp_path / "file" / "sub", keep_last_healthy=True)
    trainer = scripted(callback, steps=3, save_strategy="steps", save_steps=1)
    trainer.train()
    assert trainer.state.global_step == 3
    assert caplog.text.count("Cannot write") <= 2


def test_on_alert_that_raises_is_logged_once(poisoned, caplog):
    def broken(alert):
        raise KeyError("mine")

    poisoned(CheckpointHealthCallback(on_alert=broken), 1, steps=3).train()
    assert caplog.text.count("on_alert failed") == 1


def test_a_reference_that_is_missing_is_a_warning(scripted, tmp_path, caplog):
    callback = CheckpointHealthCallback(reference=tmp_path / "nowhere")
    scripted(callback, steps=2, save_strategy="steps", save_steps=1).train()
    assert caplog.text.count("without their reference") == 1
    assert len(lines(tmp_path / "run", "checkpoint_health.jsonl")) >= 1


@pytest.mark.parametrize(("arguments", "named"), [
    ({"on_critical": "Stop"}, "on_critical"), ({"keep_last_healthy": 1}, "keep_last_healthy"),
    ({"on_alert": 3}, "on_alert"), ({"reference": 3}, "reference"), ({"output_dir": []}, "output_dir"),
])  # fmt: skip
def test_an_argument_that_makes_no_sense_is_named(arguments, named):
    with pytest.raises(UserError, match=named):
        CheckpointHealthCallback(**arguments)


def length(prompts, completions, **kwargs):
    return [float(len(completion)) for completion in completions]


@pytest.mark.parametrize("build", [grpo, rloo, reinforce_loo, ppo], ids=lambda build: build.__name__)
def test_every_trainer_with_reward_functions_is_healthy(build, tmp_path):
    callback = CheckpointHealthCallback()
    trainer = build(tmp_path, [length], callback, save_strategy="steps", save_steps=2, learning_rate=1e-4)
    trainer.train()
    found = lines(tmp_path, "checkpoint_health.jsonl")
    assert found and all(line["status"] == "healthy" for line in found)
    assert found[-1]["drift_previous"] is None or 0 < found[-1]["drift_previous"] < 0.1


@pytest.mark.stock_ppo
def test_stock_ppo_is_judged_and_stopped(tmp_path):
    callback = CheckpointHealthCallback()
    stock_ppo(tmp_path / "a", [length], callback, save_strategy="steps", save_steps=1, max_steps=3).train()
    found = lines(tmp_path / "a", "checkpoint_health.jsonl")
    assert found and all(line["status"] == "healthy" for line in found)

    callback = CheckpointHealthCallback(on_critical="stop")
    trainer = stock_ppo(tmp_path / "b", [length], callback, save_strategy="steps", save_steps=1, max_steps=6)
    save = callback.on_save

    def waiting(args, state, control, **event):
        folder = tmp_path / "b" / f"checkpoint-{state.global_step}"
        with open(folder / "model.safetensors", "r+b") as file:
            file.truncate(1000)
        save(args, state, control, **event)
        callback._judge.wait()

    callback.on_save = waiting
    with pytest.raises(TrainingStopped, match="file_truncated"):
        trainer.train()
    assert trainer.state.global_step == 2


def test_an_adapter_that_is_never_trained_is_told_at_the_first_save(tmp_path):
    callback = CheckpointHealthCallback()
    trainer = grpo(tmp_path, [lambda completions, **kw: [0.0] * len(completions)], callback, save_strategy="steps",
                   save_steps=2, learning_rate=0.0)  # fmt: skip
    from peft import get_peft_model

    model = get_peft_model(tiny.random_policy(0), LoraConfig(r=4, target_modules=["q_proj"]))
    trainer = type(trainer)(
        model=model, reward_funcs=[length], args=trainer.args, processing_class=tiny.byte_tokenizer(),
        train_dataset=trainer.train_dataset, callbacks=[callback],
    )  # fmt: skip
    trainer.args.learning_rate = 0.0
    trainer.train()
    assert "adapter_untrained" in {alert.rule for alert in callback.alerts}


def test_links_are_complete_or_not_there(tmp_path):
    checkpoint = tmp_path / "checkpoint-3"
    (checkpoint / "global_step3").mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(b"weights")
    (checkpoint / "global_step3" / "x.pt").write_bytes(b"x")
    last = LastHealthy(tmp_path / "kept")
    kept = last.keep(last.take(checkpoint))
    shutil.rmtree(checkpoint)
    assert (kept / "model.safetensors").read_bytes() == b"weights"
    assert (kept / "global_step3" / "x.pt").read_bytes() == b"x"
    assert last.take(tmp_path / "checkpoint-4") is None
    last.close()
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["checkpoint-3"]


def test_at_no_moment_is_half_a_checkpoint_among_those_kept(tmp_path, monkeypatch):
    """A run may be killed while the one before is removed."""
    seen, remove = [], shutil.rmtree

    def removing(path, **options):
        seen.append([kept.name for kept in (tmp_path / "kept").glob("checkpoint-*")])
        if Path(path).exists():
            assert not Path(path).name.startswith("checkpoint-") or Path(path).parent.name == ".waiting"
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", removing)
    last = LastHealthy(tmp_path / "kept")
    for step in (3, 4, 4):
        (tmp_path / f"checkpoint-{step}").mkdir(exist_ok=True)
        (tmp_path / f"checkpoint-{step}" / "model.safetensors").write_bytes(b"weights")
        last.keep(last.take(tmp_path / f"checkpoint-{step}"))
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["checkpoint-4"]
    assert ["checkpoint-4"] in seen


def test_a_second_run_into_the_same_folder_does_not_change_what_was_kept(tmp_path):
    checkpoint = tmp_path / "checkpoint-3"
    checkpoint.mkdir()
    large, small = checkpoint / "optimizer.pt", checkpoint / "trainer_state.json"
    large.write_bytes(b"first" * 400_000)
    small.write_bytes(b"first")
    last = LastHealthy(tmp_path / "kept")
    kept = last.keep(last.take(checkpoint))
    assert (kept / "optimizer.pt").stat().st_nlink == 2
    LastHealthy(tmp_path / "kept")  # of the second run
    for path in (large, small):
        with open(path, "r+b") as file:  # as torch.save and json.dump write: into the file that is there
            file.write(b"SECOND")
    assert (kept / "optimizer.pt").read_bytes().startswith(b"first")
    assert (kept / "trainer_state.json").read_bytes() == b"first"


def test_copies_where_there_are_no_links(tmp_path, monkeypatch):
    def refused(*args, **kwargs):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refused)
    checkpoint = tmp_path / "checkpoint-3"
    checkpoint.mkdir()
    (checkpoint / "model.safetensors").write_bytes(b"weights")
    last = LastHealthy(tmp_path / "kept")
    assert (last.keep(last.take(checkpoint)) / "model.safetensors").read_bytes() == b"weights"


def test_a_healthy_checkpoint_that_is_deleted_before_it_was_judged_is_kept(poisoned, tmp_path, monkeypatch):
    """Judging is slower than saving, and the weights are NaN from step 4 on."""
    from trl_ext.callbacks import _checkpoint_judge

    judge = _checkpoint_judge.judge

    def slow(*args, **kwargs):
        time.sleep(0.4)
        return judge(*args, **kwargs)

    monkeypatch.setattr(_checkpoint_judge, "judge", slow)
    callback = CheckpointHealthCallback(keep_last_healthy=True)
    poisoned(callback, 4, steps=5, save_total_limit=1).train()
    assert callback.last_healthy.name == "checkpoint-3"
    assert [path.name for path in callback.last_healthy.parent.iterdir()] == ["checkpoint-3"]


def test_a_checkpoint_from_elsewhere_is_judged_and_not_one_of_the_same_name(scripted, tmp_path):
    options = {"save_strategy": "steps", "save_steps": 2, "learning_rate": 0.1}
    scripted(None, steps=2, **options).train()
    elsewhere = tmp_path / "elsewhere" / "checkpoint-2"
    shutil.copytree(tmp_path / "run" / "checkpoint-2", elsewhere)
    (tmp_path / "run" / "checkpoint-2" / "model.safetensors").write_bytes(b"")
    callback = CheckpointHealthCallback()
    scripted(callback, steps=4, **options).train(resume_from_checkpoint=str(elsewhere))
    found = lines(tmp_path / "run", "checkpoint_health.jsonl")
    assert (found[0]["checkpoint"], found[0]["status"]) == (str(elsewhere), "healthy")


def test_weights_that_explode_are_told_and_not_kept(scripted, tmp_path):
    trainer = None

    def explode(step):
        if step == 3:
            trainer.model.weight.data.mul_(-50)
        return {}

    callback = CheckpointHealthCallback(keep_last_healthy=True)
    trainer = scripted(callback, explode, steps=3, save_strategy="steps", save_steps=1, learning_rate=0.1)
    trainer.train()
    assert {alert.rule: alert.severity for alert in callback.alerts} == {"drift_far": "error"}
    assert callback.last_healthy.name == "checkpoint-2"


def test_files_that_other_callbacks_are_writing_are_no_fault(tmp_path):
    from trl_ext.checkpoints.health.judging import judge

    tiny.random_policy(0).save_pretrained(tmp_path)
    (tmp_path / "trl_ext_monitor.tmp").symlink_to("gone")
    assert judge(tmp_path).findings == []


@pytest.mark.current_trl  # a process of its own, in one lane
def test_kill_in_mid_judging_leaves_whole_lines(tmp_path):
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from rl_trainers import grpo
from pathlib import Path
from trl_ext.callbacks import CheckpointHealthCallback
grpo(Path({str(tmp_path)!r}), [lambda completions, **kw: [1.0 * len(c) for c in completions]],
     CheckpointHealthCallback(keep_last_healthy=True), save_strategy="steps", save_steps=1, max_steps=500,
     save_total_limit=2).train()
"""
    written = tmp_path / "trl_ext" / "checkpoint_health.jsonl"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (written.exists() and written.read_text().count("\n") >= 3):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    whole = written.read_text().split("\n")[:-1]
    assert all(json.loads(line)["status"] == "healthy" for line in whole)
    kept = list((tmp_path / "trl_ext" / "last_healthy").glob("checkpoint-*"))
    assert kept and all((path / "model.safetensors").stat().st_size > 10_000 for path in kept)


@pytest.mark.current_trl  # a process of its own, in one lane
def test_a_process_that_ends_with_an_error_still_judges_its_last_checkpoint(tmp_path):
    """The interpreter takes no new work for threads then."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from rl_trainers import grpo
from pathlib import Path
from transformers import TrainerCallback
from trl_ext.callbacks import CheckpointHealthCallback

class Crash(TrainerCallback):
    def on_save(self, args, state, control, **_):
        raise ValueError("crash")

trainer = grpo(Path({str(tmp_path)!r}), [lambda completions, **kw: [1.0 * len(c) for c in completions]],
     CheckpointHealthCallback(keep_last_healthy=True), save_strategy="steps", save_steps=2, max_steps=5)
trainer.add_callback(Crash())
trainer.train()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 1 and done.stderr.count("Traceback") == 1 and "ValueError: crash" in done.stderr
    (line,) = (tmp_path / "trl_ext" / "checkpoint_health.jsonl").read_text().splitlines()
    assert json.loads(line)["status"] == "healthy"
    assert (tmp_path / "trl_ext" / "last_healthy" / "checkpoint-2").is_dir()
    assert not (tmp_path / "trl_ext" / "last_healthy" / ".waiting").exists()


def test_an_alert_does_not_close_with_a_checkpoint_that_says_nothing(scripted, tmp_path):
    """Weights far from the first ones, and then NaN: the first alert stays open."""
    callback = CheckpointHealthCallback()
    patient, state = callback.on_save, {"saves": 0}

    def damaging(args, state_, control, **event):
        state["saves"] += 1
        folder = tmp_path / "run" / f"checkpoint-{state_.global_step}"
        tensors = load_file(folder / "model.safetensors")
        times = {1: 1.0, 2: 9.0, 3: float("nan")}[state["saves"]]
        save_file(
            {name: t * times for name, t in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"}
        )
        patient(args, state_, control, **event)
        callback._judge.wait()

    callback.on_save = damaging
    scripted(callback, steps=3, save_strategy="steps", save_steps=1).train()
    closed = {alert.rule: alert.closed for alert in callback.alerts}
    assert {"drift_far", "nonfinite_weights"} <= closed.keys() and closed["drift_far"] is None


def test_its_alerts_are_in_the_log(poisoned, caplog):
    with caplog.at_level(logging.INFO, logger="trl_ext.checkpoints"):
        poisoned(CheckpointHealthCallback(), 1, steps=2).train()
    assert "What to do: This model is lost" in caplog.text
