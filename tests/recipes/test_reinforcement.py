"""recipes/ppo.py and recipes/reinforce_loo.py, run as a user would, on the embedded policy."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from reinforcement_runs import ROOT, run, start, without_clocks
from safetensors.torch import load_file

RECIPES = ("ppo", "reinforce_loo")


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_leaves_metrics_a_picture_a_summary_and_a_policy(tmp_path, capsys, recipe):
    rows = run(recipe, tmp_path, "--report_to", "tensorboard")
    assert [row["step"] for row in rows if "reward" in row] == sorted({row["step"] for row in rows if "reward" in row})
    assert sum("reward" in row for row in rows) == 4
    printed = capsys.readouterr().out
    assert "{'" not in printed, "a raw dictionary beside the console's line"
    for words in ("Samples at step", "KL to the reference", "entropy", "Alerts", "Try next", "run.png"):
        assert words in printed, words
    summary = json.loads((tmp_path / "trl_ext" / "summary.json").read_text())
    assert summary["completed"] and not [a for a in summary["alerts"] if a["severity"] in ("error", "critical")]
    assert (tmp_path / "trl_ext" / "run.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "model.safetensors").is_file()
    assert list(tmp_path.rglob("events.out.tfevents*")), "TensorBoard got nothing"


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_same_seed_gives_the_same_metrics_and_another_seed_does_not(tmp_path, recipe):
    first, again, other = (
        without_clocks(run(recipe, tmp_path / name, "--seed", seed))
        for name, seed in (("first", "3"), ("again", "3"), ("other", "4"))
    )
    assert first == again
    assert first != other


@pytest.mark.current_trl
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_value_network_of_its_own_is_named_in_the_options(tmp_path, recipe):
    words = ["--value_model_name_or_path", "trl_ext/tiny", *(["--baseline", "value"] if recipe != "ppo" else [])]
    rows = run(recipe, tmp_path, *words)
    saved = load_file(tmp_path / "value_function.safetensors")
    body = load_file(ROOT / "trl_ext" / "tiny" / "model.safetensors")
    assert saved["value_model.score.weight"].any()  # it began at zero, and learned
    name = "model.layers.0.mlp.up_proj.weight"
    learned, began = saved[f"value_model.{name}"], body[name].float()
    assert not torch.equal(learned, began) and torch.allclose(learned, began, atol=0.05)
    values = [row["value/mean"] for row in rows if "value/mean" in row]
    assert values[0] == 0.0 and values[-1] != 0.0


@pytest.mark.parametrize("recipe", [pytest.param("ppo", marks=pytest.mark.current_trl), "reinforce_loo"])
def test_a_killed_run_resumes_as_if_it_had_not_been(tmp_path, recipe, capfd):
    saving = ("--save_strategy", "steps", "--save_steps", "2")
    longer = ("--total_episodes", "64") if recipe == "ppo" else ("--max_steps", "8")
    whole = without_clocks(run(recipe, tmp_path / "whole", *saving, *longer))
    killed = start(recipe, tmp_path / "killed", *saving, *longer)
    metrics = tmp_path / "killed" / "trl_ext" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and metrics.read_text().count("\n") >= 5):
        assert killed.poll() is None and time.monotonic() < deadline, killed.communicate()[1][-2000:]
        time.sleep(0.02)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    checkpoints = sorted((tmp_path / "killed").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    last = next(path for path in reversed(checkpoints) if (path / "trainer_state.json").exists())
    resumed = without_clocks(run(recipe, tmp_path / "killed", *saving, *longer, "--resume_from_checkpoint", str(last)))
    assert "missing keys" not in capfd.readouterr().err, "of a healthy resume Transformers warns of the value function"
    training = [row for row in resumed if "reward" in row]
    assert training == [row for row in whole if "reward" in row]


@pytest.mark.parametrize("recipe", RECIPES)
def test_lora_trains_an_adapter_alone(tmp_path, recipe):
    run(recipe, tmp_path, "--use_peft", "true", "--lora_r", "4", "--lora_target_modules", "all-linear")
    assert (tmp_path / "adapter_model.safetensors").is_file()
    assert not (tmp_path / "model.safetensors").exists()


def test_wandb_offline_records_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    run("reinforce_loo", tmp_path / "run", "--report_to", "wandb")
    assert list(Path(tmp_path, "wandb").glob("offline-run-*/*.wandb"))


@pytest.mark.stock_ppo
def test_our_ppo_can_be_asked_for_where_trl_ships_its_own(tmp_path, monkeypatch):
    stock = run("ppo", tmp_path / "stock")
    monkeypatch.setenv("TRL_EXT_PPO", "trl_ext")
    ours = run("ppo", tmp_path / "ours")
    assert "value/explained_variance" in ours[0] and "value/explained_variance" not in stock[0]


def test_metrics_that_cannot_be_written_end_no_run(tmp_path, capfd):
    (tmp_path / "trl_ext").write_text("a file where a folder should be")
    with pytest.raises(OSError):
        run("reinforce_loo", tmp_path, "--report_to", "none")  # reading the metrics back fails here, not in the recipe
    printed = capfd.readouterr().out
    assert "After 4 steps" in printed and "metrics.jsonl " not in printed
    assert (tmp_path / "model.safetensors").is_file()


def test_the_configuration_of_the_exhibit_runs(tmp_path):
    rows = run(
        "ppo", tmp_path, "--config", str(ROOT / "recipes" / "reward_hacking.yaml"), "--gold_reward", "repetition"
    )
    assert "reward_reliability/gold" in rows[-2]
    assert (tmp_path / "trl_ext" / "reward_reliability.json").is_file()


BAD_INPUT = {
    "no such model": ("reinforce_loo", ["--model_name_or_path", "no/such-model"], "no model 'no/such-model'"),
    "no such column": ("reinforce_loo", ["--dataset_name", "{jsonl}", "--dataset_prompt_column", "q"], "text"),
    "unknown option": ("ppo", ["--kl_coeff", "0.1"], "kl_coef"),
    "unknown reward": ("ppo", ["--reward_funcs", "sentimen"], "sentiment"),
    "groups that do not divide": ("reinforce_loo", ["--num_generations", "3"], "num_generations to one of 2, 4, 8"),
    "rollouts that do not divide": ("ppo", ["--num_mini_batches", "3"], "mini_batches"),
    "critical what": ("ppo", ["--on_critical", "stpo"], "stop"),
    "a reward of the wrong length": (
        "reinforce_loo",
        ["--reward_funcs", "{rewards}:one_too_few"],
        "returned 1 rewards for 2",
    ),
    "weights that do not fit": ("reinforce_loo", ["--reward_weights", "1", "2", "3"], "3 numbers for 2"),
    "a held-back reward nobody knows": ("ppo", ["--gold_reward", "sentimen"], "did you mean 'sentiment'"),
    "a probe set that is not there": ("ppo", ["--probe_set", "nowhere.jsonl"], "cannot read nowhere.jsonl"),
    "patience for nothing": ("ppo", ["--patience", "0"], "patience=0: set it to 1 or more"),
    "an improvement nobody waits for": ("ppo", ["--min_improvement", "0.1"], "set patience to a number of values"),
    "a negative improvement": (
        "ppo",
        ["--patience", "2", "--min_improvement", "-1"],
        "min_improvement=-1.0: set it to",
    ),
    "no validations": ("ppo", ["--patience", "2", "--best_metric", "eval_kl"], "set validation_frequency, or best_met"),
    "a budget of no time": ("ppo", ["--time_budget", "0"], "time_budget=0.0 is no number of hours above 0"),
    "two ways to evaluate": (
        "reinforce_loo",
        ["--validation_frequency", "2", "--eval_strategy", "steps", "--per_device_eval_batch_size", "8"],
        "drop these, or validation_frequency",
    ),
    "validations that do not divide": (
        "reinforce_loo",
        ["--validation_frequency", "2", "--per_device_eval_batch_size", "12"],
        "num_generations_eval to one of 1, 2, 3, 4, 6, 12",
    ),
    "no split to validate on": (
        "reinforce_loo",
        ["--validation_frequency", "2", "--dataset_test_split", "dev"],
        "no split 'dev'",
    ),
    "best by two": (
        "ppo",
        ["--patience", "2", "--metric_for_best_model", "loss"],
        "drop metric_for_best_model",
    ),
    "a value network for nothing": (
        "reinforce_loo",
        ["--value_model_name_or_path", "trl_ext/tiny"],
        "baseline='loo' has no use for",
    ),
    "a value network that is not there": ("ppo", ["--value_model_name_or_path", "nowhere/at/all"], "no model 'nowhere"),
    "a reward that is a word": ("reinforce_loo", ["--reward_funcs", "{rewards}:words"], "words"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_line_and_status_2(tmp_path, capsys, case):
    recipe, options, expected = BAD_INPUT[case]
    (tmp_path / "texts.jsonl").write_text('{"text": "a"}\n' * 8)
    (tmp_path / "rewards.py").write_text(
        "def one_too_few(completions, **kwargs):\n    return [0.0] * (len(completions) - 1)\n\n"
        "def words(completions, **kwargs):\n    return ['good'] * len(completions)\n"
    )
    places = {"jsonl": tmp_path / "texts.jsonl", "rewards": tmp_path / "rewards.py"}
    with pytest.raises(SystemExit) as stop:
        run(recipe, tmp_path / "out", *[option.format(**places) for option in options])
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert stop.value.code == 2
    assert error.startswith("error: ") and expected in error


@pytest.mark.current_trl  # a process of its own, in one lane
def test_bad_input_ends_a_real_process_with_status_2_and_no_traceback(tmp_path):
    process = start("ppo", tmp_path, "--reward_funcs", "sentimen")
    _, error = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "Traceback" not in error and "error: There is no reward 'sentimen'" in error


@pytest.mark.parametrize(
    "recipe",  # one a lane: the other recipe takes the same path
    [
        pytest.param("ppo", marks=pytest.mark.current_trl),
        pytest.param("reinforce_loo", marks=pytest.mark.stock_ppo),
    ],
)
def test_patience_stops_at_validations_that_bring_nothing_and_restores_the_best_model(tmp_path, recipe):
    longer = ("--total_episodes", "160") if recipe == "ppo" else ("--max_steps", "20")
    patience = ("--validation_frequency", "1", "--validation_prompts", "8", "--patience", "2", "--min_improvement", "9")
    rows = run(recipe, tmp_path, *longer, *patience)
    validated = [row for row in rows if "eval_reward" in row]
    assert len(validated) == 3, "the first is the best, as nothing beats it by 9; two more are the patience"
    state = json.loads((sorted(tmp_path.glob("checkpoint-*"))[-1] / "trainer_state.json").read_text())
    assert state["best_metric"] == pytest.approx(validated[0]["eval_reward"])
    best = Path(state["best_model_checkpoint"])
    assert best.name == f"checkpoint-{validated[0]['step']}"
    assert (tmp_path / "model.safetensors").read_bytes() == (best / "model.safetensors").read_bytes()


def test_patience_watches_the_reward_of_training_where_nothing_is_validated(tmp_path):
    words = ("--patience", "1", "--min_improvement", "9")
    rows = run("ppo", tmp_path, "--total_episodes", "160", *words)
    assert sum("reward" in row for row in rows) == 2


def test_a_time_budget_that_is_over_stops_after_a_step_with_a_checkpoint(tmp_path):
    rows = run("reinforce_loo", tmp_path, "--max_steps", "20", "--time_budget", "0.0001")
    assert sum("reward" in row for row in rows) == 1
    assert (tmp_path / "checkpoint-1").is_dir()


@pytest.mark.stock_ppo
def test_stock_ppo_refuses_to_validate(tmp_path, capsys):
    with pytest.raises(SystemExit):
        run("ppo", tmp_path, "--validation_frequency", "2")
    assert "error: stock PPO of TRL 1.12 cannot evaluate: drop validation_frequency" in capsys.readouterr().err
