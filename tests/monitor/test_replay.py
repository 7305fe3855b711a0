"""A log read back, in every spelling, is judged as it was while the run went on."""

import csv
import json
import math
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trl_ext.errors import UserError
from trl_ext.monitor import Engine, RunFiles, read_metrics
from trl_ext.monitor.log_files import read_log
from trl_ext.monitor.replay import replay
from trl_ext.monitor.rows import read_row

SUMMARY = {"train_runtime": 9.0, "train_samples_per_second": 1.5, "train_loss": 0.25, "total_flos": 0.0, "epoch": 1.0}


def run_of_ppo(steps=40):
    """KL leaves the band at step 21, the reward is NaN at step 31; an evaluation every tenth step; numbers that twelve
    digits hold."""
    for step in range(1, steps + 1):
        yield step, {
            "objective/kl": 40.0 + step if step > 20 else 3.0 + step / 8,
            "objective/scores": math.nan if step == 31 else 0.5, "policy/entropy_avg": 0.75, "val/ratio": 1.0,
            "loss/value_avg": 0.25, "lr": 1e-05, "episode": 8 * step, "epoch": step / 64,
        }  # fmt: skip
        if step % 10 == 0:
            yield step, {"eval_loss": 0.5 + step / 64, "eval_runtime": 1.5, "epoch": step / 64}
    yield steps, dict(SUMMARY)


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def as_state(path, rows):
    history = [{**logs, "step": step} for step, logs in rows]
    path = path.with_suffix(".json")
    path.write_text(json.dumps({"best_metric": None, "max_steps": 40, "log_history": history}, indent=2))
    return path


def as_flat_lines(path, rows):
    return write_lines(path, [{**logs, "step": step} for step, logs in rows])


def as_nested_lines(path, rows):
    return write_lines(path, [{"step": step, "logs": logs} for step, logs in rows])


def as_list(path, rows):
    path.write_text(json.dumps([{**logs, "step": step} for step, logs in rows]))
    return path


def as_our_file(path, rows):
    files = RunFiles(path.parent)
    for step, logs in rows:
        files.log(read_row(step, logs))
    files.close()
    return path.parent / "metrics.jsonl"


def as_csv(path, rows, step_key="step", prefix=""):
    records = [{step_key: step, **{prefix + key: value for key, value in logs.items()}} for step, logs in rows]
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for record in records for key in record)))
        writer.writeheader()
        writer.writerows(records)
    return path


def as_wandb_csv(path, rows):
    rows = [(step, {key.replace("eval_", "eval/"): value for key, value in logs.items()}) for step, logs in rows]
    rows = [(s, {k if k.startswith("eval/") else f"train/{k}": v for k, v in logs.items()}) for s, logs in rows]
    return as_csv(path, rows, step_key="train/global_step")


FORMATS = [as_state, as_flat_lines, as_nested_lines, as_list, as_our_file, as_csv, as_wandb_csv]


def said(alerts):
    """What alerts say; as text, since NaN is not equal to itself."""
    return [repr({**alert.to_dict(), "value": float(alert.value), "evidence": None}) for alert in alerts]


def live(rows):
    engine = Engine()
    for step, logs in rows:
        engine.observe(step, logs)
    return said(engine.alerts)


def replayed(path, engine=None, wanted=()):
    return replay(read_log(path), engine or Engine(), path, wanted)


@pytest.mark.parametrize("write", FORMATS)
def test_every_format_gives_the_alerts_of_the_engine(tmp_path, write):
    rows = list(run_of_ppo())
    result = replayed(write(tmp_path / "log", rows))
    assert {"kl_high", "nonfinite_metric"} <= {alert.rule for alert in result.alerts}
    assert said(result.alerts) == live(rows)
    assert (result.rows, result.trainer, result.notes) == (len(rows), "PPO", [])


