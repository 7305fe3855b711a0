"""Means and variances over the tokens of every process, so that two processes log and whiten as one would."""

import torch


def global_means(accelerator, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
    """Weighted means over all processes, in one reduction; NaN (no data) where all weights are 0.

    Args:
        pairs: (x, weights) of one shape each.
    """
    totals = torch.stack([torch.stack([(x * w).sum().float(), w.sum().float()]) for x, w in pairs])
    totals = accelerator.reduce(totals, reduction="sum")
    return (totals[:, 0] / totals[:, 1]).tolist()


def global_moments(accelerator, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and unbiased variance of `x` where `mask` is 1, over all processes; scalars on the device."""
    total = accelerator.reduce(torch.stack([(x * mask).sum(), mask.sum().to(x.dtype)]), reduction="sum")
    count = total[1].clamp(min=1)
    mean = total[0] / count
    squares = accelerator.reduce(((x - mean).square() * mask).sum(), reduction="sum")
    return mean, squares / (count - 1).clamp(min=1)
