"""Leave-one-out and GAE against sums written out by hand."""

import math

import pytest
import torch

from trl_ext.functional import gae, leave_one_out


def test_leave_one_out_is_the_reward_minus_the_mean_of_the_others():
    rewards = torch.tensor([[1.0, 2.0, 6.0], [0.5, 0.5, -1.0]])
    expected = torch.tensor([[1 - 4, 2 - 3.5, 6 - 1.5], [0.75, 0.75, -1.5]])
    torch.testing.assert_close(leave_one_out(rewards), expected, rtol=0, atol=1e-6)


def test_an_unscorable_completion_leaves_its_group_and_gets_no_advantage():
    rewards = torch.tensor([[4.0, math.nan, 0.0], [math.nan, 1.0, 3.0]])
    expected = torch.tensor([[4.0, 0.0, -4.0], [0.0, -2.0, 2.0]])
    torch.testing.assert_close(leave_one_out(rewards), expected, rtol=0, atol=1e-6)


def test_without_a_scorable_sibling_there_is_no_advantage():
    rewards = torch.tensor([[5.0, math.nan, math.nan], [math.nan, math.nan, math.nan]])
    assert torch.equal(leave_one_out(rewards), torch.zeros(2, 3))


def test_leave_one_out_is_the_grpo_advantage_times_g_over_g_minus_1():
    rewards = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(leave_one_out(rewards), 4 / 3 * (rewards - rewards.mean(1, keepdim=True)))


def test_rows_sum_to_zero_also_with_holes_and_far_from_zero():
    rewards = 100 + torch.randn(50, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rewards[::3, 2], rewards[::5, 4] = math.nan, math.nan
    advantages = leave_one_out(rewards)
    torch.testing.assert_close(advantages.sum(1), torch.zeros(50, dtype=torch.float64), rtol=0, atol=1e-10)
    assert advantages[~rewards.isnan()].abs().min() > 0


def test_one_generation_a_prompt_is_an_error_that_names_the_option():
    with pytest.raises(ValueError, match="num_generations"):
        leave_one_out(torch.zeros(3, 1))


def advantages_written_out(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """A_t = sum_k (gamma lam)^k delta_{t+k}, on one row without holes."""
    values = [*values, 0.0]
    deltas = [r + gamma * values[t + 1] - values[t] for t, r in enumerate(rewards)]
    return [sum((gamma * lam) ** k * d for k, d in enumerate(deltas[t:])) for t in range(len(deltas))]


def example(rows: int = 6, length: int = 9):
    generator = torch.Generator().manual_seed(1)
    rewards, values = torch.randn(2, rows, length, generator=generator, dtype=torch.float64)
    mask = (torch.rand(rows, length, generator=generator) > 0.4).long()
    mask[0], mask[1] = 1, 0  # a full row and an empty one
    return rewards, values, mask


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.8), (1.0, 0.0), (0.0, 0.5), (0.99, 0.95)])
def test_gae_is_the_discounted_sum_of_residuals_over_the_masked_tokens(gamma, lam):
    rewards, values, mask = example()
    advantages, returns = gae(rewards, values, mask, gamma, lam)
    for row in range(6):
        kept = mask[row].bool()
        expected = torch.tensor(
            advantages_written_out(rewards[row][kept].tolist(), values[row][kept].tolist(), gamma, lam),
            dtype=torch.float64,
        )
        torch.testing.assert_close(advantages[row][kept], expected, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(returns[row][kept], expected + values[row][kept], rtol=1e-10, atol=1e-10)
        assert not advantages[row][~kept].any() and not returns[row][~kept].any()


def test_what_stands_in_a_hole_changes_nothing():
    rewards, values, mask = example()
    hole = mask == 0
    expected = gae(rewards, values, mask, 0.9, 0.8)
    for got, want in zip(gae(rewards + 7 * hole, values - 3 * hole, mask, 0.9, 0.8), expected, strict=True):
        assert torch.equal(got, want)


def test_with_lambda_1_the_return_is_the_discounted_reward_to_come_whatever_the_values():
    rewards, values, _ = example()
    _, returns = gae(rewards, values, torch.ones_like(rewards), 0.9, 1.0)
    expected = torch.stack([sum(0.9**k * rewards[:, t + k] for k in range(9 - t)) for t in range(9)], 1)
    torch.testing.assert_close(returns, expected, rtol=1e-10, atol=1e-10)
