"""What the name of a tensor says, which weight of which layer it is; and that of a checkpoint's folder."""

import re
from functools import lru_cache
from pathlib import Path

# What is put in front: by PEFT, DataParallel, TRL's wrapper of policy and value model, FSDP, DeepSpeed, and by
# Accelerate, whose distributed checkpoints hold {"model": state_dict}
_WRAPPERS = re.compile(
    r"^(base_model\.model\.|module\.|policy\.|pretrained_model\.|_fsdp_wrapped_module\.|_orig_mod\."
    r"|(zero_pp_rank_\d+_)?mp_rank_\d+\.|model\.(?=(model|transformer|gpt_neox|base_model|lm_head|score)\.))+"
)
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,15})")
_INSIDE = re.compile(r"(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|base_layer)\.")
_LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blocks?|block)\.(\d+)\.")
# The first that fits, in the words that Transformers, PEFT and TRL use
_GROUPS = (
    ("LoRA A", r"(?<![a-z])lora_(embedding_)?A\b|(?<![a-z])lora_A\."),
    ("LoRA B", r"(?<![a-z])lora_(embedding_)?B\b|(?<![a-z])lora_B\."),
    ("adapter", r"lora_|vera_|ia3_|oft_|hada_|lokr_|boft_|prompt_embeddings|prompt_encoder|ln_tuning|trainable_tokens"),
    ("value head", r"(^|\.)(v_head|value_head|score|classifier|classification_head|reward_head)\."),
    ("embedding", r"embed_tokens|word_embeddings|wte|wpe|embed_positions|(^|\.)embeddings?\.|embed_in|tok_embeddings"),
    ("head", r"lm_head|embed_out|(^|\.)output\.weight"),
    ("norm", r"norm|(^|\.)ln_|layernorm|ln_f"),
    ("attention", r"attn|attention|self_att|[qkvo]_proj|query|key|value|(^|\.)wq|(^|\.)wk|(^|\.)wv|(^|\.)wo"),
    ("MLP", r"mlp|ffn|feed_forward|gate_proj|up_proj|down_proj|fc\d|c_fc|c_proj|experts|intermediate|dense"),
)
# In the order in which people read them
GROUPS = ("embedding", "attention", "MLP", "norm", "head", "value head", "LoRA A", "LoRA B", "adapter", "other")
_COMPILED = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _GROUPS)


def step_of(folder: Path) -> int | None:
    """N of a folder `checkpoint-N`; `None` for one of another name."""
    found = _CHECKPOINT.fullmatch(folder.name)
    return int(found[1]) if found else None


@lru_cache(maxsize=1 << 14)
def weight_name(name: str) -> str:
    """As the model itself calls it, without what PEFT, torch.compile or FSDP put around it."""
    return _INSIDE.sub("", _WRAPPERS.sub("", name))


@lru_cache(maxsize=1 << 14)
def layer_of(name: str) -> int | None:
    """The number of its layer; `None` for what is outside of them."""
    found = _LAYER.search(name)
    return int(found[1]) if found else None


@lru_cache(maxsize=1 << 14)
def group_of(name: str) -> str:
    """`embedding`, `attention`, `MLP`, `norm`, `head`, `value head`, `LoRA A`, `LoRA B`, `adapter` or `other`."""
    return next((group for group, pattern in _COMPILED if pattern.search(name)), "other")
