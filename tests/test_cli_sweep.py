"""`trl-ext sweep`: what is tried, what is noted, and that it goes on after whatever ended it.

The jobs are a script that logs a function of its options, so that the best is known.
"""

import csv
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
import yaml

from trl_ext import UserError
from trl_ext.cli import main
from trl_ext.sweep.definition import read_sweep
from trl_ext.sweep.jobs import command_of, end_left_over
from trl_ext.sweep.metric import value_of
from trl_ext.sweep.parameters import read_parameters
from trl_ext.sweep.points import draws, grid, points_of

ROOT = Path(__file__).parents[1]
JOB = """
import json, os, pathlib, sys, time
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
out = pathlib.Path(words["--output_dir"])
with open(out.parent / "calls.txt", "a") as calls:
    calls.write(out.name + chr(10))
mode = words.get("--mode", "ok")
if mode == "gone":
    import shutil
    shutil.rmtree(out)
    sys.exit(3)
if mode == "fail":
    print("some output")
    sys.exit("ValueError: it went wrong")
if mode == "hang" or (out.name == "2" and (out.parent / "hang").exists()):
    (out / "pid").write_text(str(os.getpid()))
    print("I hang", flush=True)
    time.sleep(600)
(out / "trl_ext").mkdir()
x, seed = float(words.get("--x", 0)), float(words.get("--seed", 0))
with open(out / "trl_ext" / "metrics.jsonl", "w") as log:
    for step in range(1, 21):
        value = None if mode == "nan" and step == 20 else -(x - 3) ** 2 + seed + (step - 19.5) / 100
        row = {"step": step, "session": 0, "objective/rlhf_reward": value}
        if value is None:
            row["nonfinite"] = ["objective/rlhf_reward"]
        log.write(json.dumps({"step": step, "session": 0, "other": 1.0} if mode == "silent" else row) + chr(10))
"""


@pytest.fixture
def sweep_file(tmp_path):
    """Writes `sweep.yaml` for the script above, and returns its path."""
    (tmp_path / "job.py").write_text(JOB)

    def write(parameters, **keys):
        content = {
            "command": [sys.executable, str(tmp_path / "job.py")],
            "metric": "objective/rlhf_reward",
            "output_dir": str(tmp_path / "out"),
            "parameters": parameters,
        }
        path = tmp_path / "sweep.yaml"
        given = {key: value for key, value in {**content, **keys}.items() if value is not None}
        path.write_text(yaml.safe_dump(given, sort_keys=False))
        return str(path)

    return write


def events(tmp_path):
    return [json.loads(line) for line in (tmp_path / "out" / "sweep.jsonl").read_text().splitlines()]


def calls(tmp_path):
    return (tmp_path / "out" / "calls.txt").read_text().split()


def results(capsys, path):
    code = main(["sweep", path, "--json"])
    return code, json.loads(capsys.readouterr().out)["results"]


def test_every_combination_is_run_once_and_the_best_comes_first(sweep_file, tmp_path, capsys):
    path = sweep_file({"x": [1, 2.5, 4], "other": [True, "a b"]})
    code, found = results(capsys, path)
    assert code == 0 and calls(tmp_path) == list("123456")
    assert {tuple(each["parameters"].values()) for each in found} == set(itertools.product([1, 2.5, 4], [True, "a b"]))
    # the mean over the last two of 20 logs: -(x - 3)^2 exactly
    assert [each["value"] for each in found] == pytest.approx([-0.25, -0.25, -1, -1, -4, -4])
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    assert written["results"] == found and (written["metric"], written["goal"]) == ("objective/rlhf_reward", "maximize")
    rows = list(csv.reader((tmp_path / "out" / "results.csv").open()))
    assert rows[0] == ["jobs", "x", "other", "objective/rlhf_reward", "status", "seconds", "note"]
    assert [row[1] for row in rows[1:]] == ["2.5", "2.5", "4", "4", "1", "1"]


