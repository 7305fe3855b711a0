"""Tokenizers made on the spot: bytes are kept, pad and EOS are apart, a round trip through a folder changes nothing."""

import pytest
from transformers import AutoTokenizer

from trl_ext import tiny

TEXTS = ["the film is good.", "the film isn't bad, in 2002", "déjà vu € ½ ☂"] * 20
STRANGE = ["", "Ünïcode ½ € ☂", "tabs\tand\n\nlines", "it's ''quoted''", "  spaces  ", "2002", "\x00\x7f"]


@pytest.fixture(params=["bytes", "trained"])
def tokenizer(request):
    return tiny.byte_tokenizer(chat=True) if request.param == "bytes" else tiny.train_tokenizer(TEXTS, 300)


def test_every_text_comes_back(tokenizer):
    for text in STRANGE:
        assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_pad_and_eos_are_apart_and_known(tokenizer):
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert {tokenizer.pad_token_id, tokenizer.eos_token_id} < set(range(len(tokenizer)))
    assert tokenizer("a<eos>").input_ids[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(tokenizer("a<eos><pad>").input_ids, skip_special_tokens=True) == "a"


def test_prompts_are_padded_on_the_left(tokenizer):
    batch = tokenizer(["a", "a longer one"], padding=True)
    assert batch["input_ids"][0][0] == tokenizer.pad_token_id
    assert batch["attention_mask"][0][-1] == 1


def test_a_saved_tokenizer_beside_a_policy_loads_the_same(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    tiny.random_policy(vocab_size=len(tokenizer)).save_pretrained(tmp_path)  # its config decides the class
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert len(loaded) == len(tokenizer)
    assert loaded.padding_side == "left"
    assert (loaded.pad_token_id, loaded.eos_token_id) == (tokenizer.pad_token_id, tokenizer.eos_token_id)
    assert loaded.chat_template == tokenizer.chat_template
    for text in [*STRANGE, *TEXTS]:
        assert loaded(text).input_ids == tokenizer(text).input_ids


def test_the_byte_tokenizer_has_a_token_a_byte_and_a_chat_template_only_on_request():
    tokenizer = tiny.byte_tokenizer()
    assert len(tokenizer) == 258
    for text in STRANGE:
        assert len(tokenizer(text).input_ids) == len(text.encode())
    assert tokenizer.chat_template is None
    assert tiny.byte_tokenizer(chat=True).chat_template


def test_the_chat_template_shows_every_turn_and_closes_the_answer(tokenizer):
    question = [{"role": "user", "content": "why?"}]
    answered = [*question, {"role": "assistant", "content": "because"}]
    asked = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    told = tokenizer.apply_chat_template(answered, tokenize=False)
    assert (asked, told) == ("user: why?\nassistant: ", "user: why?\nassistant: because<eos>")


def test_training_fills_the_vocabulary_shortens_texts_and_repeats():
    tokenizer = tiny.train_tokenizer(TEXTS, 280)
    assert len(tokenizer) == 280
    assert len(tokenizer("the film").input_ids) < len("the film") / 2
    assert tokenizer.get_vocab() == tiny.train_tokenizer(TEXTS, 280).get_vocab()
