"""Estimators of the KL divergence from tokens that the policy sampled."""

import torch

KL_ESTIMATORS = ("k1", "k2", "k3")


def kl_estimate(per_token_logps: torch.Tensor, ref_per_token_logps: torch.Tensor, estimator: str) -> torch.Tensor:
    """Per-token estimate of KL(policy || reference), in nats.

    With d = ref - policy: k1 = -d (unbiased, noisy), k2 = d**2 / 2 (biased, low variance),
    k3 = exp(d) - 1 - d (unbiased, never negative). Source: http://joschu.net/blog/kl-approx.html

    Args:
        per_token_logps, ref_per_token_logps (`torch.Tensor` of one shape).
        estimator (`str`): "k1", "k2" or "k3".
    Raises:
        ValueError: an estimator of another name.
    """
    assert per_token_logps.shape == ref_per_token_logps.shape
    diff = ref_per_token_logps - per_token_logps
    if estimator == "k1":
        return -diff
    if estimator == "k2":
        return diff.square() / 2
    if estimator == "k3":
        return diff.exp() - 1 - diff
    raise ValueError(f"Unknown kl_estimator {estimator!r}: use one of {', '.join(KL_ESTIMATORS)}.")
