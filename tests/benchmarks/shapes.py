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