def test_a_second_call_runs_nothing_again_and_says_the_same(sweep_file, tmp_path, capsys):
    path = sweep_file({"x": [1, 2]}, goal="minimize")
    first = results(capsys, path)
    assert [each["value"] for each in first[1]] == pytest.approx([-4, -1])
    assert results(capsys, path) == first
    assert calls(tmp_path) == ["1", "2"]


def test_a_job_that_fails_hangs_or_logs_nothing_is_noted_and_the_next_one_runs(sweep_file, tmp_path, capsys):
    path = sweep_file({"mode": ["fail", "hang", "silent", "nan", "ok"]}, timeout=1.5)
    code, found = results(capsys, path)
    assert code == 0
    by_mode = {each["parameters"]["mode"]: each for each in found}
    assert [each["status"] for each in found] == ["ok", "failed", "timeout", "no metric", "no metric"]
    assert by_mode["fail"]["note"] == "status 1: ValueError: it went wrong"
    assert by_mode["hang"]["note"] == "ended after 1.5 seconds; its last line: I hang"
    assert by_mode["silent"]["note"] == "no objective/rlhf_reward was logged; there are other"
    assert by_mode["nan"]["note"] == "objective/rlhf_reward is not finite at the end"
    assert not psutil.pid_exists(int((tmp_path / "out" / "2" / "pid").read_text()))
    assert "some output\nValueError" in (tmp_path / "out" / "1" / "log.txt").read_text()
    assert main(["sweep", path]) == 0
    printed = capsys.readouterr().out
    assert "status 1: ValueError: it went wrong" in printed and "results.json" in printed


def test_status_1_when_no_job_gave_a_value_also_where_none_can_start(sweep_file, capsys):
    code, (result,) = results(capsys, sweep_file({"x": [1]}, command=["/no/such/program"]))
    assert (code, result["status"]) == (1, "failed")
    assert "cannot start /no/such/program: No such file" in result["note"]


def test_a_combination_is_judged_by_the_mean_of_its_seeds_and_by_none_if_one_fails(sweep_file, tmp_path, capsys):
    path = sweep_file({"x": [3, 2], "mode": ["ok"]}, seeds=[0, 1, 5])
    _, found = results(capsys, path)
    assert [(each["value"], each["jobs"]) for each in found] == [(pytest.approx(2), [1, 2, 3]), (1, [4, 5, 6])]
    state = [event for event in events(tmp_path) if event["event"] == "ended"]
    lines = [json.dumps(event) for event in events(tmp_path)]
    broken = json.dumps({**state[1], "value": None, "status": "failed", "note": "gone"})
    (tmp_path / "out" / "sweep.jsonl").write_text("\n".join([*lines, broken]) + "\n")
    _, found = results(capsys, path)
    assert [(each["value"], each["status"]) for each in found] == [(1, "ok"), (None, "failed (1 of 3)")]


def start(path):
    return subprocess.Popen(
        [sys.executable, "-m", "trl_ext.cli", "sweep", path],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )  # fmt: skip


def wait_for(path):
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"no {path}"
        time.sleep(0.02)


def alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def hanging_at_the_second_job(sweep_file, tmp_path):
    """A sweep of three whose second job hangs: (its file, its process, the process of the job)."""
    (tmp_path / "out").mkdir()
    path = sweep_file({"x": [1, 2, 3]})
    (tmp_path / "out" / "hang").touch()
    process = start(path)
    wait_for(tmp_path / "out" / "2" / "pid")
    time.sleep(0.1)  # what it says of the job is written by then
    return path, process, int((tmp_path / "out" / "2" / "pid").read_text())


def test_a_job_that_removes_its_own_folder_ends_no_sweep(sweep_file, tmp_path, capsys):
    assert main(["sweep", sweep_file({"mode": ["gone", "ok"]})]) == 0
    assert "its log.txt cannot be read" in capsys.readouterr().err
    assert calls(tmp_path) == ["1", "2"]


