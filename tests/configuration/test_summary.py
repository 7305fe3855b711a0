"""The summary of a configuration, as it is printed."""

import pytest
from trl import SFTConfig

from trl_ext import PPOConfig, ReinforceLOOConfig, tiny
from trl_ext.configuration import print_summary


def rows(text):
    """First cell -> the rest, of every line."""
    cells = (line.strip().split("   ") for line in text.splitlines() if "   " in line.strip())
    return {parts[0].strip(): [part.strip() for part in parts[1:] if part.strip()] for parts in cells}


def test_it_says_what_differs_what_follows_and_the_memory(capsys, tmp_path):
    args = ReinforceLOOConfig.from_template("debug", output_dir="out", kl_target=6.0)
    args.print_summary("trl_ext/tiny", dataset_size=100, prompt_length=12, dtype="float32")
    found = rows(capsys.readouterr().out)
    assert found["kl_target"] == ["6", "None"] and found["num_generations"] == ["4", "8"]
    assert "temperature" not in found and "baseline" not in found
    assert found["completions an optimizer step"] == ["8"] and found["prompts an optimizer step"] == ["2"]
    assert found["tokens an optimizer step"] == ["at most 224"]
    assert found["optimizer steps an epoch"] == ["50"] and found["epochs"] == ["0.12"]
    assert found["learning rate"] == ["0.0003: falls in a line to 0"]
    assert found["weights"][0] == "4.0 MiB" and "1,050,752 parameters" in found["weights"][1]
    assert "estimate" in found


def test_a_model_in_memory_is_taken_as_it_is(capsys):
    print_summary(SFTConfig("x", use_cpu=True, bf16=False), tiny.load_policy(), dataset_size=80)
    assert rows(capsys.readouterr().out)["weights"][0] == "4.0 MiB"


def test_what_is_not_known_is_said(capsys):
    PPOConfig("x", use_cpu=True, bf16=False).print_summary("no/such-model")
    text = capsys.readouterr().out
    assert "Memory is not known: no/such-model is not on this machine" in text
    found = rows(text)
    assert found["optimizer steps in all"] == ["unknown: give dataset_size"]
    assert found["tokens an optimizer step"][0].endswith("without prompts")
    assert found["optimizer steps on these"] == ["4"]


@pytest.mark.parametrize("name", ["small", "full"])
def test_the_templates_say_their_batches_in_their_comments(name, capsys):
    args = ReinforceLOOConfig.from_template(name, use_cpu=True)
    args.print_summary(prompt_length=256)
    assert rows(capsys.readouterr().out)["prompts an optimizer step"] == ["8"]
