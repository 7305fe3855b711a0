"""`trl-ext pipeline`: what runs, what is skipped, and that it goes on after whatever ended it.

The stages are a script that writes down its options and what it found in the folder of the stage before.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import psutil
import pytest
import yaml

from trl_ext.cli import main
from trl_ext.pipeline.definition import read_pipeline

ROOT = Path(__file__).parents[1]
RECIPE = """
import json, os, sys, time
from pathlib import Path
import yaml
options = yaml.safe_load(Path(sys.argv[sys.argv.index("--config") + 1]).read_text())
folder = Path(options["output_dir"])
folder.mkdir(parents=True, exist_ok=True)
if options.get("sleep") and "resume_from_checkpoint" not in options:
    (folder / "checkpoint-3").mkdir(exist_ok=True)
    (folder / "checkpoint-3" / "model.safetensors").write_bytes(
        b"\\x38" + bytes(7) + b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'.ljust(56) + b"a")
    (folder / "checkpoint-3" / "trainer_state.json").write_text(options.get("state", '{"global_step": 3}'))
    Path("pid").write_text(str(os.getpid()))
    time.sleep(options["sleep"])
if options.get("status"):
    sys.exit(options["status"])
found = json.loads(Path(options["start"], "made.json").read_text()) if "start" in options else []
(folder / "made.json").write_text(json.dumps([*found, {k: v for k, v in options.items() if k != "output_dir"}]))
with open("runs.txt", "a") as file:
    file.write(folder.name + "\\n")
"""

WRITES = """
for name, content in options.get("files", {}).items():
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(content)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("step.py").write_text(RECIPE)
    return tmp_path


def write(*stages: dict, **more) -> str:
    content = {"output_dir": "out", "stages": [{"recipe": "step", **stage} for stage in stages], **more}
    Path("p.yaml").write_text(yaml.safe_dump(content))
    return "p.yaml"


FIRST, SECOND = {"name": "a", "options": {"x": 1}}, {"name": "b", "options": {"start": "{a}", "x": 2}}
THIRD = {"name": "c", "options": {"x": 3}}


def ran() -> list[str]:
    return Path("runs.txt").read_text().split() if Path("runs.txt").exists() else []


def made(stage: str) -> list[dict]:
    return json.loads(Path("out", stage, "made.json").read_text())


def test_each_stage_starts_from_the_folder_of_the_one_it_names(here, capsys):
    Path("step.yaml").write_text("x: 0\ny: 5\n")
    assert main(["pipeline", write(FIRST, SECOND, THIRD)]) == 0
    assert ran() == ["a", "b", "c"]
    assert made("b") == [{"x": 1, "y": 5}, {"x": 2, "y": 5, "start": "out/a"}]  # over those of the recipe's own file
    assert "out/a" in capsys.readouterr().out


def test_what_is_done_is_skipped(here, capsys):
    for _ in range(2):
        assert main(["pipeline", write(FIRST, SECOND, THIRD)]) == 0
    assert ran() == ["a", "b", "c"]
    assert "stage 2 of 3, b: done already, in out/b" in capsys.readouterr().err


def test_a_changed_stage_runs_again_with_what_starts_from_it_and_the_old_folder_is_kept(here, capsys):
    main(["pipeline", write(FIRST, SECOND, THIRD)])
    file = write({**FIRST, "options": {"x": 7}}, SECOND, THIRD)
    assert main(["pipeline", file, "--dry-run"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")][-3:] == [
        "a: x changed", "b: a runs again", "c: done"
    ]  # fmt: skip
    assert main(["pipeline", file]) == 0
    assert ran() == ["a", "b", "c", "a", "b"]
    assert made("b")[0] == {"x": 7}
    assert json.loads(Path("out/a.before-1/made.json").read_text()) == [{"x": 1}]


@pytest.mark.parametrize(
    "lose",
    [
        Path.unlink,
        lambda path: path.write_text(""),
        lambda path: os.truncate(path, 5),
        lambda path: path.write_text(path.read_text() + "more"),
    ],
)
def test_a_stage_whose_file_was_lost_runs_again(here, lose):
    main(["pipeline", write(FIRST, SECOND)])
    lose(Path("out/a/made.json"))
    assert main(["pipeline", write(FIRST, SECOND)]) == 0
    assert ran() == ["a", "b", "a", "b"]


def test_a_stage_that_fails_ends_it_in_one_line_and_the_same_command_goes_on(here, capsys):
    assert main(["pipeline", write(FIRST, {"name": "b", "options": {"status": 4}}, THIRD)]) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line.startswith("trl-ext: error: stage 2 of 3, b failed after") and "with status 4" in line
    assert main(["pipeline", write(FIRST, {"name": "b", "options": {"x": 2}}, THIRD)]) == 0
    assert ran() == ["a", "b", "c"]


def test_a_stage_that_cannot_go_on_is_told_how_to_begin_anew(here, capsys):
    """One whose checkpoints lack what its own trainer loads, say."""
    stage = {"name": "b", "options": {"sleep": 0.01, "status": 2}}
    assert main(["pipeline", write(FIRST, stage)]) == 2
    assert "begins anew)" not in capsys.readouterr().err.splitlines()[-1]
    assert main(["pipeline", write(FIRST, stage)]) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("kept (without out/b this stage begins anew)")


@pytest.mark.parametrize(("state", "resumed"), [('{"global_step": 3}', True), ("{}", False), ('{"half', False)])
def test_after_a_kill_it_ends_what_still_runs_and_goes_on_from_a_whole_checkpoint(here, state, resumed, capsys):
    file = write(FIRST, {"name": "b", "options": {"sleep": 60, "state": state}})
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-m", "trl_ext.cli", "pipeline", file], env=environment)
    stage = _number("pid")
    process.kill()
    process.wait()
    assert psutil.pid_exists(stage)
    Path("pid").unlink()
    if not resumed:  # it begins anew, and is ended from here
        process = subprocess.Popen([sys.executable, "-m", "trl_ext.cli", "pipeline", file], env=environment)
        assert _number("pid") != stage
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 130
        assert not psutil.pid_exists(_number("pid"))
        assert Path("out/b.before-1").exists()
    else:
        assert main(["pipeline", file]) == 0
        assert made("b")[0]["resume_from_checkpoint"] == "true"
        assert "was ended" in capsys.readouterr().err
        main(["pipeline", file])
        assert ran() == ["a", "b"]  # done, though its options had one more the last time
    assert not psutil.pid_exists(stage)


def _number(path: str) -> int:
    deadline = time.monotonic() + 60
    while not (Path(path).exists() and Path(path).read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return int(Path(path).read_text())


def test_a_stage_is_launched_by_accelerate_where_a_configuration_is_named(here):
    config = ROOT / "accelerate_configs" / "cpu.yaml"
    assert main(["pipeline", write(FIRST), "--accelerate_config", str(config)]) == 0
    assert made("a") == [{"x": 1}]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"output_dir": None}, "output_dir is missing: write output_dir: runs/pipeline"),
        ({"stages": []}, "stages is missing: write stages: [{name: sft"),
        ({"stage": []}, "unknown key 'stage'; did you mean stages?"),
        ({"stages": [{"name": "a", "recipe": "step", "option": {}}]}, "unknown key 'option'; did you mean options?"),
        ({"stages": [{"name": "a/b", "recipe": "step"}]}, "a name of letters, digits, _ and - is missing"),
        ({"stages": [{"name": "a", "recipe": "stop"}]}, "stage a: recipe: there is no file stop.py"),
        ({"stages": [{"name": "a", "recipe": "step", "config": "no.yaml"}]}, "config: there is no file no.yaml"),
        ({"stages": [{"name": "a", "recipe": "step", "options": {"output_dir": "x"}}]}, "take it out of options"),
        ({"stages": [FIRST | {"recipe": "step"}] * 2}, "two stages are called 'a'"),
        ({"stages": [FIRST | {"recipe": "step"}, {"name": "b", "recipe": "step", "options": {"start": "{aa}"}}]},
         "{aa} is no stage before this one; did you mean a?"),
        ({"stages": [{"name": "b", "recipe": "step", "options": {"start": "{b}"}}]}, "{b} is no stage before this one"),
        ({"accelerate_config": "no.yaml"}, "accelerate_config: there is no file no.yaml"),
        ({"stages": [{"name": "a", "recipe": "step", "options": {"run": date(2024, 1, 1)}}]},
         "options: run: 2024-01-01 is a date: put it in quotes"),
        ({"stages": [FIRST | {"recipe": "step"}, {"name": "b", "recipe": "step", "options": {"start": {"a": None}}}]},
         "options: start is a mapping without values: for the folder of a stage write '{a}'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_nothing_runs(here, change, expected, capsys):
    content = {"output_dir": "out", "stages": [{**FIRST, "recipe": "step"}]} | change
    Path("p.yaml").write_text(yaml.safe_dump(content))
    assert main(["pipeline", "p.yaml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("trl-ext: error: p.yaml: ") and expected in line
    assert not Path("out").exists()


def test_what_cannot_be_written_is_one_line(here, capsys):
    Path("out/a.yaml").mkdir(parents=True)
    assert main(["pipeline", write(FIRST)]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "trl-ext: error: stage 1 of 1, a: cannot write into out: Is a directory"
    )
    assert main(["pipeline", write(FIRST), "--output_dir", "step.py"]) == 2
    assert capsys.readouterr().err == "trl-ext: error: output_dir step.py is a file: name a folder\n"


def test_a_stage_that_is_killed_is_told_as_such(here, capsys):
    Path("step.py").write_text("import os; os.kill(os.getpid(), 9)")
    assert main(["pipeline", write(FIRST)]) == 2
    assert "seconds by signal 9, by hand or by the kernel" in capsys.readouterr().err.splitlines()[-1]


def test_a_stage_that_was_killed_before_it_wrote_leaves_nothing_aside(here, capsys):
    step = Path("step.py").read_text()
    Path("step.py").write_text("import os; os.makedirs('out/a'); os.kill(os.getpid(), 9)")
    assert main(["pipeline", write(FIRST)]) == 2
    Path("step.py").write_text(step)
    assert main(["pipeline", write(FIRST), "--dry-run"]) == 0
    assert "a: it was cut short" in capsys.readouterr().out
    assert main(["pipeline", write(FIRST)]) == 0
    assert sorted(path.name for path in Path("out").glob("a*")) == ["a", "a.yaml"]


@pytest.mark.parametrize("content", [
    "{", "[]", '{"stages": []}', '{"stages": {"a": {}}}', '{"stages": {"a": 5}}',
    '{"stages": {"a": {"recipe": "step.py", "options": 5, "from": {}}}}',
    '{"stages": {"a": {"recipe": "step.py", "options": {}, "from": {}, "made": [3]}}}',
    '{"stages": {"a": {"recipe": "step.py", "options": {}, "from": {}, "made": {"x": "y"}}}}',
    *(
        json.dumps({"stages": {"a": {"recipe": "step.py", "options": {}, "from": {}, "made": {name: 1}}}})
        for name in ("a" * 5000, "\ud800", "../../etc/passwd", "", "a\n")
    ),
    "[" * 200_000,
    '{"stages": {"a": {"recipe": "step.py", "options": {}, "from": {}, "pid": -1}}}',
    '{"stages": {"a": {"recipe": "step.py", "options": {}, "from": {}, "ended": NaN}}}',
    '{"stages": {"a": {"recipe": "step.py", "options": {}, "from": {}, "seconds": 1e999}}}',
])  # fmt: skip
def test_a_broken_state_is_one_line(here, content, capsys):
    Path("out").mkdir()
    Path("out/pipeline.json").write_text(content)
    assert main(["pipeline", write(FIRST), "--dry-run"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "out/pipeline.json" in line and "remove it, and every stage runs again" in line


def test_options_that_a_recipe_of_ours_refuses_are_told_before_anything_runs(here, capsys):
    recipe = str(ROOT / "recipes" / "reward.py")
    second = {"name": "reward", "recipe": recipe, "options": {"lerning_rate": 1, "output": "x"}}
    assert main(["pipeline", write(FIRST, second)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "trl-ext: error: stage reward: options: unknown option 'lerning_rate'; did you mean learning_rate?"
    assert ran() == []
    no_engine = str(ROOT / "recipes" / "sft.yaml")
    assert main(["pipeline", write(FIRST), "--accelerate_config", no_engine]) == 2
    assert "is no configuration of Accelerate" in capsys.readouterr().err
    assert main(["pipeline", write(FIRST), "--num_processes", "0"]) == 2
    assert "--num_processes must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_stage_ends_with_its_pipeline_and_not_under_nohup(here, number):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    file = write({"name": "b", "options": {"sleep": 60}})
    for nohup in ([], ["nohup"]) if number == signal.SIGHUP else ([],):
        words = [*nohup, sys.executable, "-m", "trl_ext.cli", "pipeline", file]
        # the tests may run under nohup themselves, and what is ignored is inherited
        process = subprocess.Popen(
            words, env=environment, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)
        )
        stage = _number("pid")
        process.send_signal(number)
        if nohup:
            time.sleep(1)
            assert process.poll() is None and psutil.pid_exists(stage)
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 130
        assert not psutil.pid_exists(stage)
        Path("pid").unlink()
        shutil.rmtree("out")


def test_what_was_compared_is_shown_again(here, capsys):
    stage = {"name": "compare", "options": {"files": {"comparison.txt": "the table", "comparison.json": '{"p": {}}'}}}
    Path("step.py").write_text(RECIPE + WRITES)
    for _ in range(2):
        assert main(["pipeline", write(stage)]) == 0
    assert capsys.readouterr().out.count("the table\n") == 1


@pytest.mark.parametrize("source", [
    "import trl_ext\nopen('ran', 'w')\n",
    "from trl_ext.configuration import parse\nx = open('ran', 'w')\ndef main(args=None): parse(())\n",
    "from trl_ext.configuration import cli_errors, parse\nif True:\n    open('ran', 'w')\n"
    "@cli_errors()\ndef main(args): ...\n",
])  # fmt: skip
def test_a_script_that_is_no_recipe_of_our_kind_is_not_run_to_look_at_its_options(here, source):
    Path("step.py").write_text(source)
    assert main(["pipeline", write(FIRST), "--dry-run"]) == 0
    assert not Path("ran").exists()


def test_a_stage_that_cannot_be_looked_at_does_not_hide_the_next_and_lends_it_no_environment(here, capsys):
    Path("first.py").write_text(
        "from trl_ext.configuration import cli_errors, parse\n"
        "@cli_errors()\ndef main(args=None):\n    raise SystemExit(3)\n"
    )
    sft = str(ROOT / "recipes" / "sft.py")
    stages = [{"name": "a", "recipe": "first"}, {"name": "b", "recipe": sft, "options": {"env": {"X_OF_B": "1"}}},
              {"name": "c", "recipe": sft, "options": {"nubmer": 3}}]  # fmt: skip
    assert main(["pipeline", write(*stages), "--dry-run"]) == 2
    assert "stage c: options: unknown option 'nubmer'" in capsys.readouterr().err


def test_two_at_a_time_in_one_folder_are_refused(here, capsys):
    from trl_ext.pipeline.state import PipelineState

    file = write(FIRST)
    first = PipelineState(read_pipeline(file))
    assert main(["pipeline", file]) == 2
    assert "a pipeline runs in out now" in capsys.readouterr().err
    first.close()


def test_the_repositorys_own_pipeline_names_recipes_options_and_stages_that_exist():
    pipeline = read_pipeline(ROOT / "recipes" / "pipeline.yaml")
    assert [stage.name for stage in pipeline.stages] == ["sft", "reward", "dpo", "ppo", "compare"]
    assert {stage.name: stage.needs for stage in pipeline.stages} == {
        "sft": (), "reward": ("sft",), "dpo": ("sft",), "ppo": ("sft", "reward"),
        "compare": ("sft", "dpo", "ppo", "reward"),
    }  # fmt: skip


def test_the_table_tells_what_each_kind_of_stage_came_to(here, capsys):
    Path("step.py").write_text(RECIPE + WRITES)
    log = [{"step": 0, "eval_loss": 4.0}, {"step": 9, "loss": 3.1}]
    reward = [
        {"step": i, "objective/scores": i / 10, "reward_reliability/gold": -i, "objective/kl": 2.0} for i in range(11)
    ]
    dpo = {"eval_rewards/accuracies": 0.75, "eval_rewards/margins": 0.5, "eval_loss": 0.6}
    files = {
        "sft": {"trl_ext/metrics.jsonl": _lines(log), "eval_results.json": '{"eval_loss": 3.5}'},
        "dpo": {"eval_results.json": json.dumps(dpo)},
        "ppo": {"trl_ext/metrics.jsonl": _lines(reward)},
    }
    stages = [{"name": name, "options": {"files": content}} for name, content in files.items()]
    assert main(["pipeline", write(*stages)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "held-out loss 4.000 -> 3.500" in out
    assert "held-out accuracy 0.750, margin 0.500 nats" in out
    assert "reward 0 -> 1, gold reward 0 -> -10, KL 2 -> 2" in out


def _lines(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
