"""Leave-one-out and GAE against sums written out by hand."""

import math

import pytest
import torch

from trl_ext.functional import (
    against_the_batch,
    against_the_mean,
    gae,
    gae_over_turns,
    leave_one_out,
    scaled_by_group,
)


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


def test_against_the_batch_leaves_out_each_completion_whatever_its_prompt():
    rewards = torch.tensor([[1.0, math.nan], [4.0, 7.0]])
    expected = torch.tensor([[1 - (4 + 7) / 2, 0.0], [4 - (1 + 7) / 2, 7 - (1 + 4) / 2]])
    torch.testing.assert_close(against_the_batch(rewards), expected)
    assert against_the_batch(torch.tensor([[3.0]])).item() == 0.0


def test_against_the_mean_is_leave_one_out_times_g_minus_1_over_g():
    rewards = torch.randn(5, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    torch.testing.assert_close(against_the_mean(rewards), leave_one_out(rewards) * 3 / 4)
    rewards[0, 1] = math.nan
    got = against_the_mean(rewards)
    assert got[0, 1] == 0 and got[0].sum().abs() < 1e-12


def test_two_completions_make_rloo_half_the_difference_doubled():
    """With k = 2 leave-one-out is the difference of the two, and the mean's is half of it."""
    rewards = torch.tensor([[3.0, 1.0]])
    assert leave_one_out(rewards).tolist() == [[2.0, -2.0]] and against_the_mean(rewards).tolist() == [[1.0, -1.0]]


def test_scaling_by_group_divides_by_the_unbiased_deviation_of_the_whole_group():
    rewards = torch.tensor([[1.0, 2.0, 6.0], [5.0, 5.0, 5.0], [1.0, math.nan, 3.0], [2.0, math.nan, math.nan]])
    advantages = torch.ones_like(rewards)
    got = scaled_by_group(advantages, rewards)
    std = torch.tensor([[1.0, 2.0, 6.0]]).std().item()
    torch.testing.assert_close(got[0], advantages[0] / (std + 1e-4))
    torch.testing.assert_close(got[2], advantages[2] / (2**0.5 + 1e-4))
    assert got[3].tolist() == [1.0, 1.0, 1.0]  # of one there is no deviation


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.8), (0.0, 0.5)])
def test_gae_over_turns_is_gae_of_one_step_a_turn(gamma, lam):
    """Turns of 2, 1 and 3 tokens between answers, in rows that begin and end with either."""
    mask = torch.tensor([[1, 1, 0, 1, 0, 0, 1, 1, 1], [0, 1, 1, 0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0, 0]])
    generator = torch.Generator().manual_seed(3)
    rewards, values = torch.randn(2, 3, 9, generator=generator, dtype=torch.float64)
    advantages, returns, starts = gae_over_turns(rewards, values, mask, gamma, lam)
    for row, turns in enumerate([[(0, 2), (3, 4), (6, 9)], [(1, 3), (4, 5)], []]):
        steps = [rewards[row, a:b].sum().item() for a, b in turns]
        at = [values[row, a].item() for a, _ in turns]
        expected = advantages_written_out(steps, at, gamma, lam)
        assert starts[row].nonzero().flatten().tolist() == [a for a, _ in turns]
        for (a, b), advantage, value in zip(turns, expected, at, strict=True):
            torch.testing.assert_close(advantages[row, a:b], torch.full((b - a,), advantage, dtype=torch.float64))
            assert returns[row, a].item() == pytest.approx(advantage + value)
        assert not advantages[row][mask[row] == 0].any() and not returns[row][starts[row] == 0].any()


def test_one_turn_with_lambda_1_has_the_reward_less_the_first_value():
    mask = torch.ones(1, 4)
    advantages, _, _ = gae_over_turns(torch.ones(1, 4), torch.tensor([[0.5, 9.0, 9.0, 9.0]]), mask, 1.0, 1.0)
    assert advantages.tolist() == [[3.5, 3.5, 3.5, 3.5]]


def test_a_turn_of_which_parts_are_masked_is_one_step():
    """Two turns; of the first its second token is no action: the advantages are those of two steps, not of three."""
    spoken = torch.tensor([[1, 1, 1, 0, 1]])
    mask = torch.tensor([[1, 0, 1, 0, 1]])
    rewards, values = torch.tensor([[1.0, 9.0, 2.0, 9.0, 6.0]]), torch.tensor([[0.5, 7.0, 7.0, 7.0, 0.25]])
    advantages, returns, starts = gae_over_turns(rewards, values, mask, gamma=0.5, lam=1.0, spoken=spoken)
    second = 6.0 - 0.25
    first = (1.0 + 2.0) + 0.5 * 0.25 - 0.5 + 0.5 * second
    torch.testing.assert_close(advantages, torch.tensor([[first, 0.0, first, 0.0, second]]))
    torch.testing.assert_close(returns, torch.tensor([[first + 0.5, 0.0, 0.0, 0.0, 6.0]]))
    assert starts.tolist() == [[1, 0, 0, 0, 1]]
