"""The layers of a model compiled one by one: what a training step costs on a fast card is the host's time to launch
hundreds of small kernels a layer, and not their arithmetic."""

import warnings
from typing import Any

from torch import nn


def compile_layers(model: nn.Module, **options: Any) -> int:
    """Compiles each layer of `model` in place, for any length of text; parameters and state dicts keep their names.

    All layers of a kind share one compiled form, so it takes seconds, once for training and once for scoring, where
    `torch_compile=True` compiles a model as a whole and anew for other lengths. Gradient checkpointing works as before.
    Numbers differ from those of the plain model by rounding.

    Args:
        model: of Transformers, also under PEFT's.
        options: of `torch.compile`, besides `dynamic=True`.
    Returns:
        how many layers; 0, with a warning, where the model has no stack of them.
    """
    layers = [layer for stack in model.modules() if _is_stack(stack) for layer in stack.children()]
    if not layers:
        warnings.warn(f"{type(model).__name__} has no stack of layers of one kind: nothing was compiled", stacklevel=2)
    for layer in layers:
        layer.compile(**({"dynamic": True} | options))
    return len(layers)


def _is_stack(module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList) and len(module) > 1 and len({type(layer) for layer in module}) == 1
