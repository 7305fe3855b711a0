"""What checkpoints/ and CheckpointHealthCallback rest on in PyTorch and Transformers."""

import inspect

import pytest
import torch
from transformers import Trainer

from trl_ext.checkpoints import kernels


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_statistics_of_batch_normalization_are_float32_and_of_the_population(dtype):
    """`kernels._moments`: with running statistics of float32 the result is float32; the variance has no correction."""
    values = (torch.randn(1, 4, 500, generator=torch.Generator().manual_seed(0)) * 0.02 + 1e-3).to(dtype)
    unused = torch.zeros(4)
    mean, variance = torch.batch_norm_update_stats(values, unused, unused, 0.0)
    assert mean.dtype == variance.dtype == torch.float32
    exact = values.double()[0]
    assert torch.allclose(mean.double(), exact.mean(1), atol=1e-7)
    assert torch.allclose(variance.double(), exact.var(1, unbiased=False), rtol=1e-4)


def test_the_kernels_are_compiled_or_give_the_same_without():
    """TorchScript is deprecated; where it is gone, judging is slower on several cores, and nothing else."""
    values = torch.randn(10_000).to(torch.bfloat16)
    one = kernels.moments(values.clone(), values.clone().view(torch.int16), 0x7FFF, 4096)
    two = kernels._moments(values.clone(), values.clone().view(torch.int16), 0x7FFF, 4096)
    for compiled, plain in zip(one, two, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(compiled, plain, strict=True))


def test_the_trainer_calls_on_train_begin_from_where_the_checkpoint_is_a_local():
    """`_frames.resumed_from` reads `resume_from_checkpoint` there."""
    assert "resume_from_checkpoint" in inspect.signature(Trainer.train).parameters
    assert "resume_from_checkpoint" in inspect.signature(Trainer._inner_training_loop).parameters
