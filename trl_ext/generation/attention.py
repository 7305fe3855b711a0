"""Attention of the one token that is decoded: over the keys and values of the cache as they are, not repeated for each
group of query heads as Transformers' SDPA does in a compiled model.

`ATTENTION` is its name for `set_attn_implementation`. Longer queries (the prompt) take Transformers' own SDPA.
"""

from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "trl_ext_grouped_decode"
# What some models add to attention, which is not computed here
UNKNOWN = ("softcap", "s_aux", "position_bias", "head_mask")


def _by_sdpa(query, key, value, mask, scale):
    batch, heads, _, dim = query.shape
    grouped = query.reshape(batch, key.shape[1], heads // key.shape[1], dim)
    output = F.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scale)
    return output.reshape(batch, 1, heads, dim)


@torch.library.custom_op("trl_ext::grouped_decode", mutates_args=())
def grouped_decode(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention of one token, `(B, 1, H, D)`, in which the groups of query heads become the length of the query.

    Opaque to the compiler: a Triton kernel on CUDA, which skips blocks of the cache that are masked, so that its
    traffic follows the tokens so far; SDPA elsewhere.

    Args:
        query: `(B, H, 1, D)`.
        key, value: `(B, H / groups, L, D)`.
        mask: `(B, 1, 1, L)`, True where a key is seen; one at least in each row.
    """
    return _by_sdpa(query, key, value, mask, scale)


@grouped_decode.register_kernel("cuda")
def _(query, key, value, mask, scale):
    from .decode_kernel import decode, takes

    if not takes(query, key, value):
        return _by_sdpa(query, key, value, mask, scale)
    return decode(query, key, value, mask, scale)


@grouped_decode.register_fake
def _(query, key, value, mask, scale):
    batch, heads, _, dim = query.shape
    return query.new_empty(batch, 1, heads, dim)


def grouped_decode_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """As Transformers asks an attention: `(B, H, T, D)` in, `(B, T, H, D)` out."""
    batch, _, length, dim = query.shape
    mask = attention_mask
    usual = value.shape[-1] == dim and all(kwargs.get(name) is None for name in UNKNOWN)
    if length != 1 or mask is None or mask.dtype != torch.bool or mask.shape[1] != 1 or not usual:
        return sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **kwargs)
    mask = mask[..., : key.shape[2]].expand(batch, 1, 1, key.shape[2])
    return grouped_decode(query, key, value, mask, dim**-0.5 if scaling is None else scaling), None


AttentionInterface.register(ATTENTION, grouped_decode_forward)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
