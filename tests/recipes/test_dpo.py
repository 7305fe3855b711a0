"""The recipe `dpo.py`: it trains, tells accuracy and margin of what it saved, and refuses bad input in one line."""

import json
import re
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_ext import tiny

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ["--config", str(ROOT / "recipes" / "dpo.yaml")]
GOOD = [" a good film.", " good and fun.", " so good, this film.", " the story is good."]
BAD = [" a bad film.", " bad and dull.", " so bad, this film.", " the story is bad."]
TRAIN = [{"prompt": "I say:", "chosen": good, "rejected": bad} for good in GOOD for bad in BAD] * 2
HELD_OUT = [
    {"prompt": "I say:", "chosen": " a good story.", "rejected": " a bad story."},
    {"prompt": "I say:", "chosen": " it is good.", "rejected": " bad, it is."},
    {"prompt": "I say:", "chosen": " bad film.", "rejected": " good film."},  # the judges are of another mind here
    {"prompt": "I say:", "chosen": " fun, good fun.", "rejected": " dull, bad."},
]


@torch.no_grad()
def log_prob(model, tokenizer, prompt: str, completion: str) -> float:
    """Of a completion and its end after a prompt, by Transformers alone; an empty prompt leaves out the first token."""
    start = tokenizer(prompt).input_ids if prompt else []
    ids = torch.tensor([[*tokenizer(prompt + completion).input_ids, tokenizer.eos_token_id]])
    each = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    return each[max(len(start) - 1, 0) :].sum().item()


def exact(model, tokenizer, pairs: list[dict], beta: float = 0.1) -> tuple[float, float]:
    """Accuracy and margin of beta * (log p - log p of the embedded policy)."""
    reference = tiny.load_policy(torch.float32).eval()
    margins = []
    for pair in pairs:
        of = [(pair.get("prompt", ""), pair[side]) for side in ("chosen", "rejected")]
        gain = [log_prob(model, tokenizer, *each) - log_prob(reference, tokenizer, *each) for each in of]
        margins.append(beta * (gain[0] - gain[1]))
    return sum(margin > 0 for margin in margins) / len(margins), sum(margins) / len(margins)


def printed(out: str) -> tuple[float, float]:
    found = re.search(r"held-out accuracy: ([\d.]+), margin (-?[\d.]+) nats, \d+ pairs", out)
    return float(found[1]), float(found[2])


def test_it_learns_what_is_preferred_and_prints_accuracy_and_margin_of_what_it_saved(run, tmp_path):
    out = run("--max_steps", "20", "--learning_rate", "1e-3")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    accuracy, margin = exact(model, AutoTokenizer.from_pretrained(tmp_path / "out"), HELD_OUT)
    assert printed(out) == (accuracy, pytest.approx(margin, abs=2e-3))
    assert accuracy == 0.75 and margin > 0.5
    saved = json.loads((tmp_path / "out" / "eval_results.json").read_text())
    assert saved["eval_rewards/margins"] == pytest.approx(margin, abs=1e-4)
    assert json.loads((tmp_path / "out" / "trl_ext" / "summary.json").read_text())["alerts"] == []


def test_with_lora_the_reference_is_the_policy_without_its_adapter(run, tmp_path):
    out = run("--use_peft", "--max_steps", "20", "--learning_rate", "5e-3", "--lora_r", "8")
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text())["task_type"] == "CAUSAL_LM"
    model = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    accuracy, margin = exact(model, tiny.load_tokenizer(), HELD_OUT)
    assert printed(out) == (accuracy, pytest.approx(margin, abs=2e-3))
    assert margin > 0.5


def test_messages_train_through_the_template_and_a_resumed_run_ends_as_one_that_went_through(run, tmp_path):
    chats = [
        {"prompt": [{"role": "user", "content": pair["prompt"]}]}
        | {side: [{"role": "assistant", "content": pair[side]}] for side in ("chosen", "rejected")}
        for pair in TRAIN
    ]
    words = ("--max_steps", "4", "--save_strategy", "steps", "--save_steps", "2", "--per_device_train_batch_size", "8")
    whole = printed(run(*words, train=chats, held_out=chats))
    assert whole != (0.0, 0.0)
    checkpoint = str(tmp_path / "out" / "checkpoint-2")
    assert printed(run(*words, "--resume_from_checkpoint", checkpoint, train=chats, held_out=chats)) == whole


def test_the_default_data_has_an_empty_prompt_so_that_all_of_both_texts_counts(recipe, tmp_path, monkeypatch):
    seen, rest = [], ("--dataset_test_split", "none")
    monkeypatch.setattr(recipe.DPOTrainer, "train", lambda self, **_: seen.append(self.train_dataset))
    recipe.main([*CONFIG, "--use_cpu", "true", "--output_dir", str(tmp_path), "--num_pairs", "40", *rest])
    assert len(seen[0]) == 40
    assert all(row["prompt_ids"] == [] for row in seen[0])
    tokenizer = tiny.load_tokenizer()
    pairs = recipe.load_preferences(num_pairs=40)
    assert [tokenizer.decode(row["chosen_ids"], skip_special_tokens=True) for row in seen[0]] == pairs["chosen"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--lerning_rate", "1"], "error: unknown option --lerning_rate; did you mean --learning_rate?"),
        (["--dataset_train_split", "dev"], "error: no split 'dev' in dataset 'reviews'; there are: train, test"),
        (["--model_name_or_path", "nobody/nothing"], "error: no model 'nobody/nothing': neither a local folder nor"),
        (["--load_in_8bit", "--load_in_4bit"], "error: You can't use 8 bit and 4 bit precision at the same time"),
    ],
)
def test_bad_input_is_one_line(recipe, words, expected, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        recipe.main([*CONFIG, "--use_cpu", "true", "--output_dir", str(tmp_path), *words])
    assert stopped.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert line.startswith(expected)


def test_data_that_is_no_preference_is_one_line(run, capsys):
    with pytest.raises(SystemExit):
        run(train=[{"text": "a"}], held_out=[{"text": "a"}])
    assert "no column 'chosen'" in capsys.readouterr().err
