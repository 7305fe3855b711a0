"""The reference model: the policy as it was given, not as its name would load it; frozen, or following the policy."""

import copy
import os
import re
from contextlib import contextmanager
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel, TrainerCallback
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.utils import is_peft_available
from trl.models import prepare_deepspeed, prepare_fsdp
from trl.trainer.utils import disable_dropout_in_model

from ..errors import UserError
from .sharded import gathered, load_whole, whole

try:
    from trl.trainer.utils import add_fused_lm_head
except ImportError:  # before TRL 1.15 log-probabilities come from logits
    add_fused_lm_head = None


REFERENCE_ADAPTER = "ref"  # GRPOTrainer scores the reference with an adapter of this name where there is one
_OF_REFERENCE = re.compile(rf"\.{REFERENCE_ADAPTER}(?=\.|$)")
REFERENCE_FILE = "reference/model.safetensors"  # in a checkpoint


def is_peft(model, peft_config=None) -> bool:
    """Whether the policy trains adapters: the reference is then the policy with its adapters off."""
    if peft_config is not None:
        return True
    if not is_peft_available():
        return False
    from peft import PeftModel

    return isinstance(model, PeftModel)


def copy_of_policy(model: PreTrainedModel) -> PreTrainedModel | None:
    """A copy of the policy as it is now, even where that differs from what its `name_or_path` holds.

    None where a copy cannot be had, and TRL loads the reference by name: a policy given by name, or one whose
    parameters ZeRO-3 has already partitioned.
    """
    if not isinstance(model, PreTrainedModel) or is_deepspeed_zero3_enabled():
        return None
    return copy.deepcopy(model)


@contextmanager
def no_reference_by_name(args, ref_model):
    """GRPOTrainer loads a reference by name unless `beta` is 0: so it is, while it builds, if a reference is given."""
    beta, args.beta = args.beta, args.beta if ref_model is None else 0.0
    try:
        yield
    finally:
        args.beta = beta


def prepare_reference(ref_model: nn.Module, trainer) -> nn.Module:
    """What GRPOTrainer's constructor does to the reference that it loads; frozen, without dropout."""
    args, accelerator = trainer.args, trainer.accelerator
    if args.disable_dropout:
        disable_dropout_in_model(ref_model)
    ref_model.eval().requires_grad_(False)
    if add_fused_lm_head is not None:
        add_fused_lm_head(ref_model, temperature=trainer.temperature, cast_lm_head_to_fp32=args.cast_lm_head_to_fp32)
    if trainer.is_deepspeed_enabled:
        return prepare_deepspeed(ref_model, accelerator)
    if trainer.is_fsdp_enabled:
        return prepare_fsdp(ref_model, accelerator)
    return accelerator.prepare_model(ref_model, evaluation_mode=True)


class ReferenceUpdateCallback(TrainerCallback):
    """Moves the reference towards the policy after optimizer steps; added by the trainer itself.

    `periodic`: the reference becomes the policy every `ref_update_interval` steps. `ema`: after every step
    reference <- tau * reference + (1 - tau) * policy; the reference is kept in float32 for that, since a thousandth of
    a step is lost in bfloat16.

    Weights are matched by name. Under ZeRO-3 they are gathered one by one; under DDP and FSDP2 every process moves what
    it holds.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_step_end(self, args, state, control, **_):
        if args.reference == "ema":
            move_reference(self._trainer, args.ema_tau)
        elif state.global_step % args.ref_update_interval == 0:
            move_reference(self._trainer, 0.0)


@torch.no_grad()
def move_reference(trainer: Any, tau: float) -> None:
    """reference <- tau * reference + (1 - tau) * policy."""
    policy = dict(trainer.accelerator.unwrap_model(trainer.model).named_parameters())
    for name, reference in reference_parameters(trainer).items():
        own = policy[name if trainer.ref_model is not None else _trained_name(name)]
        with gathered([reference, own]):
            if tau == 0.0:
                reference.copy_(own)
            else:
                reference.lerp_(own.to(reference.dtype), 1.0 - tau)


def reference_parameters(trainer: Any) -> dict[str, nn.Parameter]:
    """Of the reference model, or of the adapter that stands for it."""
    if trainer.ref_model is not None:
        return dict(trainer.accelerator.unwrap_model(trainer.ref_model).named_parameters())
    policy = trainer.accelerator.unwrap_model(trainer.model)
    return {name: parameter for name, parameter in policy.named_parameters() if _trained_name(name)}


def _trained_name(name: str) -> str | None:
    """The weight of the adapter that trains, for one of the reference's adapter; `None` for any other."""
    found, count = _OF_REFERENCE.subn(".default", name)
    return found if count else None


def add_reference_adapter(model: Any) -> None:
    """A frozen copy of the adapter that trains, beside it.

    It takes as much memory as the adapter's weights in float32, without gradients or optimizer states.
    """
    if REFERENCE_ADAPTER not in model.peft_config:
        try:
            model.add_adapter(REFERENCE_ADAPTER, model.peft_config["default"])
        except ValueError as error:  # such as LoraConfig(bias="all"), which changes the one base both stand on
            raise UserError(
                f"a reference that follows is a second adapter, which PEFT refuses here: {error} Set "
                "reference='frozen', or bias='none' in the LoraConfig."
            ) from error
    for name, parameter in model.named_parameters():
        if (trained := _trained_name(name)) is not None:
            parameter.data = model.get_parameter(trained).data.to(torch.float32, copy=True)
            parameter.requires_grad_(False)


def save_reference(trainer: Any, folder: str) -> None:
    """Its weights, whole, into `folder/reference/model.safetensors`, from the main process; all must call it."""
    state = {}
    for name, parameter in reference_parameters(trainer).items():
        with gathered([parameter]):
            weight = whole(parameter)
            if trainer.args.should_save:
                state[name] = weight.detach().to("cpu", copy=True).contiguous()
    if trainer.args.should_save:
        path = os.path.join(folder, REFERENCE_FILE)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        save_file(state, path)


def load_reference(trainer: Any, folder: str) -> None:
    """What `save_reference` wrote.

    Raises:
        UserError: it is not there, or of another model.
    """
    path = os.path.join(folder, REFERENCE_FILE)
    parameters = reference_parameters(trainer)
    try:
        with safe_open(path, framework="pt") as file:
            load_whole(parameters, file.keys(), file.get_tensor)
    except ValueError as error:
        raise UserError(f"{path} is of another reference: {error}; resume with the same model") from error
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"the reference cannot be restored from {path}: resume from a checkpoint of a run with "
            f"reference='{trainer.args.reference}', or set reference='frozen'"
        ) from error
