"""Means, whitening and positions over the tokens that count."""

import torch


def masked_mean(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean of `x` where `mask` is 1; 0 when the mask is empty. Both (B, T), or both (B,); returns a scalar."""
    assert x.shape == mask.shape, (x.shape, mask.shape)
    return (x * mask).sum() / mask.sum().clamp(min=1)


def masked_whiten(
    x: torch.Tensor, mask: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor, shift_mean: bool = True
) -> torch.Tensor:
    """(x - mean) / sqrt(variance + 1e-8) where `mask` is 1, else 0; with `shift_mean=False` the mean is added back.

    The formula of the PPO that TRL shipped until 1.12 (`masked_whiten`). The moments are arguments because only the
    caller can take them over every process; variance is the unbiased one.

    Args:
        x, mask (`torch.Tensor` of shape `(B, T)` or `(B,)`).
        mean, variance (`torch.Tensor`, scalars).
    """
    assert x.shape == mask.shape, (x.shape, mask.shape)
    whitened = (x - mean) * torch.rsqrt(variance + 1e-8)
    return (whitened if shift_mean else whitened + mean) * mask


def at_last_token(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Spread `scores` (B,) to (B, T): the whole score on the last token with mask 1, 0 elsewhere."""
    assert scores.dim() == 1 and mask.dim() == 2 and scores.size(0) == mask.size(0), (scores.shape, mask.shape)
    is_last = (mask.cumsum(1) == mask.sum(1, keepdim=True)) & mask.bool()
    return scores.unsqueeze(1) * is_last


def with_terminal_state(mask: torch.Tensor, completion_mask: torch.Tensor) -> torch.Tensor:
    """`mask` plus the first padding position of each completion: the state after its last token.

    Stock PPO values that state and puts the score there (its `padding_mask_p1`). A completion that fills the row has no
    such position and stays as it is; so does one whose mask is empty.

    Args:
        mask, completion_mask (`torch.Tensor` of shape `(B, T)`): the second without holes, 1 for the first tokens.
    """
    assert mask.shape == completion_mask.shape and mask.dim() == 2, (mask.shape, completion_mask.shape)
    positions = torch.arange(mask.size(1), device=mask.device)
    is_terminal = positions == completion_mask.sum(1, keepdim=True)
    return torch.where(is_terminal & mask.any(1, keepdim=True), torch.ones_like(mask), mask)


def learning_mask(output: dict[str, torch.Tensor]) -> torch.Tensor:
    """`(B, T)`, 1 on the tokens of a scored batch that learn: of the completion, and the policy's own where TRL's
    `tool_mask` says which these are."""
    mask = output["completion_mask"]
    return mask * output["tool_mask"] if "tool_mask" in output else mask
