"""`trl-ext preflight` as a user calls it."""

import builtins
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from trl import GRPOConfig

from trl_ext.cli import main
from trl_ext.configuration import to_yaml
from trl_ext.errors import UserError
from trl_ext.preflight.names import FAMILIES
from trl_ext.preflight.setup import recipe_of_options, trainer_of_options

pytestmark = pytest.mark.current_trl
OPTIONS = {
    "model_name_or_path": "trl_ext/tiny", "dtype": "float32", "reward_funcs": ["sentiment", "length"], "max_steps": 160,
    "per_device_train_batch_size": 16, "num_generations": 4, "max_completion_length": 24, "learning_rate": 1e-4,
    "bf16": False, "gradient_checkpointing": False, "report_to": "none", "use_cpu": True,
}  # fmt: skip


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(OPTIONS | {"output_dir": str(tmp_path / "run")}))
    return str(path)


def called(capsys, *words):
    code = main(["preflight", *words])
    return code, capsys.readouterr()


def test_a_healthy_configuration_exits_with_0_and_leaves_nothing_behind(config, capsys, tmp_path):
    code, said = called(capsys, "--config", config, "--quick", "--json")
    report = json.loads(said.out, parse_constant=pytest.fail)
    assert code == 0, [c for c in report["checks"] if c["status"] in ("warn", "fail")]
    assert report["trainer"] == "ReinforceLOOTrainer" and not report["failed"]
    assert {check["family"] for check in report["checks"]} == set(FAMILIES)
    assert report["counts"]["fail"] == 0
    assert not (tmp_path / "run").exists()


