"""The recipe `sft.py`: it trains, prints an exact held-out loss, writes what it says, refuses bad input in one line."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_ext import tiny

ROOT = Path(__file__).resolve().parents[2]
TRAIN = [{"text": text} for text in ("the film is good.", "the film is bad.", "a film, a good one.")] * 16
HELD_OUT = [{"text": "the film is a good one, the film is good."}, {"text": "bad."}]
CONFIG = ["--config", str(ROOT / "recipes" / "sft.yaml")]
SMALL = ["--vocab_size", "300", "--hidden_size", "32", "--intermediate_size", "32", "--num_hidden_layers", "1"]


def exact_loss(folder: Path) -> float:
    """Nats a token of the held-out texts, each alone in its batch, its end included."""
    policy, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    nats, tokens = 0.0, 0
    for text in (row["text"] for row in HELD_OUT):
        ids = torch.tensor([*tokenizer(text).input_ids, tokenizer.eos_token_id])
        logps = policy.eval()(ids[None]).logits[0, :-1].log_softmax(-1)
        nats -= logps[range(len(ids) - 1), ids[1:]].sum().item()
        tokens += len(ids) - 1
    return nats / tokens


def printed_loss(out: str) -> float:
    return float(re.search(r"held-out loss: ([\d.]+) nats a token", out).group(1))


def test_from_scratch_it_learns_and_prints_the_loss_of_what_it_saved(run, tmp_path):
    out = run(*SMALL, "--max_steps", "30", "--learning_rate", "1e-2", "--num_samples", "1")
    assert printed_loss(out) == pytest.approx(exact_loss(tmp_path / "out"), abs=2e-3)
    assert printed_loss(out) < 0.7 * torch.tensor(300.0).log().item()  # a uniform guess over the vocabulary
    assert out.count("sample: the film is") == 1


def test_the_export_is_float16_with_its_tokenizer_and_can_be_trained_further(run, tmp_path):
    export = tmp_path / "export"
    out = run(*SMALL, "--max_steps", "2", "--export_dir", str(export))
    assert f"exported: {export}" in out
    with safe_open(export / "model.safetensors", "pt") as tensors:
        assert {tensors.get_tensor(name).dtype for name in tensors.keys()} == {torch.float16}  # noqa: SIM118
    assert not list(export.glob("*.bin"))  # no pickled training state
    assert exact_loss(export) == pytest.approx(printed_loss(out), abs=1e-2)
    again = run("--model_name_or_path", str(export), "--max_steps", "20", "--learning_rate", "1e-2")
    assert printed_loss(again) < printed_loss(out)


def test_max_words_keeps_the_short_texts(recipe, run, monkeypatch):
    seen = []
    monkeypatch.setattr(recipe.SFTTrainer, "train", lambda self, **_: seen.append(len(self.train_dataset)))
    run(*SMALL, "--dataset_test_split", "none", "--max_words", "4")
    run(*SMALL, "--dataset_test_split", "none")
    assert seen == [32, 48]


def test_lora_trains_an_adapter_for_the_embedded_policy(run, tmp_path):
    out = run("--model_name_or_path", "trl_ext/tiny", "--use_peft", "--max_steps", "2", "--dataset_test_split", "none")
    adapter = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert adapter["base_model_name_or_path"] == str(tiny.PATH)
    with safe_open(tmp_path / "out" / "adapter_model.safetensors", "pt") as tensors:
        grown = [tensors.get_tensor(name).any() for name in tensors.keys() if "lora_B" in name]  # noqa: SIM118
    assert grown and all(grown)  # LoRA's B starts at zero
    assert "held-out loss" not in out and "sample:" not in out


def test_a_chat_needs_a_model(run, tmp_path, capsys):
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    (tmp_path / "chat.jsonl").write_text(json.dumps({"messages": chat}) + "\n")
    words = ["--dataset_name", str(tmp_path / "chat.jsonl"), "--dataset_test_split", "none"]
    with pytest.raises(SystemExit):
        run(*words)
    assert "error: only a dataset of texts can train a policy from scratch" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run(*words, "--max_words", "3")
    assert "error: max_words counts words of texts" in capsys.readouterr().err
    run(*words, "--model_name_or_path", "trl_ext/tiny", "--max_steps", "1")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--lerning_rate", "1"], "error: unknown option --lerning_rate; did you mean --learning_rate?"),
        (["--dataset_train_split", "dev"], "error: no split 'dev' in dataset 'reviews'; there are: train, test"),
        (["--max_words", "0"], "error: no text has at most 0 words; give a larger max_words"),
        (["--model_name_or_path", "nobody/nothing"], "error: no model 'nobody/nothing': neither a local folder nor"),
        (["--load_in_8bit", "--load_in_4bit"], "error: You can't use 8 bit and 4 bit precision at the same time"),
    ],
)
def test_bad_input_is_one_line(recipe, words, expected, capsys):
    with pytest.raises(SystemExit) as stopped:
        recipe.main([*CONFIG, "--use_cpu", "true", *words])
    assert stopped.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert line.startswith(expected)
