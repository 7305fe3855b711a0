"""`token_log_probs` has its own forward and backward: both against torch's composed functions, in float64."""

import pytest
import torch

from trl_ext.functional import token_log_probs


def example(scale: float = 2.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)
    return logits.to(dtype), torch.randint(0, 5, (2, 3), generator=generator)


def composed(logits, targets, temperature=1.0):
    log_probs = (logits / temperature).log_softmax(-1)
    logps = log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return logps, -(log_probs.exp() * log_probs).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 3.0])
def test_values_are_those_of_log_softmax(temperature):
    logits, targets = example()
    expected = composed(logits, targets, temperature)
    got = token_log_probs(logits.clone(), targets, temperature)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("weight", [(1.0, 0.0), (0.0, 1.0), (0.8, -1.7)], ids=["logps", "entropies", "both"])
def test_gradient_is_the_numerical_one(weight):
    logits, targets = example()
    per_token = torch.randn(2, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)

    def total(z):
        outputs = token_log_probs(z * 1.0, targets, 0.7)
        return sum(w * (per_token * x).sum() for w, x in zip(weight, outputs, strict=True) if w)

    leaf = logits.clone().requires_grad_()
    total(leaf).backward()
    numerical = torch.empty_like(logits)
    for index in range(logits.numel()):  # not `gradcheck`: it runs the backward of one graph several times
        shift = torch.zeros_like(logits)
        shift.view(-1)[index] = 1e-5
        numerical.view(-1)[index] = (total(logits + shift) - total(logits - shift)) / 2e-5
    torch.testing.assert_close(leaf.grad, numerical, rtol=1e-6, atol=1e-8)


def test_a_second_backward_is_an_error_and_never_a_wrong_gradient():
    logits, targets = example()
    logps, _ = token_log_probs(logits.requires_grad_() * 1.0, targets)
    logps.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logps.sum().backward()


def test_gradient_of_a_weighted_sum_of_both_is_the_composed_one():
    logits, targets = example()
    weights = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    gradients = []
    for function in (token_log_probs, composed):
        leaf = logits.clone().requires_grad_()
        logps, entropies = function(leaf * 1.0, targets, 1.3)
        (weights[0] * logps + weights[1] * entropies).sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_stay_finite_forward_and_backward(dtype):
    logits = torch.tensor([[[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4], [1e4, 1e4, -1e4]]], dtype=dtype).requires_grad_()
    logps, entropies = token_log_probs(logits * 1.0, torch.tensor([[0, 1, 2]]))
    (logps.sum() + entropies.sum()).backward()
    log_3, log_2 = torch.tensor([3.0, 2.0], dtype=dtype).log()
    torch.testing.assert_close(logps, torch.tensor([[0.0, -log_3, -2e4]], dtype=dtype), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(entropies, torch.tensor([[0.0, log_3, log_2]], dtype=dtype), rtol=1e-4, atol=2e-3)
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_give_float32_results_of_the_same_numbers(dtype):
    logits, targets = example(dtype=dtype)
    expected = composed(logits.double(), targets, 0.7)
    leaf = logits.clone().requires_grad_()
    got = token_log_probs(leaf * 1.0, targets, 0.7)
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)
    got[0].sum().backward()
    assert leaf.grad.dtype == dtype and leaf.grad.any()
