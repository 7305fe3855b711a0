"""A value function evaluated inside the policy's own forward, so that DDP, FSDP and the optimizer see one module."""

import functools
import types
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from .reward_model import last_hidden_states
from .sharded import load_whole

VALUE_FILE = "value_function.safetensors"
PREFIX = "value_function."


@dataclass
class CausalLMOutputWithValues(ModelOutput):
    """What TRL reads of a policy's output, and the values. DDP finds the tensors of an output in dataclass fields.

    `state_values` (B, L - 1) holds at t the value of the state before token t + 1, as `log_probs` holds that token's
    log-probability.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    log_probs: torch.Tensor | None = None
    entropy: torch.Tensor | None = None
    aux_loss: torch.Tensor | None = None
    state_values: torch.Tensor | None = None


class ValueFunction(nn.Module):
    """V(state): a scalar head on the policy's last hidden state, or a separate `value_model` with a `score` head.

    The head starts at zero and stays in float32 whatever the policy's dtype: values start at 0, so the first advantages
    are those of plain REINFORCE. A `value_model` is called by the protocol of stock PPO (see `reward_model.py`).
    """

    def __init__(self, hidden_size: int, value_model: Any = None):
        super().__init__()
        self.value_model = value_model
        if value_model is None:
            self.head = nn.Linear(hidden_size, 1)
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, hidden_states: torch.Tensor, **model_inputs) -> torch.Tensor:
        """Values (B, L) of the states after each of L tokens."""
        if self.value_model is None:
            return self.head(hidden_states.to(self.head.weight.dtype)).squeeze(-1).float()
        backbone = getattr(self.value_model, str(self.value_model.base_model_prefix))
        inputs = {k: model_inputs[k] for k in ("input_ids", "attention_mask", "position_ids") if k in model_inputs}
        return self.value_model.score(last_hidden_states(backbone, **inputs)).squeeze(-1).float()


def add_value_function(model: PreTrainedModel, value_function: ValueFunction) -> None:
    """Attach `value_function` to `model`, whose forward then takes `with_values=True` and returns `state_values`."""
    model.value_function = value_function
    inner_forward = model.forward

    @functools.wraps(type(model).forward)  # `generate` validates its keywords against this signature
    def forward_with_values(self, *args, with_values=False, **kwargs):
        if not with_values:
            return inner_forward(*args, **kwargs)
        hidden_states = []
        # OPT calls the second alone
        decoders = {id(module): module for module in (self.base_model, self.get_decoder())}
        handles = [
            module.register_forward_hook(lambda _m, _a, out: hidden_states.append(out.last_hidden_state))
            for module in decoders.values()
        ]
        try:
            output = inner_forward(*args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()
        known = {name: getattr(output, name, None) for name in CausalLMOutputWithValues.__dataclass_fields__}
        known["state_values"] = self.value_function(hidden_states[-1], **kwargs)[:, :-1]
        return CausalLMOutputWithValues(**known)

    model.forward = types.MethodType(forward_with_values, model)


def split_value_state(state_dict: dict[str, torch.Tensor]) -> tuple[dict, dict]:
    """Split a state dict of the policy (PEFT-wrapped or not) into (policy, value function), the latter unprefixed."""
    policy: dict[str, torch.Tensor] = {}
    value: dict[str, torch.Tensor] = {}
    for name, tensor in state_dict.items():
        _, found, rest = name.partition(PREFIX)
        (value if found else policy)[rest if found else name] = tensor
    return policy, value


def load_value_function(value_function: ValueFunction, state: dict[str, torch.Tensor]) -> None:
    """What `split_value_state` made, into a value function that may be divided; all processes call it.

    Raises:
        ValueError: it is of another one.
    """
    load_whole(value_function.state_dict(keep_vars=True), state, state.__getitem__)


def hide_from_vllm(vllm_generation) -> None:
    """TRL pushes every parameter of the policy to vLLM, which would not know the value function's."""
    iterate = vllm_generation._iter_named_params
    vllm_generation._iter_named_params = lambda: ((n, p) for n, p in iterate() if not n.startswith(PREFIX))