@pytest.mark.parametrize("line", [
    '{"event": "ended"}', '{"event": "ended", "job": 1}', '{"event": "ended", "job": [1]}', '{"event": "sweep"}',
    '{"event": "started", "job": "1", "parameters": {}}', '{"event": "begun", "job": 1}',
    '{"event": "started", "job": 1}', '{"event": "started", "job": 1, "parameters": "x"}',
    '{"event": "ended", "job": 1, "status": "ok", "note": "", "seconds": 1, "value": NaN}',
    '{"event": "ended", "job": 1, "status": "ok", "note": "", "seconds": 1e999, "value": 1}',
    '{"event": "ended", "job": 1, "status": "ok", "note": "", "seconds": 1, "value": "high"}',
])  # fmt: skip
def test_what_no_sweep_wrote_is_one_line(sweep_file, tmp_path, line, capsys):
    file = sweep_file({"x": [1]})
    assert main(["sweep", file]) == 0
    capsys.readouterr()
    with open(tmp_path / "out" / "sweep.jsonl", "a") as state:
        state.write(line + "\n")
    assert main(["sweep", file]) == 2
    assert "sweep.jsonl holds no events of a sweep in the line" in capsys.readouterr().err
    assert calls(tmp_path) == ["1"]


def test_a_file_of_another_kind_is_not_written_on(sweep_file, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "sweep.jsonl").write_bytes(bytes(range(256)) * 4)
    assert main(["sweep", sweep_file({"x": [1]})]) == 2
    assert "holds no events of a sweep" in capsys.readouterr().err
    assert (tmp_path / "out" / "sweep.jsonl").read_bytes() == bytes(range(256)) * 4


