"""Groups of weights: which tensor belongs where, and their statistics as of one long vector."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from trl_ext.checkpoints.groups import QUANTILES, by_group, by_layer, weighted_quantiles, whole
from trl_ext.checkpoints.measuring import measure
from trl_ext.checkpoints.naming import group_of, layer_of, weight_name
from trl_ext.checkpoints.reader import open_checkpoint


@pytest.mark.parametrize(("name", "group", "layer"), [
    ("model.embed_tokens.weight", "embedding", None), ("transformer.wte.weight", "embedding", None),
    ("model.layers.12.self_attn.q_proj.weight", "attention", 12),
    ("transformer.h.3.attn.c_attn.weight", "attention", 3),
    ("model.layers.0.mlp.experts.7.down_proj.weight", "MLP", 0), ("transformer.h.3.mlp.c_proj.weight", "MLP", 3),
    ("model.layers.1.input_layernorm.weight", "norm", 1), ("model.norm.weight", "norm", None),
    ("lm_head.weight", "head", None), ("score.weight", "value head", None),
    ("v_head.summary.weight", "value head", None),
    ("base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight", "LoRA A", 2),
    ("base_model.model.model.layers.2.self_attn.q_proj.lora_B.default.weight", "LoRA B", 2),
    ("base_model.model.model.embed_tokens.lora_embedding_B", "LoRA B", None),
    ("base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector", "adapter", 0),
    ("encoder.block.4.layer.0.SelfAttention.q.weight", "attention", 4), ("something", "other", None),
])  # fmt: skip
def test_the_group_and_layer_of_a_name(name, group, layer):
    assert (group_of(name), layer_of(name)) == (group, layer)


def test_a_weights_own_name_has_no_wrapper_in_it():
    assert weight_name("base_model.model.model.layers.0.q_proj.base_layer.weight") == "model.layers.0.q_proj.weight"
    assert weight_name("model.model.norm.weight") == "model.norm.weight"
    assert weight_name("mp_rank_00.module.lm_head.weight") == "lm_head.weight"
    assert weight_name("module._orig_mod.model.norm.weight") == "model.norm.weight"


@pytest.fixture(scope="module")
def some(tmp_path_factory):
    folder = tmp_path_factory.mktemp("groups")
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"model.layers.{i}.{name}.weight": torch.randn(rows, 100, generator=generator) * scale + shift
        for i in range(3)
        for name, rows, scale, shift in (("self_attn.q_proj", 200, 0.02, 0.0), ("mlp.up_proj", 50, 1.0, 0.5))
    }
    tensors["model.norm.weight"] = torch.ones(100)
    tensors["model.layers.1.mlp.up_proj.weight"][0, 0] = float("inf")
    save_file(tensors, folder / "model.safetensors")
    return measure(open_checkpoint(folder)), load_file(folder / "model.safetensors")


def assert_is_of(group, tensors):
    values = np.concatenate([tensor.double().numpy().ravel() for tensor in tensors])
    finite = values[np.isfinite(values)]
    assert (group.tensors, group.elements, group.infinite) == (len(tensors), len(values), np.isinf(values).sum())
    assert (group.mean, group.std) == pytest.approx((finite.mean(), finite.std()), rel=1e-4)
    assert (group.abs_max, group.norm) == pytest.approx((np.abs(finite).max(), np.linalg.norm(finite)), rel=1e-5)
    ranks = np.searchsorted(np.sort(finite), group.quantiles) / len(finite)
    assert ranks == pytest.approx(QUANTILES, abs=0.02)


def test_statistics_of_a_group_are_numpys(some):
    measured, loaded = some
    groups = {group.name: group for group in by_group(measured)}
    assert list(groups) == ["attention", "MLP", "norm"]
    assert_is_of(groups["attention"], [value for name, value in loaded.items() if "self_attn" in name])
    assert_is_of(groups["MLP"], [value for name, value in loaded.items() if "mlp" in name])


def test_statistics_of_a_layer_and_of_the_whole_are_numpys(some):
    measured, loaded = some
    layers = by_layer(measured)
    assert [layer.name for layer in layers] == ["0", "1", "2"]
    assert_is_of(layers[1], [value for name, value in loaded.items() if "layers.1." in name])
    assert whole(measured).norm == pytest.approx(
        np.sqrt(sum(np.square(v.double().numpy()[np.isfinite(v.numpy())]).sum() for v in loaded.values())), rel=1e-5
    )


def test_quantiles_weigh_a_tensor_by_its_elements(some):
    """The samples are of one size, the tensors are not: half of all lies in the large one."""
    measured, _ = some
    ones = [measured.tensors["model.norm.weight"], measured.tensors["model.layers.0.self_attn.q_proj.weight"]]
    low, high = weighted_quantiles(ones, (0.5, 0.999))
    assert abs(low) < 0.01
    assert high == 1.0
