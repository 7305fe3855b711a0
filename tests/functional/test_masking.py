"""Means, whitening and positions over masked tokens, against numpy and by hand."""

import numpy as np
import pytest
import torch

from trl_ext.functional import at_last_token, masked_mean, masked_whiten, with_terminal_state


@pytest.fixture
def tokens():
    generator = torch.Generator().manual_seed(3)
    x = 5 + 2 * torch.randn(4, 7, generator=generator, dtype=torch.float64)
    return x, (torch.rand(4, 7, generator=generator) > 0.5).long()


def test_masked_mean_is_the_mean_of_the_kept_entries(tokens):
    x, mask = tokens
    assert masked_mean(x, mask).item() == pytest.approx(np.mean(x.numpy()[mask.numpy() == 1]))


def test_masked_mean_of_an_empty_mask_is_0():
    assert masked_mean(torch.ones(2, 3), torch.zeros(2, 3)).item() == 0.0


@pytest.mark.parametrize("shift_mean", [True, False])
def test_whitened_entries_have_variance_1_and_mean_0_or_their_own(tokens, shift_mean):
    x, mask = tokens
    kept = x.numpy()[mask.numpy() == 1]
    moments = torch.tensor(kept.mean()), torch.tensor(kept.var(ddof=1))
    whitened = masked_whiten(x, mask, *moments, shift_mean=shift_mean)
    got = whitened.numpy()[mask.numpy() == 1]
    expected = (kept - kept.mean()) / kept.std(ddof=1) + (0 if shift_mean else kept.mean())
    np.testing.assert_allclose(got, expected, rtol=1e-7)
    assert not whitened[mask == 0].any()
    assert got.std(ddof=1) == pytest.approx(1, abs=1e-6)
    assert got.mean() == pytest.approx(0 if shift_mean else kept.mean(), abs=1e-9)


def test_whitening_constant_entries_gives_0_and_not_nan():
    x, mask = torch.full((2, 3), 4.0), torch.ones(2, 3)
    assert torch.equal(masked_whiten(x, mask, torch.tensor(4.0), torch.tensor(0.0)), torch.zeros(2, 3))


def test_score_lands_on_the_last_kept_token_and_nowhere_in_an_empty_row():
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    expected = torch.tensor([[0.0, 5, 0, 0], [0, 0, 7, 0], [0, 0, 0, 0], [0, 0, 0, -1]])
    assert torch.equal(at_last_token(torch.tensor([5.0, 7.0, 9.0, -1.0]), mask), expected)


def test_terminal_state_is_the_first_padding_position():
    completion = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0]])
    expected = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]])
    assert torch.equal(with_terminal_state(completion, completion), expected)


def test_terminal_state_follows_the_completion_and_keeps_the_holes():
    completion = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    mask = torch.tensor([[1, 0, 0, 0, 0], [1, 0, 0, 1, 0]])
    expected = torch.tensor([[1, 0, 0, 1, 0], [1, 0, 0, 1, 0]])
    assert torch.equal(with_terminal_state(mask, completion), expected)


def test_a_completion_that_does_not_learn_has_no_terminal_state():
    completion = torch.tensor([[1, 1, 0, 0]])
    assert not with_terminal_state(torch.zeros_like(completion), completion).any()