def test_the_summary_of_the_trainer_at_the_end_changes_nothing(tmp_path):
    rows = list(run_of_ppo())
    with_summary, without = (replayed(as_flat_lines(tmp_path / name, part)) for name, part in
                             (("with", rows), ("without", rows[:-1])))  # fmt: skip
    assert "train_runtime" in rows[-1][1]
    assert said(with_summary.alerts) == said(without.alerts)


def test_the_trainers_state_gives_facts(tmp_path):
    path = as_state(tmp_path / "log", run_of_ppo())
    engine = Engine()
    replayed(path, engine)
    assert read_log(path).facts == engine.facts == {"max_steps": 40}


class Recorder(Engine):
    """Remembers what it was told."""

    def __init__(self):
        super().__init__()
        self.heard = []

    def resumed(self):
        self.heard.append("resumed")
        super().resumed()

    def observe(self, step, logs):
        self.heard.append((step, logs))
        return super().observe(step, logs)


def heard(path):
    recorder = Recorder()
    result = replayed(path, recorder)
    return recorder.heard, result.notes


def test_a_step_that_goes_backwards_is_a_resume_and_one_that_repeats_is_not(tmp_path):
    steps = [1, 2, 2, 3, 2, 3]
    path = write_lines(tmp_path / "log", [{"step": step, "loss": 1.0} for step in steps])
    events = ["resumed" if event == "resumed" else event[0] for event in heard(path)[0]]
    assert events == [1, 2, 2, 3, "resumed", 2, 3]


def test_a_new_session_of_our_file_is_a_resume_and_what_it_logged_again_counts_once(tmp_path):
    for steps in (range(1, 8), range(5, 10)):  # killed after step 7, resumed from the checkpoint of step 4
        files = RunFiles(tmp_path)
        for step in steps:
            files.log(read_row(step, {"loss": step + files.session / 8}))
        files.close()
    path = tmp_path / "metrics.jsonl"
    events, notes = heard(path)
    kept = [(row["step"], row["loss"]) for row in read_metrics(path)]  # written apart from this reader
    assert events[4] == "resumed"
    assert [(step, logs["loss"]) for step, logs in events[:4] + events[5:]] == kept
    assert [step for step, _ in kept] == list(range(1, 10))
    assert notes == ["left out 3 rows: a later run in this file began again before them"]


def test_null_is_nan_where_our_file_says_so_and_no_data_elsewhere(tmp_path):
    lines = [{"step": 1, "session": 0, "kl": None, "reward": None, "loss": 1.0, "nonfinite": ["kl"]}]
    ((_, logs),), _ = heard(write_lines(tmp_path / "log", lines))
    assert math.isnan(logs.pop("kl"))
    assert logs == {"reward": None, "loss": 1.0}


def test_the_nulls_of_a_table_are_missing_but_the_trainers_none_is_kept(tmp_path):
    rows = [{"step": step, "loss": 0.5, "reward": 1.0, "eval_loss": None} for step in range(1, 9)]
    rows.append({"step": 8, "loss": None, "reward": None, "eval_loss": 0.5})
    table = write_lines(tmp_path / "table", rows)
    assert heard(table)[0][-1] == (8, {"eval_loss": 0.5})
    assert replayed(table).alerts == []
    rows[6]["reward"] = None
    (alert,) = replayed(write_lines(tmp_path / "log", rows)).alerts
    assert (alert.rule, alert.opened) == ("nonfinite_metric", 7)


def test_the_words_of_wandb_are_numbers(tmp_path):
    path = write_lines(tmp_path / "log", [{"step": 1, "loss": "NaN", "kl": "-Infinity", "note": "text"}])
    ((_, logs),), _ = heard(path)
    assert math.isnan(logs["loss"]) and logs["kl"] == -math.inf and logs["note"] == "text"


