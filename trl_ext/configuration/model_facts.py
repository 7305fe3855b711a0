"""How large a model is and of what shape, from an object or from its folder without loading the weights."""

import contextlib
from typing import Any, NamedTuple

import torch
from peft import get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from .. import tiny
from .mistakes import one_line


class ModelFacts(NamedTuple):
    """Attributes:
    parameters, trainable: how many.
    weight_bytes, trainable_bytes: what they take as they are loaded.
    adapter: whether PEFT holds the base fixed.
    hidden_size, num_layers, vocab_size, intermediate_size: of the decoder; `None` where its config has another shape.
    query_size, key_value_size: heads times the size of a head.
    """

    parameters: int
    trainable: int
    weight_bytes: float
    trainable_bytes: float
    adapter: bool = False
    hidden_size: int | None = None
    num_layers: int | None = None
    vocab_size: int | None = None
    intermediate_size: int | None = None
    query_size: int | None = None
    key_value_size: int | None = None

    @property
    def bytes_per_weight(self) -> float:
        """The mean, without quantisation: at least 2, since activations are no smaller than 16 bits."""
        return max(self.weight_bytes / max(self.parameters, 1), 2.0)


def model_facts(model: torch.nn.Module) -> ModelFacts:
    """Of a model in memory, or on the meta device."""
    parameters = list(model.parameters())
    trainable = [each for each in parameters if each.requires_grad]
    config = getattr(model, "config", None)
    return ModelFacts(
        sum(map(_count, parameters)), sum(map(_count, trainable)),
        sum(map(_bytes, parameters)), sum(map(_bytes, trainable)),
        adapter=hasattr(model, "peft_config"), **({} if config is None else _shape(config)),
    )  # fmt: skip


def local_model_facts(name_or_path: str, dtype: Any = None, peft_config: Any = None) -> ModelFacts | str:
    """Of a folder or a hub model that is on this machine, built on the meta device: no weights are read.

    Args:
        name_or_path: a folder, a hub id or `trl_ext/tiny`.
        dtype: in which it will be loaded, a `torch.dtype` or its name; default: what its config says.
        peft_config: the adapter that will be trained.
    Returns:
        The facts, or in one line why they are not known.
    """
    try:
        config = AutoConfig.from_pretrained(tiny.resolve(name_or_path), local_files_only=True)
        kind = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
        kind = kind if isinstance(kind, torch.dtype) else getattr(config, "dtype", None) or torch.float32
        with torch.device("meta"), contextlib.redirect_stdout(None):
            model = AutoModelForCausalLM.from_config(config, dtype=kind)
            return model_facts(model if peft_config is None else get_peft_model(model, peft_config))
    except OSError:
        return f"{name_or_path} is not on this machine"
    except ValueError as error:
        return f"{name_or_path} is no causal language model that can be built here: {one_line(error, 120)}"


def _count(parameter: torch.nn.Parameter) -> int:
    number = getattr(parameter, "ds_numel", parameter.numel())  # DeepSpeed's ZeRO-3 leaves parameters empty
    return 2 * number if type(parameter).__name__ == "Params4bit" else number  # two in a byte


def _bytes(parameter: torch.nn.Parameter) -> int:
    return getattr(parameter, "ds_numel", parameter.numel()) * parameter.element_size()


def _shape(config: Any) -> dict[str, int | None]:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    hidden, heads = getattr(text, "hidden_size", None), getattr(text, "num_attention_heads", None)
    key_value_heads = getattr(text, "num_key_value_heads", None) or heads
    head = getattr(text, "head_dim", None) or (hidden // heads if hidden and heads else None)
    return {
        "hidden_size": hidden,
        "num_layers": getattr(text, "num_hidden_layers", None),
        "vocab_size": getattr(text, "vocab_size", None),
        "intermediate_size": getattr(text, "intermediate_size", None),
        "query_size": heads * head if heads and head else None,
        "key_value_size": key_value_heads * head if key_value_heads and head else None,
    }
