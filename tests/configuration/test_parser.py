"""Options from YAML and the command line: what is taken, and one line for every mistake."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

import pytest
from trl import ModelConfig, SFTConfig

from trl_ext import UserError, tiny
from trl_ext.configuration import building, cli_errors, model_path, one_line, parse
from trl_ext.configuration.values import fit


class Pace(Enum):
    SLOW = "slow"
    FAST = "fast"


@dataclass
class Options:
    reward_funcs: list[dict | str] = field(default_factory=lambda: ["sentiment"])
    more_funcs: list[dict | str] | None = None
    estimator: Literal["k1", "k3"] = "k1"
    steps: int = 10
    rate: float = 0.5
    name: str | None = None
    shuffle: bool = True
    extra: dict[str, Any] | str | None = None


@dataclass
class Needed:
    must: str


@pytest.fixture
def parse_yaml(tmp_path):
    """Parses the text as the file `options.yaml`, with the words after it, and returns the `Options`."""

    def run(text: str | bytes, *words: str) -> Options:
        path = tmp_path / "options.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        (options,) = parse((Options,), ["--config", str(path), *words])
        return options

    return run


def test_the_command_line_wins_over_the_file_and_the_file_over_the_default(parse_yaml):
    options = parse_yaml("steps: 20\nrate: 0.1\n", "--steps", "30")
    assert (options.steps, options.rate, options.estimator) == (30, 0.1, "k1")


def test_a_list_of_mappings_passes_from_the_file_and_a_list_of_words_from_the_command_line(parse_yaml):
    text = "reward_funcs: [{name: sentiment, weight: 1.0}, length]\nmore_funcs: [{name: x}]\n"
    assert parse_yaml(text).reward_funcs == [{"name": "sentiment", "weight": 1.0}, "length"]
    assert parse_yaml(text).more_funcs == [{"name": "x"}]
    assert parse_yaml(text, "--reward_funcs", "a", "b").reward_funcs == ["a", "b"]
    assert parse_yaml("reward_funcs: length").reward_funcs == ["length"]
    assert parse((Options,), [])[0].reward_funcs == ["sentiment"]


def test_a_value_takes_the_type_of_its_field(parse_yaml):
    options = parse_yaml("rate: 1e-5\nsteps: '7'\nname: 5\nshuffle: 'no'\nextra: {a: [1]}\n")
    assert (options.rate, options.steps, options.name, options.shuffle) == (1e-5, 7, "5", False)
    assert options.extra == {"a": [1]}


def test_an_empty_file_changes_nothing_and_both_spellings_of_config_work(parse_yaml, tmp_path):
    assert parse_yaml("# nothing\n") == Options()
    (tmp_path / "a.yaml").write_text("steps: 3")
    assert parse((Options,), [f"--config={tmp_path / 'a.yaml'}"])[0].steps == 3


def test_env_goes_into_the_environment(parse_yaml, monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    parse_yaml("env: {SOME_NAME: 3}")
    assert os.environ == {"SOME_NAME": "3"}


def test_trl_configurations_are_read(tmp_path):
    path = tmp_path / "sft.yaml"
    path.write_text(
        f"output_dir: {tmp_path}\nuse_cpu: true\nbf16: false\nlearning_rate: 1e-5\neval_strategy: 'no'\n"
        "report_to: [tensorboard]\nmodel_init_kwargs: {use_cache: false}\nlora_target_modules: all-linear\n"
    )
    training_args, model_args = parse((SFTConfig, ModelConfig), ["--config", str(path), "--use_peft"])
    assert training_args.learning_rate == 1e-5
    assert training_args.eval_strategy == "no"
    assert training_args.report_to == ["tensorboard"]
    assert training_args.model_init_kwargs == {"use_cache": False}
    assert model_args.use_peft
    assert model_args.lora_target_modules == "all-linear"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("stepz: 3", "options.yaml: unknown option 'stepz'; did you mean steps?"),
        ("reward-funcs: a", "unknown option 'reward-funcs'; did you mean reward_funcs?"),
        ("zzzzzz: 3", "unknown option 'zzzzzz'; --help lists the options"),
        ("5: 3", "unknown option '5'"),
        ("config: x.yaml", "unknown option 'config'"),
        ("steps: many", "options.yaml: steps expects a whole number, got 'many'"),
        ("steps: 1.5", "steps expects a whole number, got 1.5"),
        ("steps: true", "steps expects a whole number, got True; put a word such as no, yes, on or off in quotes"),
        ("steps: [1]", "steps expects a whole number, got [1]"),
        ("steps:", "steps expects a whole number, got None"),
        ("rate: fast", "rate expects a number, got 'fast'"),
        ("shuffle: perhaps", "shuffle expects true or false, got 'perhaps'"),
        ("estimator: k2", "estimator expects one of k1, k3, got 'k2'"),
        ("name: no", "name expects a word, got False; put a word such as no"),
        ("reward_funcs: [[a]]", "reward_funcs expects a list (each entry a mapping or a word), got [['a']]"),
        ("[1, 2]", "options.yaml: expected lines of the form `option: value`, got a list"),
        ("steps", "expected lines of the form `option: value`, got a str"),
        ("steps: 3\nrate: [1\nname: x", "options.yaml, line 3: not YAML"),
        ("steps: 3: 4", "options.yaml, line 1: not YAML"),
        (b"\xff\xfe\x00", "options.yaml: not a text file with YAML"),
        ("env: [1]", "env expects a mapping of names to values, got [1]"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_that_names_the_file_and_the_fix(parse_yaml, text, expected):
    with pytest.raises(UserError) as caught:
        parse_yaml(text)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--stepz", "3"], "unknown option --stepz; did you mean --steps?"),
        (["--step", "3"], "unknown option --step; did you mean --steps?"),  # no silent abbreviation
        (["--reward-func=3"], "unknown option --reward_func; did you mean --reward_funcs?"),
        (["steps"], "unexpected word 'steps' on the command line; options have the form --name value"),
        (["--steps", "many"], "--steps: invalid int value: 'many'"),
        (["--steps"], "--steps: expected one argument"),
        (["--estimator", "k2"], "--estimator: invalid choice: 'k2' (choose from"),
        (["--config"], "--config needs a file"),
        (["--config", "no/such.yaml"], "cannot read the configuration file no/such.yaml: No such file or directory"),
        (["--config", "a", "--config=b"], "--config is given twice"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(words, expected, capsys):
    with pytest.raises(UserError) as caught:
        parse((Options,), words)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().err == ""  # no usage screen


def test_an_unknown_option_is_named_before_a_missing_one_is_missed(tmp_path):
    path = tmp_path / "options.yaml"
    path.write_text("mast: x")
    with pytest.raises(UserError, match="unknown option 'mast'; did you mean must"):
        parse((Needed,), ["--config", str(path)])
    with pytest.raises(UserError, match="the following arguments are required: --must"):
        parse((Needed,), [])


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (3, float, 3.0),
        (3.0, int, 3),
        (False, str | bool, False),
        (5, int | str | None, 5),
        (5, str | int, 5),
        (None, int | None, None),
        ("fast", Pace | str, "fast"),
        (1, bool, True),
        ([1, "2"], list[int], [1, 2]),
        (["a"], str | list[str] | None, ["a"]),
        ("a", str | list[str] | None, "a"),
        ({"a": 1}, dict, {"a": 1}),
        ((1, 2), Any, (1, 2)),
    ],
)
def test_fit_gives_the_value_the_field_takes(value, hint, expected):
    fitted = fit(value, hint)
    assert (fitted, type(fitted)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (3.5, int),
        (True, float),
        ("x", Pace),
        (["x"], list[int]),
        ([1], dict),
        (2, bool),
        (None, str),
        ({"a": 1}, str),
        ("k2", Literal["k1"]),
    ],
)
def test_fit_refuses_what_the_field_does_not_take(value, hint):
    with pytest.raises(ValueError):
        fit(value, hint)


def test_the_embedded_policy_is_found_from_any_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert model_path("trl_ext/tiny") == str(tiny.PATH)


def test_a_folder_with_a_model_or_an_adapter_is_a_model(tmp_path):
    for name in ("config.json", "adapter_config.json"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text("{}")
        assert model_path(str(folder)) == str(folder)


@pytest.mark.parametrize(
    ("name", "revision", "expected"),
    [
        ("nobody/nothing", None, "no model 'nobody/nothing': neither a local folder nor a reachable hub model"),
        ("nobody/nothing", "v2", "no model 'nobody/nothing' at revision 'v2': neither"),
        ("/no/such/folder", None, "no model '/no/such/folder': neither"),
        ("a/b/c", None, "no model 'a/b/c': neither"),
        (None, None, "no model given; set model_name_or_path"),
        (".", None, "folder '.' holds no model"),
    ],
)
def test_a_model_that_is_not_there_is_one_line(name, revision, expected, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        model_path(name, revision)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_user_error_is_one_line_and_status_2(capsys):
    @cli_errors()
    def main():
        raise UserError("a mistake\nin two lines")

    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "error: a mistake in two lines\n"


def test_the_traceback_is_shown_on_request(monkeypatch):
    monkeypatch.setenv("TRL_EXT_TRACEBACK", "1")
    with pytest.raises(UserError), cli_errors():
        raise UserError("a mistake")


@pytest.mark.parametrize("error", [OSError("no\nfile"), ValueError("no\nfile"), ImportError("no\nfile")])
def test_what_a_library_refuses_while_building_is_a_user_error_with_its_cause(error):
    with pytest.raises(UserError, match=r"^no file ") as caught, building():
        raise error
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [RuntimeError("x"), TypeError("x"), KeyError("x"), AssertionError("x")])
def test_a_fault_of_the_code_keeps_its_traceback(error):
    with pytest.raises(type(error)), cli_errors(), building():
        raise error


def test_a_value_error_while_training_keeps_its_traceback():
    with pytest.raises(ValueError, match="shapes"), cli_errors():
        raise ValueError("shapes differ")


def test_one_line_is_short_and_never_empty():
    assert one_line(ValueError("a  b\n\n c")) == "a b c"
    assert one_line(ValueError()) == "ValueError"
    assert len(one_line(ValueError("x" * 1000), limit=50)) == 50


@pytest.mark.current_trl  # a process of its own, in one lane
def test_the_exit_status_reaches_the_shell():
    code = "from trl_ext.configuration import cli_errors, parse\nwith cli_errors(): parse((), ['--nothing'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: unknown option --nothing")
    assert "Traceback" not in done.stderr


def test_an_option_given_twice_is_refused(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("learning_rate: 1e-4\nseed: 1\nlearning_rate: 1e-5\n")
    with pytest.raises(UserError, match=r"line 3: .*'learning_rate' is given twice"):
        parse((SFTConfig,), ["--config", str(path)])
