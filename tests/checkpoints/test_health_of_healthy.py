"""Healthy checkpoints of many kinds: nothing above an information."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
import transformers
from accelerate import Accelerator
from peft import AdaLoraConfig, IA3Config, LoHaConfig, LoraConfig, PromptTuningConfig, VeraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from tests.checkpoints.written import TINY, policy, saved_adapter, saved_policy, saved_reward_model
from trl_ext.checkpoints.health.judging import judge

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
         "vocab_size": 100, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
MODELS = {
    "gpt2": transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=100, bos_token_id=1, eos_token_id=1),
    "llama": transformers.LlamaConfig(**SMALL),
    "qwen2": transformers.Qwen2Config(**SMALL, num_key_value_heads=2),
    "tied": transformers.Qwen2Config(**SMALL, num_key_value_heads=2, tie_word_embeddings=True),
    "gemma2": transformers.Gemma2Config(**SMALL, num_key_value_heads=2, head_dim=8),
    "mixtral": transformers.MixtralConfig(**SMALL, num_key_value_heads=4, num_local_experts=2),
    "neox": transformers.GPTNeoXConfig(**SMALL),
    "opt": transformers.OPTConfig(**{**SMALL, "ffn_dim": 64, "word_embed_proj_dim": 32}),
}
ADAPTERS = {
    "LoRA": LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"),
    "rsLoRA": LoraConfig(r=8, target_modules=["q_proj"], use_rslora=True),
    "DoRA": LoraConfig(r=8, target_modules=["q_proj"], use_dora=True),
    "modules_to_save": LoraConfig(r=8, target_modules=["q_proj"], modules_to_save=["embed_tokens"]),
    "embedding": LoraConfig(r=4, target_modules=["embed_tokens", "q_proj"]),
    "more targets than there are": LoraConfig(r=4, target_modules=["q_proj", "c_attn"]),
    "a pattern": LoraConfig(r=4, target_modules=["q_proj", "v_proj"], rank_pattern={r"layers\.[01]\..*v_proj": 2}),
    "a module left out": LoraConfig(
        r=4, target_modules=["q_proj", "v_proj"], exclude_modules=["layers.0.self_attn.v_proj"]
    ),
    "LoRA bias": LoraConfig(r=4, target_modules=["q_proj"], lora_bias=True),
    "bias": LoraConfig(r=4, target_modules=["q_proj"], bias="lora_only"),
    "IA3": IA3Config(target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "prompt": PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=8),
    "LoHa": LoHaConfig(r=4, target_modules=["q_proj"]),
    "VeRA": VeraConfig(r=4, target_modules=["q_proj"]),
    "AdaLoRA": AdaLoraConfig(init_r=8, target_r=4, total_step=100, target_modules=["q_proj"]),
}


def assert_healthy(folder, reference=None):
    health = judge(folder, reference)
    assert [finding for finding in health.findings if finding.severity > "info"] == []
    assert (health.score, health.status) == (1.0, "healthy")
    return health


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_transformers(name, tmp_path):
    AutoModelForCausalLM.from_config(MODELS[name]).save_pretrained(tmp_path)
    assert_healthy(tmp_path)


def test_models_whose_layers_are_not_all_alike(tmp_path):
    sizes = {"d_model": 32, "d_ff": 64, "num_heads": 4, "d_kv": 8, "vocab_size": 100}
    t5 = transformers.T5Config(**sizes, num_layers=4, num_decoder_layers=3)
    transformers.T5ForConditionalGeneration(t5).save_pretrained(tmp_path / "t5")
    bert = transformers.ModernBertConfig(**{**SMALL, "num_hidden_layers": 4}, cls_token_id=1, sep_token_id=2)
    transformers.ModernBertForMaskedLM(bert).save_pretrained(tmp_path / "bert")
    swin = transformers.SwinConfig(embed_dim=16, depths=[1, 2, 3, 1], num_heads=[1, 2, 2, 4], image_size=64)
    transformers.SwinModel(swin).save_pretrained(tmp_path / "swin")
    for name in ("t5", "bert", "swin"):
        assert_healthy(tmp_path / name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_embedded_policy_in_each_dtype(dtype, tmp_path):
    policy(dtype).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(TINY).save_pretrained(tmp_path)
    assert_healthy(tmp_path)


def test_a_sharded_model_and_the_same_in_one_file(tmp_path):
    saved_policy(tmp_path / "shards", max_shard_size="100KB")
    saved_policy(tmp_path / "one")
    shards, one = assert_healthy(tmp_path / "shards"), assert_healthy(tmp_path / "one")
    assert shards.measured.tensors.keys() == one.measured.tensors.keys()
    assert shards.whole.norm == pytest.approx(one.whole.norm)


def test_a_classifier_and_the_embedded_policy_itself(tmp_path):
    assert_healthy(saved_reward_model(tmp_path))
    assert_healthy(TINY)


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_fresh_adapter_is_an_information_at_most(name, tmp_path):
    get_peft_model(policy(), ADAPTERS[name]).save_pretrained(tmp_path)
    assert_healthy(tmp_path)


def test_a_fresh_adapter_of_a_classifier(tmp_path):
    model = AutoModelForSequenceClassification.from_pretrained(TINY, num_labels=1)
    get_peft_model(model, LoraConfig(r=4, task_type="SEQ_CLS", target_modules=["q_proj"])).save_pretrained(tmp_path)
    assert_healthy(tmp_path)


def test_a_trained_adapter_and_the_model_it_is_merged_into(tmp_path):
    torch.manual_seed(0)
    model = get_peft_model(policy(), LoraConfig(r=8, target_modules=["q_proj"]))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.01)
    model.save_pretrained(tmp_path / "adapter")
    assert_healthy(tmp_path / "adapter", TINY)
    model.merge_and_unload().save_pretrained(tmp_path / "merged")
    merged = assert_healthy(tmp_path / "merged", policy().save_pretrained(tmp_path / "base") or tmp_path / "base")
    moved = {name for name, drift in merged.measured.drifts.items() if drift.moved}
    assert len(moved) == 4 and all(name.endswith("q_proj.weight") for name in moved)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_quantised_model(bits, tmp_path):
    pytest.importorskip("bitsandbytes")
    options = transformers.BitsAndBytesConfig(load_in_4bit=bits == 4, load_in_8bit=bits == 8)
    AutoModelForCausalLM.from_pretrained(TINY, quantization_config=options).save_pretrained(tmp_path)
    health = assert_healthy(tmp_path)
    packed = {group.name for group in health.groups if "(" in group.name}
    assert packed and all(name.endswith("(fp4)" if bits == 4 else "(int8)") for name in packed)


def test_a_distributed_checkpoint(tmp_path):
    dcp.save({"model": policy().state_dict()}, checkpoint_id=tmp_path / "pytorch_model_fsdp_0", no_dist=True)
    assert assert_healthy(tmp_path).checkpoint.form == "torch.distributed.checkpoint"


def test_what_accelerate_saves_beside_the_weights(tmp_path):
    """Its random states are a file of torch.save whose name says pickle."""
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(policy())
    accelerator.save_state(tmp_path)
    accelerator.free_memory(model)
    assert (tmp_path / "random_states_0.pkl").read_bytes()[:2] == b"PK"
    assert [(f.rule, f.severity) for f in judge(tmp_path).findings] == [("config_missing", "warning")]


def test_a_file_of_torch_save(tmp_path):
    torch.save(policy().state_dict(), tmp_path / "pytorch_model.bin")
    policy().config.save_pretrained(tmp_path)
    assert_healthy(tmp_path)


def test_numbers_whose_squares_no_float_holds(tmp_path):
    save_file({"w": torch.randn(50, 50, dtype=torch.float64) * 1e-200}, tmp_path / "x.safetensors")
    assert_healthy(tmp_path)
    save_file({"w": torch.randn(50, 50, dtype=torch.float64) * 1e200}, tmp_path / "x.safetensors")
    assert judge(tmp_path).status == "damaged"


def test_buffers_that_hold_infinity_or_large_numbers(tmp_path):
    tensors = {
        "h.0.attn.masked_bias": torch.tensor(-1e9), "causal_mask": torch.full((4, 4), float("-inf")),
        "bn.running_var": torch.full((4,), 1e6), "w.weight": torch.randn(4, 4),
    }  # fmt: skip
    save_file(tensors, tmp_path / "x.safetensors")
    assert_healthy(tmp_path)


def test_a_variant_beside_is_another_copy(tmp_path):
    policy(torch.float16).save_pretrained(tmp_path, variant="fp16")
    saved_policy(tmp_path)
    assert_healthy(tmp_path)


def test_a_module_of_ones_own_saved_by_a_trainer(tmp_path):
    save_file({"layer.weight": torch.randn(3, 3)}, tmp_path / "model.safetensors")
    torch.save({"a": 1}, tmp_path / "training_args.bin")
    assert_healthy(tmp_path)


def test_an_unnamed_base_is_an_information(tmp_path):
    saved_adapter(tmp_path)
    assert_healthy(tmp_path)