@pytest.mark.parametrize("damage", [
    lambda content: b"", lambda content: bytes(6), lambda content: bytes(range(128, 256)),
    lambda content: content[:40], lambda content: content.replace(b'{"event": "started"', b"garbage"),
    lambda content: content[:-30] + bytes(30), lambda content: content.replace(b'"status": "ok"', b'"status": "\xff'),
    lambda content: content.replace(b'"note": ""', b'"note": "\\ud800"'),
    lambda content: content.replace(b'"seconds": ', b'"seconds": 1' + b"0" * 400),
    lambda content: content + b"[" * 100_000 + b"\n", lambda content: content + bytes(30) + b"\n",
])  # fmt: skip
def test_a_damaged_file_runs_no_job_again(sweep_file, tmp_path, damage, capsys):
    file, state = sweep_file({"x": [1, 2]}), tmp_path / "out" / "sweep.jsonl"
    assert main(["sweep", file]) == 0
    damaged = damage(state.read_bytes())
    state.write_bytes(damaged)
    before = sorted(tmp_path.rglob("*"))
    capsys.readouterr()
    assert main(["sweep", file]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "sweep.jsonl" in line and "give another output_dir" in line and len(line) < 400
    assert state.read_bytes() == damaged and sorted(tmp_path.rglob("*")) == before


def test_a_sweep_killed_in_its_first_line_begins(sweep_file, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "sweep.jsonl").write_bytes(b'{"event": "sweep", "sweep": {"par')
    assert main(["sweep", sweep_file({"x": [1]})]) == 0
    assert calls(tmp_path) == ["1"]


@pytest.mark.parametrize("created", [float("nan"), 0.0])
def test_a_process_that_is_not_surely_the_left_over_one_is_let_be(created):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert not end_left_over({"pid": process.pid, "created": created})
        assert process.poll() is None
    finally:
        process.kill()


def test_a_sweep_that_was_killed_runs_the_job_in_progress_again_and_no_other(sweep_file, tmp_path, capsys):
    path, process, pid = hanging_at_the_second_job(sweep_file, tmp_path)
    assert main(["sweep", path]) == 2
    assert "a sweep runs in" in capsys.readouterr().err
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert alive(pid), "the job outlives the sweep"
    with (tmp_path / "out" / "sweep.jsonl").open("a") as state:
        state.write('{"event": "ended", "jo')  # what a killed process may leave
    (tmp_path / "out" / "hang").unlink()
    code, found = results(capsys, path)
    assert code == 0 and not alive(pid)
    assert sorted(each["value"] for each in found) == pytest.approx([-4, -1, 0])
    assert calls(tmp_path) == ["1", "2", "2", "3"]
    assert (tmp_path / "out" / "2.cut-short-1" / "pid").is_file()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_being_asked_to_end_ends_the_job_and_the_sweep_and_the_same_command_goes_on(
    number, sweep_file, tmp_path, capsys
):
    path, process, pid = hanging_at_the_second_job(sweep_file, tmp_path)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error.splitlines()[-1] == "trl-ext: ended; the same command goes on from here"
    assert "Traceback" not in error and not alive(pid)
    (tmp_path / "out" / "hang").unlink()
    assert results(capsys, path)[0] == 0
    assert calls(tmp_path) == ["1", "2", "2", "3"]


def test_another_sweep_in_the_folder_is_refused(sweep_file, tmp_path, capsys):
    (tmp_path / "base.yaml").write_text("beta: 1")
    keys = {"config": str(tmp_path / "base.yaml")}
    assert main(["sweep", sweep_file({"x": [1]}, **keys)]) == 0
    assert main(["sweep", sweep_file({"x": [1, 2]}, goal="minimize", **keys)]) == 2
    assert "holds another sweep, which differs in parameters, goal: give another output_dir" in capsys.readouterr().err
    (tmp_path / "base.yaml").write_text("beta: 2")
    assert main(["sweep", sweep_file({"x": [1]}, **keys)]) == 2
    assert "which differs in content of config" in capsys.readouterr().err


def test_a_recipe_gets_a_file_with_its_values_and_dry_run_runs_nothing(sweep_file, tmp_path, capsys):
    recipe = tmp_path / "recipe.py"
    recipe.write_text("import sys; print(open(sys.argv[sys.argv.index('--config') + 1]).read())")
    (tmp_path / "base.yaml").write_text("beta: 0.5\nlearning_rate: 1e-3\nreward_funcs: [{name: length}]\n")
    rewards = [{"name": "sentiment", "weight": 0.5}, "length"]
    path = sweep_file(
        {"learning_rate": [1e-5], "reward_funcs": [rewards]}, command=None, recipe=str(recipe), seeds=[7],
        config=str(tmp_path / "base.yaml"), arguments="--template debug", launcher=[sys.executable, "-u"],
    )  # fmt: skip
    assert main(["sweep", path, "--dry-run", "--json"]) == 0
    job = json.loads(capsys.readouterr().out)
    folder = str(tmp_path / "out" / "1")
    assert job["command"] == [
        sys.executable, "-u", str(recipe), "--template", "debug", "--config", f"{folder}/config.yaml", "--output_dir",
        folder,
    ]  # fmt: skip
    assert job["options"] == {"learning_rate": 1e-5, "reward_funcs": rewards, "seed": 7}
    assert not (tmp_path / "out").exists()
    assert main(["sweep", path]) == 1  # it logs nothing
    assert yaml.safe_load((tmp_path / "out" / "1" / "log.txt").read_text()) == {
        "beta": 0.5, "learning_rate": 1e-5, "reward_funcs": rewards, "seed": 7,
    }  # fmt: skip


def parameter(**content):
    return read_parameters("f", {"p": content})["p"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"min": 0.1, "max": 0.5, "step": 0.1}, [0.1, 0.2, 0.3, 0.4, 0.5]),
        ({"min": 1, "max": 6, "step": 2, "int": True}, [1, 3, 5]),
        ({"min": 1e-6, "max": 1e-3, "points": 4, "log": True}, [1e-6, 1e-5, 1e-4, 1e-3]),
        ({"min": 1, "max": 64, "points": 7, "log": True, "int": True}, [1, 2, 4, 8, 16, 32, 64]),
        ({"min": 0, "max": 1, "points": 3}, [0, 0.5, 1]),
    ],
)
def test_a_range_in_a_grid_has_the_values_it_says(content, expected):
    found = parameter(**content).values
    assert found == expected and all(type(each) is int for each in found) == content.get("int", False)


