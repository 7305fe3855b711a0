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


def test_transformers_tells_what_a_model_has_and_how_it_is_stored():
    """`architecture.py` builds the model without memory and asks these."""
    from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, rename_source_key

    assert list(inspect.signature(rename_source_key).parameters)[:5] == [
        "source_key", "weight_renamings", "weight_converters", "base_model_prefix", "meta_state_dict",
    ]  # fmt: skip
    for attribute in (
        "_keys_to_ignore_on_load_missing",
        "_keys_to_ignore_on_load_unexpected",
        "_keys_to_ignore_on_save",
    ):
        assert hasattr(PreTrainedModel, attribute)
    with torch.device("meta"):
        config = Qwen2Config(num_hidden_layers=1, hidden_size=8, num_attention_heads=2, tie_word_embeddings=True)
        model = Qwen2ForCausalLM(config)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert model.all_tied_weights_keys == {"lm_head.weight": "model.embed_tokens.weight"}
    assert not any(isinstance(one, WeightConverter) for one in get_model_conversion_mapping(model))
    known = dict.fromkeys(model.state_dict(), True)
    assert rename_source_key("embed_tokens.weight", [], [], "model", known)[0] == "model.embed_tokens.weight"


def test_what_reads_a_checkpoint_has_the_names_we_know():
    """`trainers/failures.py` tells by them an error of loading from others."""
    from accelerate.optimizer import AcceleratedOptimizer
    from transformers import TrainerState

    from trl_ext.trainers.failures import LOADERS, STEPPER

    assert all(callable(getattr(Trainer, name)) for name in LOADERS - {"load_from_json"})
    assert callable(TrainerState.load_from_json)
    assert AcceleratedOptimizer.step.__module__ == STEPPER


def test_the_trainer_calls_on_train_begin_from_where_the_checkpoint_is_a_local():
    """`_frames.resumed_from` reads `resume_from_checkpoint` there."""
    assert "resume_from_checkpoint" in inspect.signature(Trainer.train).parameters
    assert "resume_from_checkpoint" in inspect.signature(Trainer._inner_training_loop).parameters
