"""What an adapter adds, against multiplying it out."""

from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from trl_ext import tiny
from trl_ext.checkpoints.lora import effective_rank, singular_values_of_product
from trl_ext.checkpoints.measuring import measure
from trl_ext.checkpoints.reader import open_checkpoint


@pytest.fixture(scope="module")
def tiny_path():
    return Path(tiny.__file__).parent


def entropy_rank(values):
    shares = values / values.sum()
    shares = shares[shares > 0]
    return np.exp(-(shares * np.log(shares)).sum())


@pytest.mark.parametrize(("rows", "rank", "columns"), [(30, 4, 50), (50, 8, 6), (3, 8, 5), (64, 1, 64)])
def test_singular_values_are_those_of_the_product(rows, rank, columns):
    generator = torch.Generator().manual_seed(0)
    up = torch.randn(rows, rank, generator=generator, dtype=torch.float64)
    down = torch.randn(rank, columns, generator=generator, dtype=torch.float64)
    expected = np.linalg.svd((up @ down).numpy(), compute_uv=False)
    found = np.zeros(len(expected))
    values = singular_values_of_product(up, down).numpy()
    found[: len(values)] = values[: len(expected)]
    assert found == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(("values", "expected"), [([1, 1, 1, 1], 4.0), ([5, 0, 0], 1.0), ([0, 0], 0.0), ([3, 1], None)])
def test_effective_rank_of_known_spectra(values, expected):
    found = effective_rank(torch.tensor(values, dtype=torch.float64))
    assert found == pytest.approx(entropy_rank(np.array(values, dtype=float)) if expected is None else expected)


@pytest.mark.parametrize("options", [
    {"r": 8, "lora_alpha": 4}, {"r": 8, "lora_alpha": 16, "use_rslora": True},
    {"r": 4, "rank_pattern": {"v_proj": 2}, "alpha_pattern": {"v_proj": 32}, "lora_alpha": 8},
])  # fmt: skip
def test_an_adapter_adds_what_peft_merges(options, tiny_path, tmp_path):
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(tiny_path)
    before = {name: value.clone() for name, value in base.state_dict().items()}
    model = get_peft_model(base, LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False, **options))
    model.save_pretrained(tmp_path)
    after = model.merge_and_unload().state_dict()
    measured = measure(open_checkpoint(tmp_path), open_checkpoint(tiny_path))
    assert len(measured.lora) == 8 and not measured.alone
    for update in measured.lora:
        added = (after[update.target] - before[update.target]).double().numpy()
        assert update.norm == pytest.approx(np.linalg.norm(added), rel=1e-4)
        assert update.relative == pytest.approx(
            np.linalg.norm(added) / before[update.target].double().norm().item(), rel=1e-4
        )
        values = np.linalg.svd(added, compute_uv=False)
        assert update.effective_rank == pytest.approx(entropy_rank(values[: update.rank]), rel=1e-4)


def test_an_embedding_with_lora_has_its_pair(tiny_path, tmp_path):
    base = AutoModelForCausalLM.from_pretrained(tiny_path)
    get_peft_model(base, LoraConfig(r=4, target_modules=["embed_tokens"])).save_pretrained(tmp_path)
    measured = measure(open_checkpoint(tmp_path), open_checkpoint(tiny_path))
    (update,) = measured.lora
    assert (update.target, update.rank, update.effective_rank) == ("model.embed_tokens.weight", 4, 0.0)


def test_a_matrix_without_its_partner_is_named(tiny_path, tmp_path):
    base = AutoModelForCausalLM.from_pretrained(tiny_path)
    get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj"])).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    lost = sorted(tensors)[0]
    del tensors[lost]
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    measured = measure(open_checkpoint(tmp_path))
    assert measured.alone == [lost.replace("lora_A", "lora_B")]
    assert len(measured.lora) == 3
