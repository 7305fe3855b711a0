"""Clipped value loss and explained variance, by hand."""

import math

import pytest
import torch

from trl_ext.functional import clipped_value_loss, explained_variance

# against old values of 0: far outside the clip range and right; inside it; at it; outside and wrong; outside, too far
VALUES = torch.tensor([[1.0, 0.1, 0.0, -1.0, 1.0]])
RETURNS = torch.tensor([[1.0, 1.0, -3.0, 2.0, 0.3]])


def test_clipped_value_loss_is_the_larger_of_the_two():
    loss, clipped = clipped_value_loss(VALUES, torch.zeros(1, 5), RETURNS, 0.2)
    expected = [0.5 * 0.8**2, 0.5 * 0.9**2, 0.5 * 9.0, 0.5 * 9.0, 0.5 * 0.7**2]
    torch.testing.assert_close(loss, torch.tensor([expected]))
    assert clipped.tolist() == [[1.0, 0.0, 0.0, 0.0, 0.0]]


def test_the_clip_range_is_around_the_old_values():
    loss, clipped = clipped_value_loss(torch.tensor([2.0]), torch.tensor([5.0]), torch.tensor([2.0]), 0.5)
    assert loss.item() == pytest.approx(0.5 * 2.5**2) and clipped.item() == 1.0


def test_without_a_clip_range_it_is_half_the_squared_error():
    loss, clipped = clipped_value_loss(VALUES, torch.zeros(1, 5), RETURNS, None)
    torch.testing.assert_close(loss, torch.tensor([[0.0, 0.405, 4.5, 4.5, 0.245]]))
    assert not clipped.any()


def test_a_clipped_value_gets_no_gradient():
    values = VALUES.clone().requires_grad_()
    clipped_value_loss(values, torch.zeros(1, 5), RETURNS, 0.2)[0].sum().backward()
    torch.testing.assert_close(values.grad, torch.tensor([[0.0, -0.9, 3.0, -3.0, 0.7]]))


def test_explained_variance_of_perfect_constant_and_opposite_values():
    returns = torch.tensor([1.0, 2.0, 4.0])
    for values, expected in ((returns, 1.0), (torch.full((3,), 9.0), 0.0), (-returns, -3.0)):
        assert explained_variance((returns - values).var(), returns.var()).item() == pytest.approx(expected, abs=1e-6)


def test_explained_variance_of_constant_returns_is_no_data():
    assert math.isnan(explained_variance(torch.tensor(1.0), torch.tensor(0.0)).item())