def test_options_behind_the_file_win_and_a_failed_check_exits_with_1(config, capsys):
    code, said = called(
        capsys, "--config", config, "--only", "options", "--learning_rate", "1.0", "--warmup_steps", "9"
    )
    assert code == 1
    assert "✗ learning_rate" in said.out and "9 steps of warm-up" in said.out
    assert "1 failed" in said.out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--max_stepz", "3"], "unknown option --max_stepz; did you mean --max_steps?"),
        (["--num_generations", "5"], "is not a multiple of num_generations = 5"),
        (["--dataset_name", "nowhere.csv"], "no dataset 'nowhere.csv'"),
        (["--reward_funcs", "sentimental"], "sentiment"),
        (["--trainer", "ppo", "--kl_coef", "x"], "kl_coef"),
    ],
)
def test_what_cannot_be_built_is_a_failed_check_that_names_the_fix(config, words, told, capsys):
    code, said = called(capsys, "--config", config, *words, "--json")
    (check,) = json.loads(said.out)["checks"]
    assert (code, check["name"], check["status"]) == (1, "build", "fail")
    assert told in check["message"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "say what to check"),
        (["--config", "nowhere.yaml"], "no file 'nowhere.yaml'"),
        (["--script", "nowhere.py"], "no file 'nowhere.py'"),
        (["--guide", "--config", "x.yaml", "--json"], "leave out --config --json"),
        (["--guide", "--learning_rate", "1"], "leave out --learning_rate 1"),
        (["--model", "x", "--only", "mask"], "no family of checks 'mask'"),
        (["--model", "x", "--trainer", "sft"], "no trainer 'sft'"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(words, told, capsys):
    code, said = called(capsys, *words)
    assert code == 2 and told in said.err and said.err.count("\n") == 1


@pytest.mark.parametrize("content", [b"a: [1\n", b"- 1\n- 2\n", b"\xff\xfe\x00", b"just words"])
def test_a_file_that_is_no_configuration_is_one_line_and_status_2(content, tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    code, said = called(capsys, "--config", str(path))
    assert code == 2 and str(path) in said.err and said.err.count("\n") == 1


def test_a_model_that_another_configuration_makes_is_missing_with_the_command(tmp_path, capsys, monkeypatch):
    recipes = Path("recipes").resolve()
    monkeypatch.chdir(tmp_path)  # where nothing was ever trained
    code, said = called(capsys, "--config", str(recipes / "reinforce_loo_agent.yaml"), "--json")
    (check,) = json.loads(said.out)["checks"]
    made = f"make it first: python {recipes}/sft.py --config {recipes}/reinforce_loo_agent_sft.yaml"
    assert code == 1 and made in check["message"]


def test_other_commands_still_refuse_what_they_do_not_know(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["replay", "x.json", "--quick"])
    assert stopped.value.code == 2 and "unrecognized arguments: --quick" in capsys.readouterr().err


SCRIPT = """
import sys
from datasets import Dataset
from trl import SFTConfig, SFTTrainer
from trl_ext import tiny
print("built with", sys.argv[1:])
args = SFTConfig({run!r}, use_cpu=True, bf16=False, max_steps=30, per_device_train_batch_size=8, learning_rate=1e-3,
                 report_to="none", save_strategy="no", gradient_checkpointing=False)
data = Dataset.from_dict({{"text": [f"sentence number {{i}} is here" for i in range(40)]}})
trainer = SFTTrainer(tiny.random_policy(0), args, train_dataset=data, processing_class=tiny.byte_tokenizer())
try:
    {train}
except Exception:
    pass
open({after!r}, "w").write("trained")
"""


def test_any_script_is_taken_up_to_the_call_of_train(tmp_path, capsys):
    after, script = tmp_path / "after.txt", tmp_path / "own.py"
    script.write_text(SCRIPT.format(run=str(tmp_path / "run"), train="trainer.train()", after=str(after)))
    argv = list(sys.argv)
    code, said = called(capsys, "--script", str(script), "--quick", "--json", "--own_option", "3")
    report = json.loads(said.out)
    assert (code, report["trainer"]) == (0, "SFTTrainer"), report["checks"]
    assert "built with ['--own_option', '3']" in said.err  # what a script prints is no JSON
    assert not after.exists() and sys.argv == argv


def test_a_script_that_raises_is_a_failed_check(tmp_path, capsys):
    script = tmp_path / "own.py"
    script.write_text("raise KeyError('answer')")
    code, said = called(capsys, "--script", str(script), "--json")
    (check,) = json.loads(said.out)["checks"]
    assert (code, check["name"]) == (1, "build") and "KeyError: 'answer'" in check["message"]


def test_a_script_that_evaluates_first_is_taken_there(tmp_path, capsys):
    after, script = tmp_path / "after.txt", tmp_path / "own.py"
    script.write_text(SCRIPT.format(run=str(tmp_path / "run"), train="trainer.evaluate()", after=str(after)))
    code, _ = called(capsys, "--script", str(script), "--only", "options")
    assert code == 0 and not after.exists()


def test_a_script_that_never_trains_is_told(tmp_path, capsys):
    script = tmp_path / "own.py"
    script.write_text("print('nothing')")
    code, said = called(capsys, "--script", str(script))
    assert code == 1 and "ended without a call of" in " ".join(said.out.split())
    script.write_text("raise SystemExit(4)")
    code, said = called(capsys, "--script", str(script))
    assert code == 1 and "ended with status 4" in " ".join(said.out.split())


@pytest.mark.parametrize(
    ("file", "trainer"),
    [("ppo", "ppo"), ("reward_hacking", "ppo"), ("reinforce_loo", "reinforce_loo")],
)
def test_the_trainer_is_told_from_the_options(file, trainer):
    assert trainer_of_options(f"recipes/{file}.yaml") == trainer


def test_a_file_that_a_configuration_wrote_says_whose_it_is(tmp_path):
    args = GRPOConfig(str(tmp_path / "run"), use_cpu=True, bf16=False, num_generations=4, report_to="none")
    to_yaml(args, tmp_path / "grpo.yaml")
    assert trainer_of_options(str(tmp_path / "grpo.yaml")) == "grpo"


@pytest.mark.parametrize(
    ("file", "recipe"),
    [("reinforce_loo_agent_sft", "sft"), ("ppo", None), ("reinforce_loo", None)],
)
def test_the_recipe_is_told_from_the_options(file, recipe):
    expected = None if recipe is None else f"recipes/{recipe}.py"
    assert recipe_of_options(f"recipes/{file}.yaml") == expected


def test_an_option_of_another_trainer_asks_for_its_script(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("learning_rate: 1e-4\nassistant_only_loss: true\n")
    with pytest.raises(UserError, match=r"assistant_only_loss is no option of .*--script recipes/sft\.py"):
        recipe_of_options(str(path))


def test_options_of_no_known_trainer_ask_for_the_script(tmp_path):
    path = tmp_path / "sft.yaml"
    path.write_text("alpha: true\ndepth: 100\nneftune_noise_alpha: 5\n")
    with pytest.raises(UserError, match="--script"):
        trainer_of_options(str(path))


def answers(monkeypatch, *given):
    left = list(given)

    def answer(prompt=""):
        if not left:
            raise EOFError
        return left.pop(0)

    monkeypatch.setattr(builtins, "input", answer)
    return left


def test_the_guide_asks_checks_mends_and_writes_the_yaml(tmp_path, monkeypatch, capsys):
    path = tmp_path / "walk.yaml"
    left = answers(
        monkeypatch, "reinforce_loo", "", "", "sentiment length", "abc", "0", "24", str(tmp_path / "run"),
        "learning_rat 1e-4", "learning_rate fast", "per_device_train_batch_size 16", "", str(path),
    )  # fmt: skip
    monkeypatch.setattr("trl_ext.preflight.guide.TINY_RATE", 5.0)  # what the walk must find
    left.insert(11, "learning_rate 1e-4")
    occupied = tmp_path / "occupied"
    occupied.write_text("no folder")
    for nowhere in (tmp_path, occupied / "x.yaml", "/proc/x.yaml"):  # asked again
        left.insert(-1, str(nowhere))
    code, said = called(capsys, "--guide", "--quick")
    assert code == 0, said.out
    assert "✗ learning_rate" in said.out and "no option 'learning_rat'" in said.out
    assert "learning_rate expects a number, not 'fast'" in said.out
    assert said.out.count("cannot write") == 3
    written = yaml.safe_load(path.read_text())
    assert written["learning_rate"] == 1e-4 and written["reward_funcs"] == ["sentiment", "length"]
    code, _ = called(capsys, "--config", str(path), "--only", "options", "dataset")
    assert code == 0


def test_the_guide_looks_at_the_families_that_are_asked_for(tmp_path, monkeypatch, capsys):
    answers(monkeypatch, "reinforce_loo", "", "", "sentiment", "24", str(tmp_path / "run"), str(tmp_path / "x.yaml"))
    code, said = called(capsys, "--guide", "--only", "options")
    assert code == 0 and "learning_rate" in said.out and "alignment" not in said.out


def test_the_guide_never_replaces_a_file_unasked(tmp_path, monkeypatch, capsys):
    path = tmp_path / "mine.yaml"
    path.write_text("kept: true\n")
    answers(monkeypatch, "reinforce_loo", "", "", "sentiment length", "24", str(tmp_path / "run"), str(path), "n")
    code, said = called(capsys, "--guide", "--quick")
    assert "nothing written" in said.out and path.read_text() == "kept: true\n"
    assert code == 0


def test_ctrl_c_is_no_traceback(monkeypatch, capsys):
    def pressed(prompt=""):
        raise KeyboardInterrupt

    monkeypatch.setattr(builtins, "input", pressed)
    code, said = called(capsys, "--guide")
    assert code == 130 and "Traceback" not in said.err


def test_answers_that_end_are_one_line(monkeypatch, capsys):
    answers(monkeypatch, "reinforce_loo")
    code, said = called(capsys, "--guide")
    assert code == 2 and "the answers ended" in said.err


def test_a_mistake_is_answered_before_torch_is_loaded():
    code = "import sys; from trl_ext.cli import main; main(['preflight']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False"
