"""The templates, parsed by the recipes they are for; those for debugging are run."""

import importlib
from pathlib import Path

import pytest
import torch
import yaml
from trl import DPOConfig, ModelConfig, ScriptArguments, SFTConfig

from trl_ext import ReinforceLOOConfig, UserError
from trl_ext.cli import main as trl_ext_command
from trl_ext.compat import ppo_classes
from trl_ext.configuration.parser import parse
from trl_ext.configuration.saving import from_template
from trl_ext.configuration.templates import FOLDER, TRAINERS, read_template, template_names

ROOT = Path(__file__).parents[2]
RECIPES = ("reinforce_loo", "ppo", "sft", "reward")
CPU = ["--use_cpu", "true"]  # `bf16: true` is refused without a GPU otherwise


def parsed_by_recipe(name, words, monkeypatch):
    """What the recipe's own `parse` returns, without what comes after it."""
    module, found = importlib.import_module(f"recipes.{name}"), []

    class ParsedError(Exception):
        pass

    def stop(kinds, args):
        found.extend(parse(kinds, args))
        raise ParsedError

    monkeypatch.setattr(module, "parse", stop)
    with pytest.raises(ParsedError):
        module.main(words)
    return found


@pytest.mark.parametrize("name", ["debug", "small", "full"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_template_is_read_by_its_recipe(recipe, name, monkeypatch, tmp_path):
    *_, training, model = parsed_by_recipe(recipe, ["--template", name, *CPU], monkeypatch)
    written = yaml.safe_load((FOLDER / recipe / f"{name}.yaml").read_text())
    assert training.output_dir == written["output_dir"] == f"runs/{recipe}_{name}"
    assert training.learning_rate == written["learning_rate"]
    assert model.use_peft == (name == "small")
    assert model.lora_target_modules in (None, "all-linear")


@pytest.mark.parametrize("name", ["debug", "small", "full"])
def test_the_templates_of_dpo_are_read_by_trls_own_classes(name):
    _, training, _ = parse((ScriptArguments, DPOConfig, ModelConfig), ["--template", name, *CPU])
    assert training.beta == 0.1


def test_every_template_has_the_same_three_sizes_and_says_what_it_is_for(capsys):
    assert template_names() == {trainer: ["debug", "small", "full"] for trainer in TRAINERS.values()}
    assert trl_ext_command(["config", "list"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(tuple(TRAINERS.values()))]
    assert len(lines) == 15 and all(len(line.split()) > 6 for line in lines)


def test_show_prints_the_file_as_it_is(capsys):
    assert trl_ext_command(["config", "show", "ppo", "small"]) == 0
    assert capsys.readouterr().out == (FOLDER / "ppo" / "small.yaml").read_text()


def test_the_file_wins_over_the_template_and_the_command_line_over_both(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("max_steps: 3\nlearning_rate: 1e-4\n")
    words = ["--template", "debug", "--config", str(path), "--learning_rate", "5e-5"]
    script, training, model = parsed(words)
    assert (training.learning_rate, training.max_steps, training.num_generations) == (5e-5, 3, 4)
    assert (script.reward_funcs, model.model_name_or_path) == (["sentiment"], "trl_ext/tiny")


def parsed(words):
    from trl_ext.configuration import RLScriptArguments

    return parse((RLScriptArguments, ReinforceLOOConfig, ModelConfig), words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--template", "tiny"], "there is no template 'tiny' of reinforce_loo; there are: debug, small, full"),
        (["--template"], "--template needs a name: --template debug"),
        (["--template", "debug", "--template=small"], "--template is given twice"),
    ],
)
def test_a_template_that_is_not_there_is_one_line(words, expected):
    with pytest.raises(UserError) as caught:
        parsed(words)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_a_script_without_a_training_config_has_no_templates():
    with pytest.raises(UserError, match="no templates for this script"):
        parse((ModelConfig,), ["--template", "debug"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["reinforce", "small"], "did you mean reinforce_loo?"),
        (["xyzzy", "small"], "there are: reinforce_loo, ppo, sft, reward, dpo"),
        (["ppo", "huge"], "there are: debug, small, full"),
    ],
)
def test_show_says_what_there_is(words, expected, capsys):
    assert trl_ext_command(["config", "show", *words]) == 2
    assert expected in capsys.readouterr().err


def test_a_config_comes_from_its_template_and_overrides_win(tmp_path):
    args = ReinforceLOOConfig.from_template("debug", output_dir=str(tmp_path), max_steps=2)
    assert (args.output_dir, args.max_steps, args.num_generations) == (str(tmp_path), 2, 4)
    assert from_template(SFTConfig, "debug").max_length == 64
    with pytest.raises(UserError, match="unknown option 'max_step'; did you mean max_steps"):
        ReinforceLOOConfig.from_template("debug", max_step=2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_template_for_a_gpu_says_so_without_one(tmp_path):
    with pytest.raises(UserError, match=r"template small: Your setup doesn't support bf16/gpu\. .* assign use_cpu"):
        ReinforceLOOConfig.from_template("small")
    assert ReinforceLOOConfig.from_template("small", use_cpu=True).num_generations > 1


def test_what_is_small_takes_ten_times_the_learning_rate_of_what_is_full():
    """LoRA's rule, which the comments state; 11 at reward models, whose full rate is InstructGPT's."""
    for kind in (ReinforceLOOConfig, ppo_classes()[0], DPOConfig):
        small, full = (read_template(kind, name)["learning_rate"] for name in ("small", "full"))
        assert small == pytest.approx(10 * full)


@pytest.mark.parametrize(
    "recipe",  # what does not depend on the lane is run in one of them
    [
        "ppo",
        pytest.param("reinforce_loo", marks=pytest.mark.current_trl),
        pytest.param("reward", marks=pytest.mark.current_trl),
        pytest.param("sft", marks=pytest.mark.stock_ppo),
    ],
)
def test_the_debug_template_runs(recipe, tmp_path):
    importlib.import_module(f"recipes.{recipe}").main(
        ["--template", "debug", "--output_dir", str(tmp_path), "--disable_tqdm", "true"]
    )
    assert (tmp_path / "model.safetensors").is_file()


@pytest.mark.stock_ppo
def test_the_debug_template_of_dpo_runs(tmp_path):
    from trl import DPOTrainer

    from trl_ext import tiny
    from trl_ext.data import review_pairs

    args = from_template(DPOConfig, "debug", output_dir=str(tmp_path), disable_tqdm=True)
    pairs = review_pairs("train", 64).select_columns(["chosen", "rejected"])
    pairs = pairs.map(lambda row: {"prompt": "review: ", **row})
    trainer = DPOTrainer(tiny.load_policy(), args=args, train_dataset=pairs, processing_class=tiny.load_tokenizer())
    trainer.train()
    assert sum("loss" in row for row in trainer.state.log_history) == 6