def test_draws_are_even_over_a_range_or_its_logarithm():
    parameters = {
        "linear": parameter(min=2.0, max=4.0),
        "log": parameter(min=1e-6, max=1e-2, log=True),
        "whole": parameter(min=1, max=3, int=True),
        "choice": read_parameters("f", {"p": ["a", "b"]})["p"],
    }
    found = draws(parameters, 4000, seed=0)
    assert len(found) == 4000 and all(2 <= point["linear"] <= 4 and 1e-6 <= point["log"] <= 1e-2 for point in found)
    spread = 4000**-0.5
    assert sum(point["linear"] for point in found) / 4000 == pytest.approx(3, abs=4 * 2 / 12**0.5 * spread)
    mean = sum(math.log10(point["log"]) for point in found) / 4000
    assert mean == pytest.approx(-4, abs=4 * 4 / 12**0.5 * spread)
    for value in (1, 2, 3):
        assert sum(point["whole"] == value for point in found) / 4000 == pytest.approx(1 / 3, abs=4 * 0.48 * spread)
    assert sum(point["choice"] == "a" for point in found) / 4000 == pytest.approx(0.5, abs=4 * 0.5 * spread)


def test_draws_are_the_same_for_the_same_seed_and_none_comes_twice():
    parameters = read_parameters("f", {"a": [1, 2, 3], "b": [True, False]})
    found = draws(parameters, 100, seed=3)
    assert found == draws(parameters, 100, seed=3) != draws(parameters, 100, seed=4)
    assert sorted(map(str, found)) == sorted(map(str, grid(parameters))), "all six, and no more"


def test_values_reach_a_command_as_words_that_argparse_takes(sweep_file):
    sweep = read_sweep(sweep_file({"x": [-1e-5], "y": [None], "flag": [True]}))
    words = command_of(sweep, 1, {"x": -1e-05, "y": None, "flag": True})
    assert words[words.index("--x=-1e-05") :][:5] == ["--x=-1e-05", "--y", "null", "--flag", "true"]


def test_the_value_of_a_run_is_the_mean_over_the_last_tenth_by_any_name(tmp_path):
    rows = [{"step": step, "loss": float(step), "learning_rate": 0.1} for step in range(1, 31)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": rows, "global_step": 30}))
    assert value_of(tmp_path, "loss").value == pytest.approx(29)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "session": 0, "objective/scores": 0.25}\n')
    assert value_of(tmp_path, "reward").value == value_of(tmp_path, "objective/scores").value == 0.25
    (tmp_path / "empty").mkdir()
    assert "no loss: found no log in the folder" in value_of(tmp_path / "empty", "loss").note


