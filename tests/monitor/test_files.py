"""The files of a run: strict, appended, readable after any accident."""

import json
import logging
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_ext.monitor import Alert, RunFiles, Severity, read_alerts, read_metrics
from trl_ext.monitor.lines import metrics_line
from trl_ext.monitor.rows import read_row


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def no_key_twice(pairs):
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def strict(path):
    lines = path.read_text().splitlines()
    return [json.loads(line, parse_constant=refuse, object_pairs_hook=no_key_twice) for line in lines]


def write(folder, steps, **logs):
    files = RunFiles(folder)
    for step in steps:
        files.log(read_row(step, {"reward": step / 8, **logs}))
    return files


def test_a_line_holds_canonical_and_original_keys(tmp_path):
    write(tmp_path, [3], **{"objective/kl": 2.5, "val/num_eos_tokens": 4}).close()
    assert strict(tmp_path / "metrics.jsonl") == [
        {"step": 3, "session": 0, "reward": 0.375, "objective/kl": 2.5, "kl_per_sequence": 2.5, "val/num_eos_tokens": 4,
         "eos_count": 4}
    ]  # fmt: skip


def test_what_is_no_number_is_null_and_named(tmp_path):
    logs = {"kl": math.nan, "entropy": None, "note": "a\nb", "flag": True, "loss": -math.inf, "objective/scores": 1.0}
    write(tmp_path, [1], **logs).close()
    (line,) = strict(tmp_path / "metrics.jsonl")
    assert line.pop("nonfinite") == ["kl", "kl_per_token", "loss"]
    assert line.pop("infinite") == {"loss": -1}
    assert line == {
        "step": 1, "session": 0, "reward": 0.125, "kl": None, "kl_per_token": None, "entropy": None,
        "entropy_per_token": None, "note": "a\nb", "flag": True, "loss": None, "objective/scores": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize("value", [0.1, 1e-300, 1e22, -0.0, 1 / 3, 123456789.123456789, -2.5e8, 5e-324])
def test_numbers_keep_twelve_digits_on_both_paths(tmp_path, value):
    write(tmp_path, [1], x=value).close()
    write(tmp_path, [2], x=value, note="other path").close()
    fast, general = (row["x"] for row in strict(tmp_path / "metrics.jsonl"))
    assert general == value and fast == pytest.approx(value, rel=1e-11, abs=0)


@settings(max_examples=300)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False))
def test_a_float32_comes_back_exactly(value):
    line = json.loads(metrics_line(read_row(1, {"x": value}), 0))
    assert np.float32(line["x"]) == np.float32(value)


@pytest.mark.parametrize("value", [0, -7, 10**15 + 1, 2**62 + 1])
def test_integers_keep_all_their_digits(tmp_path, value):
    write(tmp_path, [1], num_tokens=value).close()
    assert strict(tmp_path / "metrics.jsonl")[0]["num_tokens"] == value


def test_a_log_of_the_same_keys_may_hold_other_types(tmp_path):
    write(tmp_path, [1], x=0.5).close()
    write(tmp_path, [2], x=2).close()
    write(tmp_path, [3], x=2.5).close()
    assert [row["x"] for row in strict(tmp_path / "metrics.jsonl")] == [0.5, 2, 2.5]


def test_both_paths_write_the_same_keys(tmp_path):
    logs = {
        "reward": 1.0,
        "objective/scores": 2.0,
        "rewards/{x}/mean": 3.0,
        "rewards/100%s/mean": 3.5,
        "kl": 0.5,
        'a "b"': 1.0,
        "step": 99,
        "é": 2.0,
    }
    files = RunFiles(tmp_path)
    files.log(read_row(1, logs))
    files.log(read_row(1, {**logs, "note": "x"}))
    plain, general = strict(tmp_path / "metrics.jsonl")
    assert general.pop("note") == "x"
    assert plain == general
    assert plain["step"] == 1 and plain["reward"] == 1.0 and plain["reward/{x}/mean"] == 3.0


def test_each_line_is_on_disk_at_once(tmp_path):
    files = write(tmp_path, [1, 2])
    assert len(strict(tmp_path / "metrics.jsonl")) == 2
    files.close()


def test_a_folder_that_is_deleted_meanwhile_comes_back(tmp_path):
    """What is still written would be lost without a word."""
    files = write(tmp_path / "run", [1, 2])
    shutil.rmtree(tmp_path / "run")
    for step in (3, 4):
        files.log(read_row(step, {"reward": 1.0}))
    assert [row["step"] for row in strict(tmp_path / "run" / "metrics.jsonl")] == [3, 4]


def test_a_later_run_appends_under_the_next_session(tmp_path):
    for session in range(3):
        write(tmp_path, [session]).close()
    assert [(row["step"], row["session"]) for row in strict(tmp_path / "metrics.jsonl")] == [(0, 0), (1, 1), (2, 2)]


def test_a_truncated_last_line_does_not_corrupt_the_next(tmp_path):
    write(tmp_path, range(1, 4)).close()
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    write(tmp_path, [3, 4]).close()
    assert path.read_text().count("\n") == 5
    assert [(row["step"], row["session"]) for row in read_metrics(path)] == [(1, 0), (2, 0), (3, 1), (4, 1)]