@pytest.mark.parametrize(
    ("records", "steps"),
    [
        ([{}, {}, {}], [1, 2, 3]),
        ([{"train/global_step": 5, "_step": 0}, {"_step": 1}, {"train/global_step": 6, "_step": 2}], [5, 5, 6]),
        ([{"_step": 7, "_runtime": 0.5}, {"train/global_step": 1, "_step": 8}], [7, 1]),
        ([{"global_step/max_steps": "5/100"}, {"global_step/max_steps": "10/100"}], [5, 10]),
        ([{"current_steps": 10, "total_steps": 99}], [10]),
        ([{"step": 3.0}, {"step": None}, {"step": "x"}], [3, 3, 3]),
    ],
)
def test_steps_come_from_whichever_key_carries_them(tmp_path, records, steps):
    events, _ = heard(write_lines(tmp_path / "log", [{**record, "loss": 1.0} for record in records]))
    assert [step for step, _ in events] == steps
    assert all(not key.startswith("_") and "global_step" not in key for _, logs in events for key in logs)


@pytest.mark.parametrize(
    "logs",
    [
        {"kl": 0.5, "objective/kl": 5.0, "reward": 1.0, "objective/scores": 2.0, "lr": 1e-5, "learning_rate": 2e-5},
        {"kl": 0.5, "rewards/chosen": 1.0, "logps/chosen": -9.0, "eval_kl": 0.25, "eval_loss": 1.5},
        {"rewards/f/mean": 1.0, "rewards/f/std": 0.5, "clip_ratio/region_mean": 0.25, "completions/mean_length": 9.0},
        {"entropy": 0.5, "policy/entropy_avg": 0.25, "mean_token_accuracy": 0.75, "system/rss_mb": 100.5},
    ],
)
def test_a_line_with_both_names_reads_as_the_log_did(tmp_path, logs):
    engine = Engine()
    replayed(as_our_file(tmp_path / "log", [(1, logs)]), engine)
    assert engine.row.metrics == read_row(1, logs).metrics


GOOD, CUT, BROKEN = '{"loss": 1.0}\n', '{"loss": 1.', '{"loss": nul}\n[1]\n'


@pytest.mark.parametrize(
    ("text", "rows", "notes"),
    [
        (GOOD + GOOD + CUT, 2, ["skipped the last line: it is cut off"]),
        (GOOD + CUT + "\n\n", 1, ["skipped the last line: it is cut off"]),
        (GOOD + BROKEN + GOOD, 2, ["skipped 2 broken lines"]),
        (CUT + "\n" + GOOD + CUT, 1, ["skipped the last line: it is cut off", "skipped 1 broken line"]),
        (GOOD + "\n  \n" + GOOD, 2, []),
        ("\ufeff" + GOOD, 1, []),
        ("step,loss\n1,0.5\n2,0.2", 2, []),
        ("step,loss,kl\n1,0.5,0.1\n2,0.5\n", 1, ["skipped the last line: it is cut off"]),
        ('step;loss\n1;0.5\n"2;0.5\n3;0.5\n', 2, ["skipped 1 broken line"]),
    ],
)
def test_broken_lines_are_skipped_and_counted(tmp_path, text, rows, notes):
    path = tmp_path / "log.csv"
    path.write_text(text, encoding="utf-8")
    result = replayed(path)
    assert (result.rows, result.notes) == (rows, notes)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"\x00\x01\x02", "is no text"),
        (b'{\n  "log_history": [\n    {"loss": 1.0},', "is no complete JSON"),
        (b'{"log_history": [], "max_steps": 5}', "holds no log of a run"),
        (b'{"loss": 1.0', "holds no log of a run; skipped the last line"),
        (b"Hello, this is\na text\n", "holds no log of a run; skipped the last line"),
        (b"plain words\n", "is neither JSON nor CSV"),
        (b"1,0.5\n2,0.25\n", "has no header"),
        (b'{"name": "x", "size": 3}\n', "holds no metric of a TRL trainer, only name, size"),
        (b'{"step": 1, "epoch": 0.5}\n', "holds no metric of a TRL trainer, only epoch"),
        (b'"Step","a - train/loss","a - train/loss__MIN","b - train/loss"\n', "holds 2 runs (a, b)"),
    ],
)
def test_what_cannot_be_judged_is_named_in_one_line(tmp_path, content, expected):
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        replayed(path)
    assert str(error.value).startswith(f"{path} {expected}")
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*nothing\.jsonl: No such file"):
        read_log(tmp_path / "nothing.jsonl")