MISTAKES = {
    "no file": (None, "cannot read"),
    "a list": ("[1]", "expected lines such as"),
    "an unknown key": ({"metrik": "x"}, "unknown key 'metrik'; did you mean metric?"),
    "no metric": ({"metric": ""}, "metric is missing"),
    "both": ({"recipe": "a.py"}, "give either recipe, the path of a script, or command"),
    "no recipe": ({"command": None, "recipe": "a.py"}, "recipe: there is no file a.py"),
    "a method": ({"method": "bayes"}, "method is one of grid, random, optuna, not 'bayes'"),
    "a goal": ({"goal": "max"}, "goal is one of maximize, minimize"),
    "trials of a grid": ({"trials": 3}, "a grid tries every combination: drop trials"),
    "no trials": ({"method": "random"}, "method random needs trials"),
    "a range in a grid": ({"parameters": {"x": {"min": 0, "max": 1}}}, "a grid needs values: a list, or min and max"),
    "one value": ({"parameters": {"x": 3}}, "one value alone belongs into config"),
    "nothing": ({"parameters": {"x": []}}, "an empty list"),
    "a value twice": ({"parameters": {"x": [1, 1]}}, "a value is listed twice"),
    "upside down": ({"parameters": {"x": {"min": 2, "max": 1}}}, "min (2) must be below max (1)"),
    "a log of 0": ({"parameters": {"x": {"min": 0, "max": 1, "log": True}}}, "log needs min above 0"),
    "half a number": ({"parameters": {"x": {"min": 0.5, "max": 2, "int": True}}}, "int is true: give a whole number"),
    "an unknown part": ({"parameters": {"x": {"min": 0, "maxx": 2}}}, "unknown key 'maxx'; did you mean max?"),
    "output_dir": ({"parameters": {"output_dir": ["a"]}}, "output_dir is set for each job"),
    "output-dir": ({"parameters": {"output-dir": ["a"]}}, "output_dir is set for each job"),
    "a step for ever": ({"parameters": {"x": {"min": 1, "max": 1e9, "step": 1e-9}}}, "values; the most is 10,000"),
    "seed twice": ({"parameters": {"seed": [1]}, "seeds": [1]}, "keep one of them"),
    "a timeout": ({"timeout": -1}, "timeout expects seconds above 0"),
    "seeds": ({"seeds": 3}, "seeds expects a list of whole numbers"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_line_and_status_2(case, sweep_file, tmp_path, capsys):
    change, expected = MISTAKES[case]
    if isinstance(change, dict):
        path = sweep_file(**{"parameters": {"x": [1]}, **change})
    else:
        path = str(tmp_path / "mistake.yaml")
        if change:
            Path(path).write_text(change)
    assert main(["sweep", path]) == 2
    error = capsys.readouterr().err
    assert expected in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_without_optuna_the_extra_is_named(sweep_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    sweep = read_sweep(sweep_file({"x": {"min": 0, "max": 1}}, method="optuna", trials=3))
    with pytest.raises(UserError, match=r"pip install 'trl_ext\[sweep\]', or set method: random"):
        points_of(sweep)


@pytest.mark.skipif(find_spec("optuna") is None, reason="needs Optuna: pip install 'trl_ext[sweep]'")
def test_optuna_comes_closer_than_chance_and_a_resumed_study_knows_what_was_tried(sweep_file):
    keys = {"method": "optuna", "trials": 40, "seed": 1}
    sweep = read_sweep(sweep_file({"x": {"min": -50.0, "max": 50.0}, "kind": [["a"], {"b": 1}]}, **keys))

    def value(point):
        return -((point["x"] - 3) ** 2) - (point["kind"] == ["a"])

    points = points_of(sweep)
    tried = []
    for number in range(20):
        tried.append(points.next(number))
        points.tell(number, tried[-1], None if number == 5 else value(tried[-1]))
    resumed = points_of(sweep)
    for number, point in enumerate(tried):
        resumed.tell(number, point, None if number == 5 else value(point))
    for number in range(20, 40):
        tried.append(resumed.next(number))
        resumed.tell(number, tried[-1], value(tried[-1]))
    uninterrupted = points_of(sweep)
    for number, point in enumerate(tried):  # a resumed sweep goes on where it was
        assert uninterrupted.next(number) == point
        uninterrupted.tell(number, point, None if number == 5 else value(point))
    late = sorted(abs(point["x"] - 3) for point in tried[20:])[10]
    assert late < 18, "at random half of them lie within 25"
    other = points_of(sweep)  # as another version of Optuna would have asked
    other.tell(0, {"x": 1.5, "kind": ["a"]}, 1.0)
    assert [t.params for t in other._study.trials if t.value == 1.0] == [{"x": 1.5, "kind": 0}]
    trials = resumed._study.trials
    assert len(trials) == 40 and trials[5].state.name == "FAIL" and trials[0].value == pytest.approx(value(tried[0]))
