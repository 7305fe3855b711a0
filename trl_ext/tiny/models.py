"""Small Qwen2-shaped models made on the spot: random ones for tests, and the untrained policy of `recipes/sft.py`."""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM, Qwen2ForSequenceClassification

from .tokenizer import byte_tokenizer


@dataclass
class PolicyShape:
    """The shape of a policy that is trained from scratch (`recipes/sft.py` without `model_name_or_path`)."""

    vocab_size: int = field(default=2048, metadata={"help": "Tokens of the byte-level BPE tokenizer trained for it."})
    hidden_size: int = field(default=128, metadata={"help": "Width of the residual stream."})
    intermediate_size: int = field(default=384, metadata={"help": "Width of the feed-forward layers."})
    num_hidden_layers: int = field(default=4, metadata={"help": "Number of layers."})
    num_attention_heads: int = field(default=4, metadata={"help": "Number of query heads."})
    num_key_value_heads: int = field(default=2, metadata={"help": "Number of key and value heads."})
    max_position_embeddings: int = field(default=512, metadata={"help": "Longest sequence, in tokens."})


def new_policy(shape: PolicyShape, tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> Qwen2ForCausalLM:
    """An untrained policy of that shape in float32, its vocabulary and special tokens those of `tokenizer`."""
    options = {**vars(shape), "vocab_size": len(tokenizer), "tie_word_embeddings": True}
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(_config(tokenizer, **options))


def random_policy(seed: int = 0, **config: Any) -> Qwen2ForCausalLM:
    """A random causal LM for tests, float32, over `byte_tokenizer()`; `config` overrides fields of `Qwen2Config`.

    By default two layers of width 64, about 0.1 M parameters. Its `name_or_path` is empty: nothing can reload it from
    disk (say, to build a reference model).
    """
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(_config(byte_tokenizer(), **config))


def random_scorer(seed: int = 1, **config: Any) -> Qwen2ForSequenceClassification:
    """A random reward or value model for tests: `random_policy`'s shape with a scalar `score` head (`num_labels=1`)."""
    torch.manual_seed(seed)
    return Qwen2ForSequenceClassification(_config(byte_tokenizer(), **{"num_labels": 1, **config}))


def _config(tokenizer: PreTrainedTokenizerBase, **config: Any) -> Qwen2Config:
    defaults: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
    }
    return Qwen2Config(**(defaults | config))
