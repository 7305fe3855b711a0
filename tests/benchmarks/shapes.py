"""Shapes of Qwen3 models for random weights, and one that a CPU can take."""

from typing import Any

_QWEN3 = {"vocab_size": 151936, "max_position_embeddings": 4096, "head_dim": 128, "num_key_value_heads": 8,
          "tie_word_embeddings": True}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
             **_QWEN3},
    "4B": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
           **_QWEN3},
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 2048, "tie_word_embeddings": True},
}  # fmt: skip


def qwen3_config(shape: str, tokenizer: Any, **more: Any) -> Any:
    """A `Qwen3Config` with the special tokens of `tokenizer`."""
    from transformers import Qwen3Config

    pads = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    return Qwen3Config(**SHAPES[shape], **pads, **more)


def lora_config() -> Any:
    from peft import LoraConfig

    return LoraConfig(r=32, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM")


def in_four_bits(folder: str) -> Any:
    """The policy in `folder` as nf4, which bitsandbytes makes of what it loads, ready for an adapter."""
    import torch
    from peft import prepare_model_for_kbit_training
    from transformers import BitsAndBytesConfig, Qwen3ForCausalLM

    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )  # fmt: skip
    model = Qwen3ForCausalLM.from_pretrained(
        folder, quantization_config=config, dtype=torch.bfloat16,
        device_map={"": 0} if torch.cuda.is_available() else None,
    )  # fmt: skip
    return prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
