"""Which PPO a script gets, and what stock PPO is given."""

import pytest
import torch
from datasets import Dataset

from trl_ext import UserError, compat, tiny


def test_the_stock_trainer_is_taken_where_trl_ships_it_and_ours_elsewhere(monkeypatch):
    monkeypatch.delenv("TRL_EXT_PPO", raising=False)
    config, trainer = compat.ppo_classes()
    home = "trl_ext" if compat.STOCK is None else "trl"
    assert config.__module__.split(".")[0] == trainer.__module__.split(".")[0] == home


def test_ours_can_be_asked_for_by_argument_or_environment(monkeypatch):
    assert compat.ppo_classes("trl_ext")[1].__module__.startswith("trl_ext.")
    monkeypatch.setenv("TRL_EXT_PPO", "trl_ext")
    assert compat.ppo_classes()[1].__module__.startswith("trl_ext.")


@pytest.mark.current_trl
def test_asking_for_stock_ppo_where_there_is_none_names_the_two_ways_out():
    with pytest.raises(UserError, match=r"trl==1\.12\.0.*TRL_EXT_PPO=trl_ext"):
        compat.ppo_classes("stock")


def test_another_word_is_refused_with_the_three_that_are_not():
    with pytest.raises(UserError, match="'auto', 'stock' or 'trl_ext'"):
        compat.ppo_classes("stok")


def test_prompts_are_padded_left_to_one_width_and_decode_to_themselves():
    tokenizer = tiny.byte_tokenizer()
    prompts = ["a", "longer", "mid"]
    rows = compat.tokenise_prompts(Dataset.from_dict({"prompt": prompts}), tokenizer)["input_ids"]
    assert {len(row) for row in rows} == {len("longer")}
    assert [tokenizer.decode(row, skip_special_tokens=True) for row in rows] == prompts
    assert rows[0] == [tokenizer.pad_token_id] * 5 + tokenizer("a")["input_ids"]


def test_conversational_prompts_end_with_the_generation_prompt():
    tokenizer = tiny.byte_tokenizer(chat=True)
    prompt = [{"role": "user", "content": "hi"}]
    row = compat.tokenise_prompts(Dataset.from_dict({"prompt": [prompt]}), tokenizer)["input_ids"][0]
    assert tokenizer.decode(row) == "user: hi\nassistant: "


@pytest.mark.stock_ppo
def test_stock_batches_that_do_not_divide_name_the_numbers_that_would(tmp_path):
    config = compat.STOCK.PPOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=10, gradient_accumulation_steps=1, num_mini_batches=3,
        use_cpu=True, bf16=False,
    )  # fmt: skip
    data = Dataset.from_dict({"prompt": ["a"]})
    with pytest.raises(UserError, match="num_mini_batches to one of 1, 2, 5, 10, or make the product 9 or 12"):
        compat.build_ppo_trainer(config, tiny.random_policy(), tiny.byte_tokenizer(), data, [len])


def test_the_value_model_sees_what_the_policy_sees_and_starts_at_zero():
    policy = tiny.random_policy()
    value_model = compat.value_model_of(policy)
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        seen = getattr(value_model, value_model.base_model_prefix)(ids).last_hidden_state
        torch.testing.assert_close(seen, policy.model(ids).last_hidden_state)
        assert not value_model.score(seen).any()
    value_model.score.weight.data.fill_(1.0)
    assert policy.model.embed_tokens.weight.data_ptr() != value_model.model.embed_tokens.weight.data_ptr()
