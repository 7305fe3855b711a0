"""A twin of the policy that only generates: the same class in 16 bits, with nothing of what training wraps around it.

The policy itself cannot be compiled as it trains: Accelerate's autocast and TRL's fused head are closures around its
`forward`, float32 weights do not fit a static cache under autocast, an adapter costs two more matrix products a layer,
and sharded weights are gathered anew for every token.
"""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from .attention import ATTENTION

try:
    from peft import PeftModel
    from peft.tuners.lora.layer import LoraLayer
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.integrations import dequantize_module_weight
    from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper
except ImportError as error:  # PEFT is a dependency; what moved in it is named
    raise ImportError(f"trl_ext/generation/twin.py rests on PEFT's layers: {error}") from error

# Adapters whose product is base + difference, by what PEFT calls their layers
MERGED = {"Linear", "Embedding", "Linear4bit", "Linear8bitLt"}
# What a policy may have been told to compute attention with, and the twin computes with ours
REPLACED = ("sdpa", "flash_attention_2", "flash_attention_3")


class NoTwinError(Exception):
    """Why a model has no twin, in words for a user."""


class Twin:
    """Without weights until the first `refresh`.

    Args:
        policy: an unwrapped model, or PEFT's around one. Plain LoRA is merged into the twin's weights, a quantised base
            is unpacked, FSDP2's shards are gathered.
        dtype: of the twin. Weights that have it already are shared with the policy, not copied.
    Raises:
        NoTwinError: the policy has other buffers than its class.
    """

    def __init__(self, policy: nn.Module, dtype: torch.dtype) -> None:
        base = base_of(policy)
        config = copy.deepcopy(base.config)
        for name in ("quantization_config", "_pre_quantization_dtype"):
            if hasattr(config, name):
                delattr(config, name)
        attention = ATTENTION if config._attn_implementation in REPLACED else config._attn_implementation
        with torch.device("meta"):
            self.model = type(base)._from_config(config, dtype=dtype, attn_implementation=attention)
        self.model.eval().requires_grad_(False)
        self.dtype = dtype
        self._take_buffers(base)
        self._without = {name for name, _ in self.model.named_parameters()}
        if is_sharded(policy):  # its room before the first is gathered: no process waits for one that has none
            device = next(policy.parameters()).device
            for parameter in list(self.model.parameters()):
                self._place(parameter, torch.empty(parameter.shape, dtype=dtype, device=device))

    def _take_buffers(self, base: nn.Module) -> None:
        """Such as rotary frequencies, which are in no state dict and stay in float32."""
        buffers = dict(base.named_buffers())
        for name, buffer in list(self.model.named_buffers()):
            if name not in buffers or buffers[name].shape != buffer.shape:
                raise NoTwinError(f"the policy has no buffer {name!r} of the shape {tuple(buffer.shape)}")
            owner, _, last = name.rpartition(".")
            self.model.get_submodule(owner)._buffers[last] = buffers[name].detach().clone()

    @property
    def is_empty(self) -> bool:
        return bool(self._without)

    @torch.no_grad()
    def refresh(self, policy: nn.Module) -> None:
        """Takes the policy's weights as they are now; collective where they are sharded.

        Raises:
            NoTwinError: the policy has an adapter that is no plain LoRA, or other parameters than its class.
        """
        _reshard(policy)
        base = base_of(policy)
        own = dict(self.model.named_parameters())  # tied ones once, by the name of the first
        for name, weight in weights_of(base):
            if name not in own:  # a value function, or the second of two that are tied
                continue
            if own[name].shape != weight.shape:
                raise NoTwinError(
                    f"{name} has the shape {tuple(weight.shape)}, its class expects {tuple(own[name].shape)}"
                )
            self._without.discard(name)
            if own[name].is_meta:  # one of the policy's own in the right dtype is shared with it
                shared = isinstance(weight, nn.Parameter) and weight.dtype == self.dtype
                self._place(own[name], weight.data if shared else weight.to(self.dtype, copy=True))
            elif own[name].data_ptr() != weight.data_ptr():
                own[name].copy_(weight)
        if self._without:
            raise NoTwinError(
                f"the policy has no weight {min(self._without)!r}, which its class {type(base).__name__} has"
            )

    def _place(self, parameter: nn.Parameter, data: torch.Tensor) -> None:
        """In all modules that share the parameter."""
        placed = nn.Parameter(data, requires_grad=False)
        for module in self.model.modules():
            for key, value in module._parameters.items():
                if value is parameter:
                    module._parameters[key] = placed


def _reshard(policy: nn.Module) -> None:
    """What FSDP2 left gathered after a forward lies in memory that it frees later: nothing to share."""
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def is_sharded(policy: nn.Module) -> bool:
    """Whether FSDP2 holds a part of it here, so that its forward, and gathering its weights, are collectives. The
    parameters do not tell: some are whole between a forward and the next division."""
    return any(isinstance(module, FSDPModule) for module in policy.modules())


def base_of(policy: nn.Module) -> Any:
    """The model of Transformers under PEFT's."""
    return policy.get_base_model() if isinstance(policy, PeftModel) else policy


def weights_of(base: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The names a model of that class has without an adapter, and the weights with it: whole, unpacked and merged.

    Raises:
        NoTwinError: an adapter that is no plain LoRA.
    """
    inside: list[str] = []  # of a layer that speaks for all that it holds
    for path, module in base.named_modules():
        if path.startswith(tuple(inside)):
            continue
        prefix = f"{path}." if path else ""
        if isinstance(module, BaseTunerLayer):
            inside.append(prefix)
            yield from ((prefix + name, weight) for name, weight in _of_adapter(path, module))
        elif isinstance(module, AuxiliaryTrainingWrapper):
            inside.append(prefix)
            yield from ((prefix + name, weight) for name, weight in _of_saved(path, module))
        else:
            yield from ((prefix + name, weight) for name, weight in _of_module(module))


def _of_module(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in module.named_parameters(recurse=False):
        packed = (name == "weight" and hasattr(parameter, "quant_state")) or type(parameter).__name__ == "Int8Params"
        yield name, dequantize_module_weight(module) if packed else _whole(parameter)


def _of_adapter(path: str, layer: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if not isinstance(layer, LoraLayer) or type(layer).__name__ not in MERGED:
        raise NoTwinError(f"{path} has an adapter of the kind {type(layer).__name__}, and plain LoRA alone is merged")
    active = [] if layer.disable_adapters or layer.merged else [a for a in layer.active_adapters if a in layer.scaling]
    if any(layer.lora_variant.get(adapter) for adapter in active) or any(layer.lora_bias.get(a) for a in active):
        raise NoTwinError(
            f"{path} has LoRA with a variant (DoRA and the like) or a bias, and plain LoRA alone is merged"
        )
    for name, weight in _of_module(layer.get_base_layer()):
        if name == "weight":
            for adapter in active:  # in float32, whatever the two are held in
                weight = weight.float() + _whole(layer.get_delta_weight(adapter)).float()
        yield name, weight


def _of_saved(path: str, wrapper: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if not isinstance(wrapper, ModulesToSaveWrapper):
        raise NoTwinError(f"{path} trains in a way ({type(wrapper).__name__}) that is not merged")
    active = [name for name in wrapper.active_adapters if name in wrapper.modules_to_save]
    module = wrapper.original_module if wrapper.disable_adapters or not active else wrapper.modules_to_save[active[0]]
    for name, weight in module.named_parameters():
        yield name, _whole(weight)


def _whole(weight: torch.Tensor) -> torch.Tensor:
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight
