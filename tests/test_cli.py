"""`trl-ext replay`: what it prints, and the exit code."""

import json
import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from trl_ext.cli import main
from trl_ext.monitor import Engine
from trl_ext.monitor.log_files import read_log
from trl_ext.monitor.replay import replay

ROOT = Path(__file__).parents[1]
KEYS = {"step", "rule", "severity", "metric", "value", "message", "advice", "opened", "closed"}


def write_log(path, kl=1.0, steps=20):
    """A run of PPO whose KL is `kl` throughout: above 10 is a warning, above 30 an error, NaN critical."""
    row = {"objective/kl": kl, "objective/scores": 0.5, "val/ratio": 1.0, "loss/value_avg": 0.25}
    path.write_text("".join(json.dumps({"step": step, **row}) + "\n" for step in range(1, steps + 1)))
    return str(path)


@pytest.fixture
def healthy(tmp_path):
    return write_log(tmp_path / "healthy.jsonl")


@pytest.fixture
def broken(tmp_path):
    return write_log(tmp_path / "broken.jsonl", kl=float("nan"))


def strict(text):
    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def run(*arguments, **options):
    command = [sys.executable, "-m", "trl_ext.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, **options)


def test_json_has_the_documented_keys_and_is_strict(broken, capsys):
    assert main(["replay", broken, "--json", "--rules", "nonfinite_metric"]) == 0
    result = strict(capsys.readouterr().out)
    assert set(result) == {"path", "rows", "trainer", "alerts", "notes"}
    assert (result["path"], result["rows"], result["trainer"], result["notes"]) == (broken, 20, "PPO", [])
    (alert,) = result["alerts"]
    assert set(alert) == KEYS
    assert alert["value"] is None and alert["severity"] == "critical" and alert["closed"] is None
    assert (alert["rule"], alert["metric"], alert["step"], alert["opened"]) == (
        "nonfinite_metric", "kl_per_sequence", 1, 1,
    )  # fmt: skip


def test_json_says_what_the_engine_says(tmp_path, capsys):
    path = write_log(tmp_path / "log.jsonl", kl=40.0)
    engine = Engine()
    for line in Path(path).read_text().splitlines():
        logs = json.loads(line)
        engine.observe(logs.pop("step"), logs)
    main(["replay", path, "--json"])
    told = json.loads(capsys.readouterr().out)["alerts"]
    assert told == [{key: alert.to_dict()[key] for key in KEYS} for alert in engine.alerts]
    assert told == replay(read_log(path), Engine(), path).to_dict()["alerts"]
    assert "kl_high" in {alert["rule"] for alert in told}


def test_several_paths_are_an_object_a_line_and_a_bad_one_stops_no_other(healthy, broken, tmp_path, capsys):
    assert main(["replay", healthy, str(tmp_path / "none"), broken, "--json", "--fail-on", "critical"]) == 2
    out, err = capsys.readouterr()
    assert [strict(line)["path"] for line in out.splitlines()] == [healthy, broken]
    assert err == f"trl-ext: error: cannot read {tmp_path / 'none'}: No such file or directory\n"


@pytest.mark.parametrize(
    ("kl", "codes"),
    [
        (1.0, {"warning": 0, "error": 0, "critical": 0}),
        (12.0, {"warning": 3, "error": 0, "critical": 0}),
        (40.0, {"warning": 3, "error": 3, "critical": 0}),
        (float("nan"), {"warning": 3, "error": 3, "critical": 3}),
    ],
)
def test_fail_on_is_the_severity_from_which_the_exit_code_is_3(tmp_path, kl, codes):
    path = write_log(tmp_path / "log.jsonl", kl)
    rules = ["--rules", "kl_high,nonfinite_metric"]
    assert main(["replay", path, *rules]) == 0
    assert {level: main(["replay", path, *rules, "--fail-on", level]) for level in codes} == codes


def test_the_worst_of_all_paths_counts(healthy, broken):
    assert main(["replay", broken, healthy, "--fail-on", "critical"]) == 3


def test_the_table_is_plain_text_where_it_is_no_terminal(broken, healthy):
    done = run("replay", broken, healthy, "--rules", "nonfinite_metric")
    assert done.returncode == 0 and done.stderr == ""
    assert "\x1b" not in done.stdout
    table = [line for line in done.stdout.splitlines() if not line.startswith((str(broken), str(healthy)))]
    assert max(map(len, table)) <= 120  # a path is as long as it is
    assert f"{broken}  PPO, 20 logs: 1 critical" in done.stdout
    assert f"{healthy}  PPO, 20 logs: nothing to complain about" in done.stdout
    words = " ".join(done.stdout.split())
    assert "objective/kl is nan" in words
    assert "resume_from_checkpoint" in words  # the advice


def test_square_brackets_are_text(tmp_path, capsys):
    path = write_log(tmp_path / "[bold]run[red].jsonl")
    assert main(["replay", path]) == 0
    assert "[bold]run[red].jsonl" in capsys.readouterr().out


def test_what_was_skipped_is_noted_on_stderr(healthy, capsys):
    with open(healthy, "a") as file:
        file.write('{"step": 21, "object')
    assert main(["replay", healthy, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == f"trl-ext: {healthy}: skipped the last line: it is cut off\n"
    assert json.loads(out)["notes"] == ["skipped the last line: it is cut off"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--rules", "kl_hihg"], "unknown rule 'kl_hihg': did you mean 'kl_high'?"),
        (["--preset", "ppo_save"], "unknown preset 'ppo_save': did you mean 'ppo_safe'?"),
        (["--window", "3"], "window must be a whole number of at least 8"),
        (["--warmup-steps", "-1"], "warmup_steps must be"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(healthy, capsys, arguments, expected):
    assert main(["replay", healthy, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith(f"trl-ext: error: {expected}")


@pytest.mark.parametrize("option", ["--thresholds", "--custom-rules"])
def test_a_file_that_is_not_there_is_one_line_and_exit_code_2(healthy, capsys, option):
    import trl_ext.callbacks  # noqa: F401 - what other packages say when they are imported is not ours

    capsys.readouterr()
    assert main(["replay", healthy, option, "/nowhere.yaml"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith("trl-ext: error: cannot read") and "/nowhere.yaml" in err


def test_json_is_alone_on_stdout_whatever_imports_print(tmp_path, healthy):
    rules = tmp_path / "rules.yaml"
    rules.write_text("- {metric: loss, comparison: '>', value: 1}\n")
    done = run("replay", healthy, "--json", "--custom-rules", rules, env={**os.environ, "WANDB_MODE": "offline"})
    assert done.returncode == 0
    assert strict(done.stdout)["rows"] == 20


def test_options_reach_the_engine(tmp_path, capsys):
    path = write_log(tmp_path / "log.jsonl", kl=9.0)
    assert main(["replay", path, "--json", "--rules", "kl_high"]) == 0
    assert json.loads(capsys.readouterr().out)["alerts"] == []
    assert main(["replay", path, "--json", "--preset", "ppo_safe"]) == 0  # its limit is 8
    assert "kl_high" in {alert["rule"] for alert in json.loads(capsys.readouterr().out)["alerts"]}


def test_the_users_files_reach_the_engine(tmp_path, capsys):
    path = write_log(tmp_path / "log.jsonl", kl=9.0)
    limits, rules = tmp_path / "limits.yaml", tmp_path / "rules.yaml"
    limits.write_text("kl_high: {per_sequence_warning: 5}\n")
    rules.write_text('- {name: mine, metric: objective/kl, comparison: ">", value: 8, logs: 20, severity: critical}\n')
    arguments = ["--rules", "kl_high", "--thresholds", str(limits), "--custom-rules", str(rules), "--json"]
    assert main(["replay", path, *arguments, "--fail-on", "critical"]) == 3
    alerts = {alert["rule"]: alert for alert in json.loads(capsys.readouterr().out)["alerts"]}
    assert set(alerts) == {"kl_high", "mine"}
    assert (alerts["mine"]["opened"], alerts["mine"]["severity"]) == (20, "critical")


def test_a_log_of_the_users_own_metrics_is_judged_by_their_own_rules(tmp_path, capsys):
    path, rules = tmp_path / "log.jsonl", tmp_path / "rules.yaml"
    path.write_text('{"mine": 5}\n')
    rules.write_text("- {metric: mine, comparison: '>', value: 4, logs: 1}\n")
    assert main(["replay", str(path), "--custom-rules", str(rules), "--fail-on", "warning"]) == 3
    assert main(["replay", str(path)]) == 2


def test_a_closed_pipe_is_no_error(healthy):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "trl_ext.cli", "replay", healthy, "--json"]
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE, cwd=ROOT, text=True) as process:
        os.close(writer)
        assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 0


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_log_is_judged_without_waiting_for_torch_and_transformers(healthy, form):
    code = (
        "import sys; from trl_ext.cli import main; main(sys.argv[1:]); "
        "sys.exit(bool({'torch', 'transformers', 'trl', 'tensorboard', 'wandb'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, "replay", healthy, *form], capture_output=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_without_a_command_or_with_a_wrong_option_the_usage_is_shown(capsys):
    for arguments in ([], ["replay"], ["replay", "x", "--fail-on", "info"], ["repaly", "x"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
        assert "usage: trl-ext" in capsys.readouterr().err


def test_the_console_script_is_this_function():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    module, function = scripts["trl-ext"].split(":")
    assert getattr(import_module(module), function) is main
