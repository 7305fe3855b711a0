"""How much better than expected: leave-one-out over completions, GAE over tokens."""

import torch


def leave_one_out(rewards: torch.Tensor) -> torch.Tensor:
    """Leave-one-out advantages: A_i = r_i - mean_{j != i} r_j.

    Paper: https://huggingface.co/papers/2402.14740

    Args:
        rewards (`torch.Tensor` of shape `(num_prompts, num_generations)`): NaN marks an unscorable completion.
    Returns:
        `torch.Tensor` of the same shape; the entries of a row sum to 0. Unscorable completions, and those without a
        scorable sibling, get 0.
    Raises:
        ValueError: fewer than two generations.
    """
    assert rewards.dim() == 2, rewards.shape
    if rewards.size(1) < 2:
        raise ValueError("Leave-one-out needs at least two generations per prompt: raise `num_generations`.")
    scorable = ~rewards.isnan()
    others_sum = rewards.nansum(1, keepdim=True) - rewards
    others_count = scorable.sum(1, keepdim=True) - 1
    advantages = rewards - others_sum / others_count.clamp(min=1)
    return torch.where(scorable & (others_count > 0), advantages, torch.zeros_like(rewards))


def gae(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Generalised advantage estimation over the masked tokens; a token with mask 0 is skipped, it is not a step.

    delta_t = r_t + gamma * V_{t+1} - V_t,  A_t = delta_t + gamma * lam * A_{t+1}, where t+1 is the next token with
    mask 1 and both are 0 after the last one. Paper: https://huggingface.co/papers/1506.02438

    Args:
        rewards, values, mask (`torch.Tensor` of shape `(B, T)`).
        gamma, lam (`float`): discount and lambda, per token.
    Returns:
        advantages and returns (advantages + values), both `(B, T)` and 0 where mask is 0.
    """
    assert rewards.dim() == 2 and rewards.shape == values.shape == mask.shape, (rewards.shape, values.shape)
    advantages = torch.zeros_like(values)
    next_value, next_advantage = torch.zeros_like(values[:, 0]), torch.zeros_like(values[:, 0])
    for t in reversed(range(values.size(1))):
        keep = mask[:, t].bool()
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        next_advantage = torch.where(keep, delta + gamma * lam * next_advantage, next_advantage)
        next_value = torch.where(keep, values[:, t], next_value)
        advantages[:, t] = torch.where(keep, next_advantage, advantages[:, t])
    return advantages, (advantages + values) * mask