def test_a_file_cut_within_its_only_line_still_counts_as_a_session(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1, "ses')
    assert write(tmp_path, [1]).session == 1
    assert [row["session"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1]


def test_the_session_of_a_long_file_is_found(tmp_path):
    write(tmp_path, range(2000), padding="x" * 60).close()
    write(tmp_path, [2000]).close()
    assert write(tmp_path, [2001]).session == 2


def test_steps_logged_again_after_a_resume_are_read_once(tmp_path):
    write(tmp_path, range(1, 8), run="first").close()  # killed at 7, its checkpoint at 4
    write(tmp_path, range(5, 7), run="second").close()  # killed at 6, resumed from its checkpoint at 5
    write(tmp_path, range(6, 10), run="third").close()
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [(row["step"], row["run"]) for row in rows] == [
        *((step, "first") for step in range(1, 5)), (5, "second"), *((step, "third") for step in range(6, 10))
    ]  # fmt: skip


def test_a_new_run_in_an_old_folder_replaces_the_old_one_for_readers(tmp_path):
    write(tmp_path, range(1, 9)).close()
    write(tmp_path, range(1, 3)).close()
    assert [(row["step"], row["session"]) for row in read_metrics(tmp_path / "metrics.jsonl")] == [(1, 1), (2, 1)]


def test_two_logs_of_one_step_are_both_kept(tmp_path):
    files = write(tmp_path, [5])
    files.log(read_row(5, {"eval_loss": 2.0}))
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 2


def test_nan_comes_back(tmp_path):
    write(tmp_path, [1], kl=math.inf, entropy=None).close()
    (row,) = read_metrics(tmp_path / "metrics.jsonl")
    assert math.isnan(row["kl"]) and math.isnan(row["kl_per_token"]) and row["entropy"] is None
    assert "nonfinite" not in row


def alert(opened, step=None, closed=None, severity=Severity.WARNING):
    return Alert(step or opened, "r", severity, "kl", math.nan, "m", "a", {}, opened, closed)


def test_alerts_are_read_as_last_reported(tmp_path):
    files = write(tmp_path, range(1, 9))
    files.alert(alert(2), "opened")
    files.alert(alert(2, step=3, severity=Severity.ERROR), "raised")
    files.alert(alert(2, step=3, severity=Severity.ERROR, closed=6), "recovered")
    assert [line["event"] for line in strict(tmp_path / "alerts.jsonl")] == ["opened", "raised", "recovered"]
    (read,) = read_alerts(tmp_path / "alerts.jsonl")
    assert (read.opened, read.severity, read.closed) == (2, "error", 6)


def test_alerts_of_steps_that_a_resume_logged_again_are_dropped(tmp_path):
    first = write(tmp_path, range(1, 9))
    first.alert(alert(2), "opened")
    first.alert(alert(7), "opened")
    write(tmp_path, range(5, 9)).close()
    assert [a.opened for a in read_alerts(tmp_path / "alerts.jsonl")] == [2]
    assert read_alerts(tmp_path / "nothing.jsonl") == []


def test_the_summary_is_strict_json_and_replaced_whole(tmp_path):
    files = RunFiles(tmp_path)
    files.summary({"a": 1})
    files.summary({"b": math.nan})
    assert json.loads((tmp_path / "summary.json").read_text(), parse_constant=refuse) == {"b": None, "nonfinite": ["b"]}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alerts.jsonl", "metrics.jsonl", "summary.json"]


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, which Linux has")
def test_a_full_disk_is_one_warning(tmp_path, warnings):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    files = write(tmp_path, range(20))
    files.alert(alert(1), "opened")
    files.close()
    assert len(warnings()) == 1 and "No space left" in warnings()[0]
    assert len(strict(tmp_path / "alerts.jsonl")) == 1


def test_a_file_in_place_of_the_folder_is_one_warning(tmp_path, warnings):
    (tmp_path / "trl_ext").write_text("in the way")
    files = write(tmp_path / "trl_ext", range(5))
    files.alert(alert(1), "opened")
    files.summary({})
    files.close()
    assert len(warnings()) == 1


def test_a_read_only_disk_is_one_warning(tmp_path, warnings, monkeypatch):
    def refuse_open(*args, **kwargs):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("builtins.open", refuse_open)
    monkeypatch.setattr(Path, "write_text", refuse_open)
    files = write(tmp_path, range(5))
    files.summary({})
    assert len(warnings()) == 1 and "Read-only" in warnings()[0]


def test_after_a_failed_write_the_next_starts_on_a_fresh_line(tmp_path, warnings):
    files = write(tmp_path, [1])

    class HalfFull:
        def __init__(self, file):
            self.file, self.writes = file, 0

        def write(self, data):
            self.writes += 1
            if self.writes == 1:
                return self.file.write(data[:10])
            return self.file.write(data)

        def close(self):
            self.file.close()

    files._metrics._file = HalfFull(files._metrics._file)
    for step in (2, 3, 4):
        files.log(read_row(step, {"reward": 0.5}))
    files.close()
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 3, 4]


def test_after_closing_nothing_is_written_and_nothing_raised(tmp_path):
    files = write(tmp_path, [1])
    files.close()
    files.close()
    files.log(read_row(2, {"reward": 1.0}))
    assert len(strict(tmp_path / "metrics.jsonl")) == 1
