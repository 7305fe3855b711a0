"""Random models for tests, and the untrained policy of a given shape."""

import pytest
import torch

from trl_ext import tiny


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("make", [tiny.random_policy, tiny.random_scorer])
def test_the_seed_decides_the_weights(make):
    assert torch.equal(weights(make(seed=3)), weights(make(seed=3)))
    assert not torch.equal(weights(make(seed=3)), weights(make(seed=4)))


@pytest.mark.parametrize("make", [tiny.random_policy, tiny.random_scorer])
def test_models_fit_the_byte_tokenizer(make):
    model, tokenizer = make(), tiny.byte_tokenizer()
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.pad_token_id == tokenizer.pad_token_id
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert model.dtype == torch.float32
    assert model.num_parameters() < 200_000


def test_a_scorer_gives_one_number_a_text():
    scorer, tokenizer = tiny.random_scorer(), tiny.byte_tokenizer()
    batch = tokenizer(["good", "a bad one"], padding=True, return_tensors="pt")
    assert scorer(**batch).logits.shape == (2, 1)
    assert scorer.score.out_features == 1


def test_options_of_the_configuration_can_be_given():
    assert tiny.random_policy(num_hidden_layers=1, hidden_size=32).config.hidden_size == 32
    assert tiny.random_scorer(num_labels=2).config.num_labels == 2


def test_generation_stops_at_eos_and_pads():
    policy, tokenizer = tiny.random_policy(), tiny.byte_tokenizer()
    assert policy.generation_config.eos_token_id == tokenizer.eos_token_id
    assert policy.generation_config.pad_token_id == tokenizer.pad_token_id


def test_a_new_policy_has_the_shape_that_was_asked_for():
    tokenizer = tiny.byte_tokenizer()
    shape = tiny.PolicyShape(vocab_size=9999, hidden_size=32, intermediate_size=48, num_hidden_layers=3)
    policy = tiny.new_policy(shape, tokenizer, seed=1)
    config = policy.config
    assert (config.hidden_size, config.intermediate_size, config.num_hidden_layers) == (32, 48, 3)
    assert config.vocab_size == len(tokenizer)  # not what was asked of the tokenizer, but what it has
    assert policy.get_input_embeddings().weight is policy.get_output_embeddings().weight
    assert torch.equal(weights(policy), weights(tiny.new_policy(shape, tokenizer, seed=1)))