def test_a_metric_of_the_users_own_rules_is_enough(tmp_path):
    path = write_lines(tmp_path / "log", [{"step": step, "mine": 5.0} for step in (1, 2, 3)])
    rule = {"name": "high", "metric": "mine", "comparison": ">", "value": 4, "logs": 3, "severity": "error"}
    (alert,) = replayed(path, Engine(custom_rules=[rule]), wanted=["mine"]).alerts
    assert (alert.rule, alert.opened, alert.severity) == ("high", 3, "error")


def test_a_metric_that_never_arrives_is_noted_at_the_end(tmp_path):
    path = write_lines(tmp_path / "log", [{"step": 1, "loss": 5.0}])
    rule = {"name": "high", "metric": "mine", "comparison": ">", "value": 4}
    (note,) = replayed(path, Engine(custom_rules=[rule])).notes
    assert "'mine' was never logged" in note and "loss" in note


def test_a_chart_exported_from_wandb_is_read(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(
        '"Step","my-run - train/loss","my-run - train/loss__MIN","my-run - train/loss__MAX"\n"7","0.5","1","2"\n'
    )
    engine = Engine()
    replayed(path, engine)
    assert (engine.row.step, engine.row.metrics) == (7, {"loss": 0.5})


def test_lines_are_streamed(tmp_path):
    logs = {f"rewards/function_{i}/mean": 0.5 for i in range(40)}
    path = write_lines(tmp_path / "log", ({"step": step, **logs} for step in range(5000)))
    tracemalloc.start()
    rows = sum(1 for _ in read_log(path).rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows == 5000 and path.stat().st_size > 6e6
    assert peak < 5e5


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.lists(st.none()))
KEYS = st.sampled_from(
    ["step", "session", "nonfinite", "logs", "loss", "kl", "_step", "eval_loss", "global_step/max_steps"]
)
RECORDS = st.dictionaries(KEYS, st.one_of(SCALARS, st.dictionaries(KEYS, SCALARS)))


@given(st.lists(st.one_of(RECORDS.map(lambda record: json.dumps(record).encode()), st.binary(max_size=12)), max_size=6))
def test_any_file_is_read_or_refused_by_a_user_error(tmp_path_factory, lines):
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(b"\n".join(lines))
    try:
        result = replayed(path)
    except UserError as error:
        assert "\n" not in str(error)
    else:
        json.dumps(result.to_dict(), allow_nan=False)


def test_numbers_that_were_written_as_strings_are_numbers(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(
        "".join(
            json.dumps({"step": i, "loss": "0.5", "grad_norm": "nan" if i == 3 else "1.2"}) + "\n" for i in range(6)
        )
    )
    log = read_log(path)
    rows = list(log.rows)
    assert rows[0].logs["loss"] == 0.5 and math.isnan(rows[3].logs["grad_norm"])


def test_our_file_says_which_infinity_and_by_the_logged_key(tmp_path):
    """KTO's `kl` is another quantity beside its rewards."""
    logs = {"loss": 0.5, "rewards/chosen": 0.1, "logps/chosen": -9.0}
    rows = [(1, {**logs, "kl": 0.1}), (2, {**logs, "kl": math.inf}), (3, {**logs, "kl": -math.inf})]
    live, engine = Engine(), Engine()
    for step, row in rows:
        live.observe(step, row)
    replayed(as_our_file(tmp_path / "log", rows), engine)
    assert [alert.message for alert in engine.alerts] == [alert.message for alert in live.alerts]
    assert "kl is inf" in engine.alerts[0].message


@pytest.mark.parametrize("text", ["\x1c", "\x1d\n\x1e", "\x0b\n"])
def test_a_file_of_blanks_alone_is_refused(tmp_path, text):
    (tmp_path / "blank").write_text(text)
    with pytest.raises(UserError):
        replay(read_log(tmp_path / "blank"), Engine(), "blank")
