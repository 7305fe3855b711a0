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


def against_the_batch(rewards: torch.Tensor) -> torch.Tensor:
    """Leave-one-out over a whole batch: A_i = r_i - mean_{j != i} r_j, whatever prompt j answers.

    The baseline of a completion without a sibling: it does not depend on the completion, so the gradient stays
    unbiased; how hard its prompt is stays in the advantage.

    Args:
        rewards (`torch.Tensor` of any shape): NaN marks an unscorable completion.
    Returns:
        `torch.Tensor` of the same shape; unscorable completions, and one without any other, get 0.
    """
    return leave_one_out(rewards.reshape(1, -1)).view_as(rewards) if rewards.numel() > 1 else torch.zeros_like(rewards)


def against_the_mean(rewards: torch.Tensor) -> torch.Tensor:
    """A_i = r_i - mean_j r_j over the group, itself included: GRPO's without its standard deviation, which is
    (G - 1) / G of the leave-one-out advantage.

    Args:
        rewards (`torch.Tensor` of shape `(num_prompts, num_generations)`): NaN marks an unscorable completion.
    Returns:
        `torch.Tensor` of the same shape; unscorable completions get 0.
    """
    return (rewards - rewards.nanmean(1, keepdim=True)).nan_to_num(0.0)


def scaled_by_group(advantages: torch.Tensor, rewards: torch.Tensor) -> torch.Tensor:
    """Advantages by the standard deviation of the rewards of their own group, itself included (unbiased, plus 1e-4 as
    in GRPO); groups of fewer than two scorable completions stay as they are.

    Never by the deviation of the others alone: that weighs each completion by how alike its siblings are.

    Args:
        advantages, rewards (`torch.Tensor` of shape `(num_prompts, num_generations)`): NaN marks an unscorable reward.
    """
    assert advantages.shape == rewards.shape and rewards.dim() == 2, (advantages.shape, rewards.shape)
    count = (~rewards.isnan()).sum(1, keepdim=True)
    squares = (rewards - rewards.nanmean(1, keepdim=True)).square().nansum(1, keepdim=True)
    std = (squares / (count - 1).clamp(min=1)).sqrt()
    return torch.where(count > 1, advantages / (std + 1e-4), advantages)


def gae_over_turns(
    rewards: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    gamma: float,
    lam: float,
    spoken: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Generalised advantage estimation whose steps are turns: runs of tokens that the policy says before its
    environment answers.

    The value of a turn is that of the state before its first token, its reward the sum over its tokens; every token of
    a turn gets the turn's advantage. `gamma` and `lam` are per turn.

    Args:
        rewards, values, mask (`torch.Tensor` of shape `(B, T)`).
        spoken (`torch.Tensor` of shape `(B, T)`, *optional*): 1 on all that the policy said, whose runs are the turns;
            `mask` may be 1 on part of a turn alone. Defaults to `mask`.
    Returns:
        advantages `(B, T)`, 0 where mask is 0; returns and their mask `(B, T)`, on the first masked token of each turn
        alone: the states whose value is learned.
    """
    assert rewards.dim() == 2 and rewards.shape == values.shape == mask.shape, (rewards.shape, values.shape)
    pad = torch.nn.functional.pad
    inside, said = mask.bool(), (mask if spoken is None else spoken).bool()
    number = (said & ~pad(said, (1, 0))[:, :-1]).cumsum(1)  # of each token's turn, from 1; what is outside is masked
    before = pad((number * inside).cummax(1).values, (1, 0))[:, :-1]
    starts = inside & (number > before)
    turn = (number - 1).clamp(min=0)
    turns = max(int(number.max()), 1)
    empty = torch.zeros(len(rewards), turns, dtype=values.dtype, device=values.device)
    of_turns = empty.scatter_add(1, turn, (rewards * mask).to(values.dtype))
    at_starts = empty.scatter_add(1, turn, values * starts)
    exists = empty.scatter_add(1, turn, starts.to(values.dtype))
    advantages, returns = gae(of_turns, at_starts, exists, gamma, lam)
    return advantages.gather(1, turn) * mask, returns.gather(1, turn) * starts, starts.to(mask.dtype)


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
