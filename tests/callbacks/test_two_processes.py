"""Two gloo processes decide alike, although they see different things."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torchrun import free_port
from tracker_files import tensorboard_run, wandb_run

from trl_ext.monitor.reading import read_alerts

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder in which `rank_dependent_run.py` has left its runs."""
    folder = tmp_path_factory.mktemp("ranks")
    common = {
        "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    command = [sys.executable, str(Path(__file__).with_name("rank_dependent_run.py")), str(folder)]
    processes = [
        subprocess.Popen(
            command, env={**os.environ, **common, "RANK": rank, "LOCAL_RANK": rank}, stderr=subprocess.PIPE, text=True
        )
        for rank in "01"
    ]
    try:
        errors = [process.communicate(timeout=200)[1][-3000:] for process in processes]
    finally:
        for process in processes:
            process.kill()  # where ranks decide apart, one waits for the other for ever
    assert [process.returncode for process in processes] == [0, 0], errors
    return folder


def reports(folder):
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def checkpoints(folder):
    return sorted(path.name for path in folder.glob("checkpoint-*"))


def test_all_ranks_stop_when_one_sees_the_fault(runs):
    first, second = reports(runs / "monitor")
    assert first["processes"] == 2
    assert (first["step"], second["step"]) == (3, 3)
    assert first["alerts"] == second["alerts"] == 1
    assert "Process 1 saw nonfinite_metric: reward is nan" in first["stopped"]
    assert "by on_critical='stop'. nonfinite_metric: reward is nan" in second["stopped"]
    assert (first["heard"], second["heard"]) == (1, 0)  # on_alert speaks for the main process, which was told
    (alert,) = read_alerts(runs / "monitor" / "trl_ext" / "alerts.jsonl")
    assert (alert.rule, alert.severity, alert.step) == ("nonfinite_metric", "critical", 3)
    assert alert.message.startswith("process 1: reward is nan") and alert.advice
    summary = json.loads((runs / "monitor" / "trl_ext" / "summary.json").read_text())
    assert summary["alert_counts"]["critical"] == 1 and "Process 1 saw" in summary["stopped"]
    assert checkpoints(runs / "monitor") == ["checkpoint-3"]
    lines = (runs / "monitor" / "trl_ext" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 4  # three steps and the closing log


def test_the_best_checkpoint_and_the_end_of_time_are_the_same_on_all_ranks(runs):
    first, second = reports(runs / "others")
    assert first == second
    # rank 0's metric counts; any rank's clock does, at the next common look, eight steps after the first
    assert first == {"step": 9, "processes": 2, "best": 2, "restored": True}
    assert checkpoints(runs / "others") == ["checkpoint-1", "checkpoint-2", "checkpoint-9"]


def test_rewards_that_fail_on_one_rank_are_counted_on_all_and_probes_do_not_hang(runs):
    first, second = reports(runs / "rewards")
    assert (first["step"], second["step"], first["processes"]) == (4, 4, 2)
    assert (first["completions"], second["completions"]) == (128, None)  # the main process alone looks, at its own
    # a quarter of all completions: half of those of rank 1
    assert first["alerts"] == second["alerts"] == {"reward_failures": "warning"}
    folder = runs / "rewards" / "trl_ext"
    assert not (folder / "reward_failures.jsonl").exists()
    lines = [json.loads(line) for line in (folder / "reward_failures-rank1.jsonl").read_text().splitlines()]
    assert len(lines) == 4 * 16 and {line["kind"] for line in lines} == {"value"}
    assert (folder / "reward_samples.jsonl").is_file()


def test_a_broken_checkpoint_stops_all_ranks_at_one_step(runs):
    first, second = reports(runs / "checkpoints")
    assert first["processes"] == 2
    assert (first["judges"], second["judges"]) == (True, False)
    assert 4 < first["step"] == second["step"] < 100
    assert (first["alerts"], second["alerts"]) == (["nonfinite_weights"], [])


def test_the_main_process_alone_sends_to_trackers_and_writes_the_card(runs):
    first, second = reports(runs / "trackers")
    assert first["processes"] == 2 and first["alerts"] == second["alerts"] == 1  # both saw it
    other = wandb_run(runs / "trackers" / "sent-by-1")
    assert other["alerts"] == [] and other["tables"] == {} and not any("trl_ext" in name for name in other["summary"])
    assert not list((runs / "trackers" / "sent-by-1").rglob("events.out*"))
    run = wandb_run(runs / "trackers" / "sent-by-0")
    ((title, text, _),) = run["alerts"]
    assert title.startswith("[warning] ") and "seen by 0" in text
    assert len(run["tables"]["trl_ext/samples"]) == 2 and run["summary"]["trl_ext/steps"] == 2
    assert "trl_ext/samples" in tensorboard_run(runs / "trackers" / "sent-by-0")["texts"]
    card = (runs / "trackers" / "README.md").read_text()
    assert card.count("## How the training went") == 1 and "seen by 0" in card and "step 2 of 2: completed" in card
