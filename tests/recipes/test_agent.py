"""The recipe of the agent: taught for two steps, trained for two, it says what it solves before and after."""

import importlib
import json
import re

from reinforcement_runs import ROOT

from trl_ext.monitor.reading import read_metrics

QUICK = ["--use_cpu", "true", "--report_to", "none", "--disable_tqdm", "true", "--max_steps", "2"]


def run(recipe, config, *options):
    importlib.import_module(f"recipes.{recipe}").main(["--config", str(ROOT / "recipes" / config), *QUICK, *options])


def test_it_is_taught_the_form_and_trains_in_episodes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("recipes.reinforce_loo_agent.HELD_OUT", 8)
    monkeypatch.setattr("trl_ext.data.review_agent._DEMONSTRATIONS", {"train": 40, "test": 8})
    taught, trained = tmp_path / "taught", tmp_path / "trained"
    run("sft", "reinforce_loo_agent_sft.yaml", "--output_dir", str(taught), "--per_device_train_batch_size", "4")
    assert json.loads((taught / "tokenizer_config.json").read_text())["response_template"]
    run(
        "reinforce_loo_agent", "reinforce_loo_agent.yaml", "--output_dir", str(trained), "--model_name_or_path",
        str(taught), "--per_device_train_batch_size", "8", "--per_device_eval_batch_size", "8",
    )  # fmt: skip
    assert re.search(r"Held-out questions answered rightly: \d+\.\d% before, \d+\.\d% after", capsys.readouterr().out)
    rows = [row for row in read_metrics(trained / "trl_ext" / "metrics.jsonl") if "reward" in row]
    assert len(rows) == 2 and {"episodes/turns", "episodes/cut_ratio/turns", "tools/ended/raised"} <= rows[0].keys()
    assert (trained / "model.safetensors").is_file()
