"""The frozen reference model: the policy as it was given, not as its name would load it."""

import copy
from contextlib import contextmanager

from torch import nn
from transformers import PreTrainedModel
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.utils import is_peft_available
from trl.models import prepare_deepspeed, prepare_fsdp
from trl.trainer.utils import disable_dropout_in_model

try:
    from trl.trainer.utils import add_fused_lm_head
except ImportError:  # before TRL 1.15 log-probabilities come from logits
    add_fused_lm_head = None


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
