"""The estimate of memory, line by line: against what torch really keeps on a small model."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from trl import DPOConfig, SFTConfig

from trl_ext import PPOConfig, ReinforceLOOConfig, tiny
from trl_ext.configuration.memory import activation_elements, memory_estimate, optimizer_state_bytes
from trl_ext.configuration.model_facts import ModelFacts, local_model_facts, model_facts

CPU = {"use_cpu": True, "bf16": False}
FACTS = ModelFacts(1000, 1000, 4000, 4000, False, 16, 2, 50, 32, 16, 8)


@pytest.fixture(scope="module")
def llama():
    config = LlamaConfig(
        vocab_size=128, hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=2,
    )  # fmt: skip
    torch.manual_seed(0)
    return LlamaForCausalLM(config)


def lines(args, facts=FACTS, **options):
    estimate = memory_estimate(args, facts, **options)
    return {line.name: line.bytes for line in estimate.kept + estimate.training + estimate.generating}


def test_the_facts_of_a_folder_are_those_of_the_model_in_it():
    lora = LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=4)
    assert local_model_facts("trl_ext/tiny", torch.float32) == model_facts(tiny.load_policy())
    assert local_model_facts("trl_ext/tiny", "float32", lora) == model_facts(get_peft_model(tiny.load_policy(), lora))
    halves = local_model_facts("trl_ext/tiny", "bfloat16")
    assert halves.weight_bytes == 2 * halves.parameters == sum(p.numel() * 2 for p in tiny.load_policy().parameters())
    assert local_model_facts("no/such-model") == "no/such-model is not on this machine"


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("adamw_torch_fused", lambda p: torch.optim.AdamW(p)),
        ("sgd", lambda p: torch.optim.SGD(p, lr=0.1)),
        ("rmsprop", lambda p: torch.optim.RMSprop(p)),
        ("adagrad", lambda p: torch.optim.Adagrad(p)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_optimizers_state_is_what_torch_keeps(name, optimizer, dtype):
    parameter = torch.nn.Parameter(torch.ones(1000, dtype=dtype))
    made = optimizer([parameter])
    parameter.grad = torch.ones_like(parameter)
    made.step()
    kept = sum(
        value.numel() * value.element_size()
        for state in made.state.values() for value in state.values()
        if isinstance(value, torch.Tensor) and value.numel() > 1
    )  # fmt: skip
    size = 1000 * parameter.element_size()
    assert optimizer_state_bytes(name, ModelFacts(1000, 1000, size, size))[0] == kept


def test_8_bit_optimizers_keep_two_bytes_a_parameter_and_one_nobody_knows_none():
    assert (
        optimizer_state_bytes("adamw_bnb_8bit", FACTS)[0] == optimizer_state_bytes("paged_adamw_8bit", FACTS)[0] == 2000
    )
    assert optimizer_state_bytes("galore_xyz", FACTS)[0] is None


def test_the_key_value_cache_is_what_transformers_keeps(llama):
    cache = DynamicCache()
    with torch.no_grad():
        llama(torch.zeros(8, 20, dtype=torch.long), past_key_values=cache, use_cache=True)
    kept = sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values))
    args = ReinforceLOOConfig("x", **CPU, per_device_train_batch_size=8, max_completion_length=12)
    assert lines(args, model_facts(llama), prompt_length=8)["key-value cache"] == kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_activations_are_those_that_autograd_keeps_within_a_tenth(llama, dtype):
    model, kept = llama.to(dtype), {}
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = model.model(torch.zeros(4, 64, dtype=torch.long), use_cache=False).last_hidden_state
    expected = activation_elements(model_facts(model), 4 * 64, checkpointing=False) * dtype.itemsize
    assert sum(kept.values()) == pytest.approx(expected, rel=0.1)
    assert hidden.requires_grad
    llama.float()


def test_checkpointing_keeps_a_layers_input_and_one_layer():
    one_layer = 8 * 16 + 2 * 16 + 2 * 8 + 4 * 32
    assert activation_elements(FACTS, 10, checkpointing=False) == 10 * 2 * one_layer
    assert activation_elements(FACTS, 10, checkpointing=True) == 10 * (2 * 16 + one_layer)


def test_the_reference_by_its_kind():
    adapter = FACTS._replace(adapter=True, trainable=100, trainable_bytes=400)
    for options, full, with_adapter in [
        ({}, 4000, 0),
        ({"beta": 0.0}, 0, 0),
        ({"reference": "periodic"}, 4000, 400),
        ({"reference": "ema"}, 4000, 400),
    ]:
        args = ReinforceLOOConfig("x", **CPU, **options)
        assert (lines(args)["reference"], lines(args, adapter)["reference"]) == (full, with_adapter)
    halves = FACTS._replace(weight_bytes=2000)
    assert lines(ReinforceLOOConfig("x", **CPU, reference="ema"), halves)["reference"] == 4000  # float32 all the same
    assert lines(PPOConfig("x", **CPU, kl_coef=0.0))["reference"] == 0
    assert lines(DPOConfig("x", **CPU))["reference"] == 4000
    assert lines(DPOConfig("x", **CPU, precompute_ref_log_probs=True))["reference"] == 0
    assert lines(SFTConfig("x", **CPU))["reference"] == 0


def test_the_total_is_what_is_kept_and_the_larger_phase():
    args = ReinforceLOOConfig(
        "x", **CPU, per_device_train_batch_size=8, max_completion_length=10, gradient_checkpointing=False
    )
    estimate = memory_estimate(args, FACTS, prompt_length=6)
    each = lines(args, prompt_length=6)
    training, generating = each["activations"] + each["logits"], each["key-value cache"]
    assert each["activations"] == 8 * 16 * 2 * (8 * 16 + 2 * 16 + 2 * 8 + 4 * 32) * 4
    assert generating == 8 * 16 * 2 * 2 * 8 * 4
    assert estimate.total == 4000 + 4000 + 8000 + 4000 + max(training, generating)


def test_autocast_keeps_16_bit_copies_of_trainable_float32_weights():
    assert "16-bit copies" not in lines(SFTConfig("x", **CPU))
    args = SFTConfig("x", use_cpu=True, bf16=True)
    assert lines(args)["16-bit copies"] == 2000
    assert "16-bit copies" not in lines(args, FACTS._replace(trainable_bytes=2000))


def test_what_is_not_known_is_said_and_not_guessed():
    estimate = memory_estimate(SFTConfig("x", **CPU, max_length=None), FACTS)
    assert not estimate.complete and "set max_length" in estimate.training[0].assumes
