"""Which file of a folder is read."""

import json

import pytest

from trl_ext.errors import UserError
from trl_ext.monitor.log_files import Log
from trl_ext.reporting import log_sources
from trl_ext.reporting.log_sources import open_log


def state(path, step):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"log_history": [{"step": step, "loss": 1.0}]}))


def line(path, step):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"step": step, "loss": 1.0}) + "\n")


def steps(path):
    return [row.step for row in open_log(path).rows]


def test_the_most_complete_log_of_a_folder_is_read(tmp_path):
    state(tmp_path / "checkpoint-90" / "trainer_state.json", 90)
    state(tmp_path / "checkpoint-100" / "trainer_state.json", 100)
    assert steps(tmp_path) == [100]  # as a number, not as a word
    state(tmp_path / "trainer_state.json", 101)
    assert steps(tmp_path) == [101]
    line(tmp_path / "trl_ext" / "metrics.jsonl", 102)
    assert steps(tmp_path) == [102]
    line(tmp_path / "metrics.jsonl", 103)
    assert steps(tmp_path) == [103]
    (tmp_path / "metrics.jsonl").write_text("")  # a run killed before its first log
    assert steps(tmp_path) == [102]
    assert steps(tmp_path / "checkpoint-90") == [90]


def test_the_file_that_was_read_is_noted(tmp_path):
    state(tmp_path / "checkpoint-5" / "trainer_state.json", 5)
    assert open_log(tmp_path).notes == [f"read {tmp_path / 'checkpoint-5' / 'trainer_state.json'}"]


@pytest.mark.parametrize("folder", ["", "runs/Jan01_host", "sub"])
def test_event_files_are_read_in_the_order_they_were_started(tmp_path, monkeypatch, folder):
    monkeypatch.setattr(log_sources, "read_event_files", lambda paths: Log([], notes=[path.name for path in paths]))
    names = ["events.out.tfevents.999.host.1.0", "events.out.tfevents.1000.host.1.0"]
    for name in reversed(names):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).write_bytes(b"x")
    note, *read = open_log(tmp_path).notes
    assert read == names
    assert note == f"read {tmp_path / folder / names[-1]} and 1 more"


def test_a_wandb_run_is_the_last_resort(tmp_path):
    path = tmp_path / "wandb" / "offline-run-1-x" / "run-x.wandb"
    path.parent.mkdir(parents=True)
    path.write_bytes(b":W&B\xe1\xbe\x00")
    assert steps(tmp_path) == steps(path.parent) == steps(path) == []
    state(tmp_path / "checkpoint-5" / "trainer_state.json", 5)
    assert steps(tmp_path) == [5]


def test_a_folder_without_a_log_is_named_with_what_was_looked_for(tmp_path):
    with pytest.raises(UserError, match=r"found no log in the folder .*: no metrics\.jsonl, trainer_state\.json"):
        open_log(tmp_path)
