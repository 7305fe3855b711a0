"""KL estimators: their expectation over the policy's tokens has a closed form."""

import math

import pytest
import torch

from trl_ext.functional import kl_estimate

POLICY, REFERENCE = (0.7, 0.2, 0.1), (0.3, 0.3, 0.4)
LOG_RATIOS = [math.log(p / q) for p, q in zip(POLICY, REFERENCE, strict=True)]


@pytest.mark.parametrize(
    ("estimator", "expectation"),
    [
        ("k1", sum(p * d for p, d in zip(POLICY, LOG_RATIOS, strict=True))),
        ("k2", sum(p * d**2 / 2 for p, d in zip(POLICY, LOG_RATIOS, strict=True))),
        ("k3", sum(p * d for p, d in zip(POLICY, LOG_RATIOS, strict=True))),
    ],
)
def test_expectation_over_the_policy(estimator, expectation):
    policy, reference = torch.tensor(POLICY).log(), torch.tensor(REFERENCE).log()
    got = (policy.exp() * kl_estimate(policy, reference, estimator)).sum().item()
    assert got == pytest.approx(expectation, abs=1e-6)


@pytest.mark.parametrize(("estimator", "value"), [("k1", 2.0), ("k2", 2.0), ("k3", math.exp(-2) + 1)])
def test_value_where_the_policy_is_two_nats_above(estimator, value):
    assert kl_estimate(torch.tensor(-1.0), torch.tensor(-3.0), estimator).item() == pytest.approx(value)


def test_k3_is_never_negative_and_k1_is_both():
    policy, reference = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0))
    assert (kl_estimate(policy, reference, "k3") >= 0).all()
    assert kl_estimate(policy, reference, "k1").sign().unique().tolist() == [-1.0, 1.0]


def test_unknown_estimator_lists_those_that_exist():
    with pytest.raises(ValueError, match="k1, k2, k3"):
        kl_estimate(torch.zeros(1), torch.zeros(1), "k4")
