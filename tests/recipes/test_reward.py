"""The recipe `reward.py`: it trains, tells the accuracy of what it saved, and refuses bad input in one line."""

import json
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from trl_ext import tiny
from trl_ext.rewards.reward_model import RewardModelReward

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ["--config", str(ROOT / "recipes" / "reward.yaml")]
GOOD = ["a good film.", "good and fun.", "so good, this film.", "the story is good."]
BAD = ["a bad film.", "bad and dull.", "so bad, this film.", "the story is bad."]
TRAIN = [{"chosen": good, "rejected": bad} for good in GOOD for bad in BAD] * 2
HELD_OUT = [
    {"chosen": "a good story.", "rejected": "a bad story."},
    {"chosen": "it is good.", "rejected": "bad, it is."},
    {"chosen": "bad film.", "rejected": "good film."},  # the judges are of another mind here: no model learns that
    {"chosen": "fun, good fun.", "rejected": "dull, bad."},
]


def exact_accuracy(folder: Path, pairs: list[dict]) -> float:
    """Of what was saved, each text alone, its end included, the prompt before it where there is one."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    @torch.no_grad()
    def score(text: str) -> float:
        return model(torch.tensor([[*tokenizer(text).input_ids, tokenizer.eos_token_id]])).logits.item()

    text = {side: [pair.get("prompt", "") + pair[side] for pair in pairs] for side in ("chosen", "rejected")}
    return sum(score(a) > score(b) for a, b in zip(text["chosen"], text["rejected"], strict=True)) / len(pairs)


def printed_accuracy(out: str) -> float:
    return float(re.search(r"held-out accuracy: ([\d.]+), \d+ pairs", out).group(1))


def test_it_learns_which_word_is_liked_and_prints_the_accuracy_of_what_it_saved(run, tmp_path):
    out = run("--max_steps", "25", "--learning_rate", "1e-3")
    assert f"saved: {tmp_path / 'out'}" in out
    assert "held-out accuracy: 0.750, 4 pairs" in out
    assert exact_accuracy(tmp_path / "out", HELD_OUT) == 0.75
    assert "VADER" not in out  # it has no say in other data
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_what_it_saves_is_a_reward_with_the_same_order(run, tmp_path):
    run("--max_steps", "25", "--learning_rate", "1e-3")
    reward = RewardModelReward(str(tmp_path / "out"))
    pairs = [HELD_OUT[0], HELD_OUT[2]]
    texts = [pair[side] for pair in pairs for side in ("chosen", "rejected")]
    rewards = reward(prompts=[""] * 4, completions=texts)
    assert rewards[0] > rewards[1] and rewards[2] < rewards[3]


def test_a_prompt_counts_and_messages_train_through_the_template(run, tmp_path):
    prompted = [{"prompt": "I say: "} | pair for pair in TRAIN]
    held_out = [{"prompt": "I say: "} | pair for pair in HELD_OUT]
    out = run("--max_steps", "25", "--learning_rate", "1e-3", train=prompted, held_out=held_out)
    assert printed_accuracy(out) == exact_accuracy(tmp_path / "out", held_out) == 0.75
    chats = [{side: [{"role": "assistant", "content": pair[side]}] for side in pair} for pair in TRAIN]
    assert "held-out accuracy" in run("--max_steps", "2", train=chats, held_out=chats)


def test_without_a_held_out_split_there_is_no_accuracy(run):
    assert "held-out accuracy" not in run("--max_steps", "1", "--dataset_test_split", "none")


def test_lora_trains_an_adapter_that_is_a_reward(run, tmp_path):
    words = ["--use_peft", "--max_steps", "40", "--learning_rate", "1e-2", "--lora_r", "8"]
    out = run(*words)
    adapter = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert adapter["base_model_name_or_path"] == str(tiny.PATH)
    assert adapter["task_type"] == "SEQ_CLS" and "score" in adapter["modules_to_save"]
    reward = RewardModelReward(str(tmp_path / "out"), dtype="float32")
    chosen, rejected = ([pair[side] for pair in HELD_OUT] for side in ("chosen", "rejected"))
    better, worse = (reward(prompts=[""] * 4, completions=texts) for texts in (chosen, rejected))
    assert printed_accuracy(out) == sum(a > b for a, b in zip(better, worse, strict=True)) / 4 == 0.75


def test_the_default_data_is_the_reviews_beside_which_vader_is_named(recipe, tmp_path, monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(recipe.RewardTrainer, "train", lambda self, **_: seen.append(self.train_dataset))
    monkeypatch.setattr(recipe.RewardTrainer, "evaluate", lambda self: {"eval_accuracy": 0.5})
    recipe.main(
        [
            *CONFIG,
            "--use_cpu",
            "true",
            "--output_dir",
            str(tmp_path),
            "--num_pairs",
            "32",
            "--num_degenerate_pairs",
            "8",
        ]
    )
    out = capsys.readouterr().out
    assert len(seen[0]) == 40
    assert "held-out accuracy: 0.500, 600 pairs" in out
    assert "VADER on the same pairs: 0.700 (a tie counts half)" in out


def test_a_tie_of_vader_counts_half(recipe):
    from datasets import Dataset

    right, wrong, tie = ("a great film", "a film"), ("a film", "a great film"), ("a film", "the film")
    rows = [{"chosen": chosen, "rejected": rejected} for chosen, rejected in (right, wrong, tie, right)]
    assert recipe.vader_accuracy(Dataset.from_list(rows)) == (1 + 0 + 0.5 + 1) / 4


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--lerning_rate", "1"], "error: unknown option --lerning_rate; did you mean --learning_rate?"),
        (["--dataset_train_split", "dev"], "error: no split 'dev' in dataset 'reviews'; there are: train, test"),
        (["--min_gap", "7.9"], "error: only 0 pairs of 'train' differ by 7.9: lower min_gap or num_pairs"),
        (["--num_pairs", "0"], "error: num_pairs and min_gap must be above 0, not 0 and 1.5"),
        (["--model_name_or_path", "nobody/nothing"], "error: no model 'nobody/nothing': neither a local folder nor"),
        (["--num_pairs", "9", "--max_length", "2"], "error: no pair has at most 2 tokens; give a larger max_length"),
        (["--load_in_8bit", "--load_in_4bit"], "error: You can't use 8 bit and 4 bit precision at the same time"),
    ],
)
def test_bad_input_is_one_line(recipe, words, expected, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        recipe.main([*CONFIG, "--use_cpu", "true", "--output_dir", str(tmp_path), *words])
    assert stopped.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert line.startswith(expected)


def test_data_that_the_tokenizer_cannot_write_is_one_line(run, tmp_path, capsys):
    tokenizer = tiny.byte_tokenizer()
    tiny.random_policy().save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    chats = [{side: [{"role": "assistant", "content": side}] for side in ("chosen", "rejected")}]
    with pytest.raises(SystemExit):
        run("--model_name_or_path", str(tmp_path / "model"), train=chats, held_out=chats)
    assert "has no template; set chat_template_path" in capsys.readouterr().err
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path / "model")
    with pytest.raises(SystemExit):
        run("--model_name_or_path", str(tmp_path / "model"))
    assert "has no token that ends a text; set eos_token, say to '</s>'" in capsys.readouterr().err
