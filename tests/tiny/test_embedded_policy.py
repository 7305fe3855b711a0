"""The embedded policy: what is in its folder, and that it does what its model card says."""

import re

import pytest
import torch
from safetensors import safe_open

from trl_ext import tiny
from trl_ext.data import load_reviews, review_prompts


@pytest.fixture(scope="module")
def policy():
    return tiny.load_policy().eval()


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.load_tokenizer()


def on_card(pattern: str) -> float:
    return float(re.search(pattern, (tiny.PATH / "README.md").read_text(encoding="utf-8")).group(1))


def test_the_weights_are_float16_and_small():
    path = tiny.PATH / "model.safetensors"
    assert path.stat().st_size <= 8 * 1024 * 1024
    with safe_open(path, "pt") as tensors:
        assert {tensors.get_tensor(name).dtype for name in tensors.keys()} == {torch.float16}  # noqa: SIM118


def test_the_policy_loads_in_float32_and_has_one_to_four_million_parameters(policy):
    assert policy.dtype == torch.float32
    assert 1e6 <= policy.num_parameters() <= 4e6
    assert policy.config.model_type == "qwen2"
    assert tiny.load_policy(torch.bfloat16).dtype == torch.bfloat16


def test_policy_and_tokenizer_agree(policy, tokenizer):
    assert policy.config.vocab_size == len(tokenizer)
    assert policy.generation_config.eos_token_id == tokenizer.eos_token_id != tokenizer.pad_token_id
    assert policy.generation_config.pad_token_id == tokenizer.pad_token_id
    assert tokenizer.padding_side == "left"
    assert tokenizer.chat_template


def test_every_snippet_comes_back_from_its_tokens(tokenizer):
    for text in load_reviews("test")["text"]:
        assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_the_tokenizer_is_the_one_that_the_training_snippets_give(tokenizer):
    assert tiny.train_tokenizer(load_reviews("train")["text"], len(tokenizer)).get_vocab() == tokenizer.get_vocab()


def test_the_held_out_loss_is_the_one_on_the_card(policy, tokenizer):
    nats, tokens = 0.0, 0
    texts = [text + tokenizer.eos_token for text in load_reviews("test")["text"]]
    for start in range(0, len(texts), 100):
        batch = tokenizer(texts[start : start + 100], return_tensors="pt", padding=True, padding_side="right")
        with torch.no_grad():
            logps = policy(**batch).logits[:, :-1].log_softmax(-1)
        chosen = logps.gather(2, batch["input_ids"][:, 1:, None]).squeeze(2)
        mask = batch["attention_mask"][:, 1:]
        nats -= (chosen * mask).sum().item()
        tokens += mask.sum().item()
    assert nats / tokens == pytest.approx(on_card(r"\*\*([\d.]+) nats a token\*\*"), abs=0.005)


def test_it_stops_by_itself_after_a_sentence(policy, tokenizer):
    torch.manual_seed(0)
    batch = tokenizer(list(review_prompts()["prompt"])[:128], return_tensors="pt", padding=True)
    ids = policy.generate(**batch, do_sample=True, top_k=0, max_new_tokens=48)[:, batch["input_ids"].size(1) :]
    stopped = (ids == tokenizer.eos_token_id).any(1).float().mean().item()
    length = (ids != tokenizer.pad_token_id).sum(1).float().mean().item()
    assert stopped > 0.9
    assert 15 < length < 25
    assert stopped == pytest.approx(on_card(r"48 \| (\d+)%") / 100, abs=0.08)


def test_the_name_is_resolved_and_others_stay():
    assert tiny.resolve("trl_ext/tiny") == tiny.resolve("trl_ext/tiny/") == str(tiny.PATH)
    assert tiny.resolve("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"


def test_prompts_are_openings_of_training_snippets():
    prompts = tiny.prompts()
    assert 300 <= len(prompts) == len(set(prompts))
    assert set(prompts) <= set(review_prompts("train")["prompt"])
