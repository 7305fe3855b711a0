"""The twin computes what the policy computes, whatever is around the policy's weights."""

import copy
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torchrun import output_of
from trainer_builders import absolute_policy, policy
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from trl_ext import tiny
from trl_ext.generation import twin
from trl_ext.generation.twin import NoTwinError, Twin
from trl_ext.trainers.reference import add_reference_adapter
from trl_ext.trainers.value_function import ValueFunction, add_value_function

IDS = torch.tensor([[3, 4, 5, 6, 7, 8]])


def lora(model, **options):
    torch.manual_seed(1)
    defaults = {"r": 4, "target_modules": "all-linear", "task_type": "CAUSAL_LM", "init_lora_weights": False}
    return get_peft_model(model, LoraConfig(**(defaults | options)))


def with_head(model):
    add_value_function(model, ValueFunction(model.config.hidden_size))
    return model


def with_a_reference(model):
    model = lora(model)
    add_reference_adapter(model)
    return model


POLICIES = {
    "plain": lambda: policy(),
    "absolute positions": lambda: absolute_policy(),
    "value head": lambda: with_head(policy()),
    "lora": lambda: lora(policy()),
    "lora of embeddings": lambda: lora(policy(), target_modules=["embed_tokens", "q_proj"]),
    "lora and modules to save": lambda: lora(policy(), modules_to_save=["lm_head"]),
    "a reference beside the adapter": lambda: with_a_reference(policy()),
}


def twin_of(model, dtype):
    twin = Twin(model, dtype)
    twin.refresh(model)
    return twin


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def move(model):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.05)


@pytest.mark.parametrize("kind", POLICIES)
def test_the_twin_says_what_the_policy_says_also_after_it_has_learned(kind):
    model = POLICIES[kind]()
    twin = twin_of(model, torch.float32)
    torch.testing.assert_close(logits(twin.model), logits(model))
    before = logits(model)
    move(model)
    twin.refresh(model)
    torch.testing.assert_close(logits(twin.model), logits(model))
    assert not torch.allclose(logits(model), before)


def test_a_twin_in_16_bits_is_a_copy_and_one_of_the_same_dtype_is_none():
    model = policy()
    own = {parameter.data_ptr() for parameter in model.parameters()}
    shared = twin_of(model, torch.float32).model
    assert {parameter.data_ptr() for parameter in shared.parameters()} == own
    halved = twin_of(model, torch.bfloat16).model
    assert {parameter.dtype for parameter in halved.parameters()} == {torch.bfloat16}
    assert not {parameter.data_ptr() for parameter in halved.parameters()} & own
    assert {buffer.dtype for name, buffer in halved.named_buffers() if "inv_freq" in name} == {torch.float32}
    torch.testing.assert_close(logits(halved).float(), logits(model), rtol=0.05, atol=0.05)


def test_a_base_of_4_bits_is_unpacked_and_the_adapter_merged():
    options = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(
        tiny.PATH, quantization_config=options, device_map="cpu", dtype=torch.float32
    )
    model = lora(base)
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # it would repack the weights in place for evaluations
    twin = twin_of(model, torch.float32).model
    assert not hasattr(twin.config, "quantization_config")
    torch.testing.assert_close(logits(twin), logits(model).float(), rtol=1e-3, atol=1e-3)


def test_the_policy_is_left_as_it_was():
    model = lora(policy())
    before = copy.deepcopy(model.state_dict())
    twin = twin_of(model, torch.float32)
    twin.refresh(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(parameter.requires_grad for parameter in twin.model.parameters())


@pytest.mark.parametrize(
    "options",
    [{"use_dora": True}, {"lora_bias": True}, {"target_parameters": ["gate_proj.weight"], "target_modules": []}],
)
def test_an_adapter_that_is_no_plain_lora_has_no_twin(options):
    with pytest.raises(NoTwinError, match=r"plain LoRA|not merged"):
        twin_of(lora(policy(), **options), torch.float32)


def test_the_room_for_all_weights_of_a_divided_policy_is_taken_before_the_first_is_gathered(monkeypatch):
    model = policy()
    whole = twin_of(model, torch.bfloat16)
    monkeypatch.setattr(twin, "is_sharded", lambda policy: True)
    divided = Twin(model, torch.bfloat16)
    assert not [name for name, parameter in divided.model.named_parameters() if parameter.is_meta]
    places = [parameter.data_ptr() for parameter in divided.model.parameters()]
    divided.refresh(model)
    assert places == [parameter.data_ptr() for parameter in divided.model.parameters()]
    assert torch.equal(logits(divided.model), logits(whole.model))


def test_a_policy_whose_weights_its_class_does_not_know_has_no_twin():
    model = policy()
    model.model.layers[0].mlp.up_proj = torch.nn.Sequential(model.model.layers[0].mlp.up_proj)
    with pytest.raises(NoTwinError, match=r"no weight 'model\.layers\.0\.mlp\.up_proj\.weight'"):
        twin_of(model, torch.float32)


def test_the_twin_of_a_policy_that_fsdp2_divides_has_its_whole_weights():
    """Also made while FSDP2 still holds weights together that it is about to divide again."""
    output = output_of(Path(__file__).with_name("sharded_twin_run.py"), timeout=200)
    lines = [line.split()[1:] for line in output.splitlines() if line.startswith("differences")]
    assert lines == [["plain", "0.0", "0.0"], ["plain", "0.0", "0.0"], ["lora", "0.0", "0.0"]]
