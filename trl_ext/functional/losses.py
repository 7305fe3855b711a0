"""The value function's loss, and how much of the returns it explains."""

import torch


def clipped_value_loss(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, cliprange: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Per-token 0.5 * max((V - R)^2, (clip(V, V_old +- cliprange) - R)^2); without `cliprange`, 0.5 * (V - R)^2.

    Source: https://huggingface.co/papers/2005.12729 (value clipping), and the PPO that TRL shipped until 1.12.

    Args:
        values, old_values, returns (`torch.Tensor` of one shape).
    Returns:
        the loss, and 1.0 where the clipped term was the larger one; both of that shape.
    """
    assert values.shape == old_values.shape == returns.shape
    loss = (values - returns).square()
    if cliprange is None:
        return loss / 2, torch.zeros_like(loss)
    clipped = torch.clamp(values, old_values - cliprange, old_values + cliprange)
    clipped_loss = (clipped - returns).square()
    return torch.max(loss, clipped_loss) / 2, (clipped_loss > loss).to(loss.dtype)


def explained_variance(residual_variance: torch.Tensor, returns_variance: torch.Tensor) -> torch.Tensor:
    """1 - Var(returns - values) / Var(returns): 1 is perfect, 0 no better than a constant, below 0 worse than one.

    NaN (no data) when the returns are constant.
    """
    ratio = residual_variance / returns_variance
    return torch.where(returns_variance > 0, 1 - ratio, torch.full_like(ratio, torch.nan))
