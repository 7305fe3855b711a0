"""How far tensors are from each other, against numpy in float64 on the loaded tensors."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from trl_ext.checkpoints.drift import cosine
from trl_ext.checkpoints.groups import whole
from trl_ext.checkpoints.measuring import measure
from trl_ext.checkpoints.reader import open_checkpoint

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def drawn(*shape, scale=0.02, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def pairs():
    base = drawn(700, 1001)
    moved = base + drawn(700, 1001, scale=1e-3, seed=1)
    bad = base.half()
    bad[3, 4] = float("nan")
    little = base.to(torch.bfloat16).clone()
    little[699, 1000] += 0.5
    return {
        **{str(dtype): (moved.to(dtype), base.to(dtype)) for dtype in FLOATS},
        "same": (base.half(), base.half()),
        "from zero": (base.half(), torch.zeros(700, 1001, dtype=torch.float16)),
        "to zero": (torch.zeros(700, 1001), base.float()),
        "another dtype": (base.to(torch.bfloat16), base.float()),
        "not finite": (bad, base.half()),
        "zeros beside numbers": (little * (drawn(700, 1001, seed=9) > 0), little),
        "opposite": (-base.to(torch.bfloat16), base.to(torch.bfloat16)),
        "one element": (little, base.to(torch.bfloat16)),
        "ones": (torch.ones(5000) * 1.001, torch.ones(5000)),
        "tiny": (base.float() * 1e-30, base.float() * 2e-30),
        "large": (base.float() * 1e30, base.float() * 2e30),
        "integers": (torch.arange(900), torch.arange(900) + 1),
        "fp8": (moved.mul(50).to(torch.float8_e4m3fn), base.mul(50).to(torch.float8_e4m3fn)),
        "scalar": (torch.tensor(3.0), torch.tensor(2.0)),
    }


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folders = [tmp_path_factory.mktemp(name) for name in ("own", "reference")]
    for i, folder in enumerate(folders):
        save_file({name: pair[i] for name, pair in pairs().items()}, folder / "model.safetensors")
    own, reference = map(open_checkpoint, folders)
    loaded = [load_file(folder / "model.safetensors") for folder in folders]
    return measure(own, reference, workers=2), loaded


@pytest.mark.parametrize("name", pairs())
def test_drift_is_numpys(compared, name):
    measured, (own, reference) = compared
    found = measured.drifts[name]
    x, y = (side[name].double().numpy().ravel() for side in (own, reference))
    both = np.isfinite(x) & np.isfinite(y)
    identical = np.array_equal(x, y)
    x, y = x[both], y[both]
    assert found.difference == pytest.approx(np.linalg.norm(x - y), rel=1e-4, abs=1e-300)
    assert found.reference == pytest.approx(np.linalg.norm(y), rel=1e-5)
    assert found.moved == (not identical)
    if np.linalg.norm(x) and np.linalg.norm(y):
        assert found.relative == pytest.approx(np.linalg.norm(x - y) / np.linalg.norm(y), rel=1e-4)
        expected = 1 - np.dot(x, y) / np.linalg.norm(x) / np.linalg.norm(y)
        assert 1 - found.cosine == pytest.approx(expected, rel=1e-3, abs=1e-9)
    else:
        assert np.isnan(found.cosine)
    assert found.sign_flips == pytest.approx((x * y < 0).mean(), abs=0.004)


def test_a_zero_reference_makes_the_relative_drift_infinite(compared):
    assert compared[0].drifts["from zero"].relative == float("inf")
    assert compared[0].drifts["to zero"].relative == pytest.approx(1.0)


def test_the_statistics_beside_a_reference_are_those_without(compared, tmp_path):
    save_file({name: own for name, (own, _) in pairs().items()}, tmp_path / "model.safetensors")
    alone = measure(open_checkpoint(tmp_path)).tensors
    for name, found in compared[0].tensors.items():
        for what in ("nan", "infinite", "zeros", "abs_max", "constant", "dead_rows"):
            assert getattr(found, what) == getattr(alone[name], what), (name, what)
        for what in ("mean", "std", "norm"):
            value = getattr(alone[name], what)
            assert getattr(found, what) == pytest.approx(value, rel=1e-5, abs=1e-7, nan_ok=True), (name, what)


@pytest.mark.parametrize("times", [1e-6, 1e-3, 30.0, 1e3, 1e7])
def test_a_cosine_of_lengths_far_apart_is_right_or_nan(times, tmp_path):
    base = drawn(300, 400)
    stored = {"a": ((base + drawn(300, 400, seed=3)) * times).to(torch.bfloat16), "b": base.to(torch.bfloat16)}
    for name, tensor in stored.items():
        (tmp_path / name).mkdir()
        save_file({"w": tensor}, tmp_path / name / "m.safetensors")
    x, y = (tensor.double().numpy().ravel() for tensor in stored.values())
    expected = x @ y / np.linalg.norm(x) / np.linalg.norm(y)
    (drift,) = measure(open_checkpoint(tmp_path / "a"), open_checkpoint(tmp_path / "b")).drifts.values()
    assert np.isnan(drift.cosine) if not 1e-4 < times < 1e4 else drift.cosine == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("angle", [0.0, 1e-4, 0.3, np.pi / 2, np.pi])
@pytest.mark.parametrize("length", [1.0, 3.0])
def test_cosine_of_vectors_at_an_angle(angle, length):
    x, y = np.array([length, 0.0]), np.array([np.cos(angle), np.sin(angle)])
    assert cosine(x @ x, y @ y, (x - y) @ (x - y)) == pytest.approx(np.cos(angle), abs=1e-12)


def test_drift_of_all_tensors_is_that_of_one_long_vector(compared):
    measured, (own, reference) = compared
    names = [name for name in pairs() if name not in ("not finite", "large", "integers", "fp8")]
    for name in set(measured.tensors) - set(names):
        del measured.tensors[name], measured.drifts[name]
    x, y = (np.concatenate([side[name].double().numpy().ravel() for name in measured.tensors])
            for side in (own, reference))  # fmt: skip
    found = whole(measured).drift
    assert found.relative == pytest.approx(np.linalg.norm(x - y) / np.linalg.norm(y), rel=1e-4)
    assert found.cosine == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y), abs=1e-5)
    assert found.sign_flips == pytest.approx((x * y < 0).mean(), abs=0.004)


def test_tensors_that_cannot_be_compared_are_named(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    save_file({"w": torch.ones(2, 3), "only": torch.ones(2), "s": torch.ones(2)}, tmp_path / "a" / "m.safetensors")
    save_file({"w": torch.ones(3, 2), "lost": torch.ones(2), "s": torch.ones(2)}, tmp_path / "b" / "m.safetensors")
    measured = measure(open_checkpoint(tmp_path / "a"), open_checkpoint(tmp_path / "b"))
    assert (measured.reshaped, measured.extra, measured.missing) == (["w"], ["only"], ["lost"])
    assert list(measured.drifts) == ["s"]


@pytest.mark.parametrize("prefix", ["module.", "base_model.model.", "_orig_mod."])
def test_names_are_compared_without_what_wrappers_put_in_front(prefix, tmp_path):
    for name, start in (("a", prefix), ("b", "")):
        (tmp_path / name).mkdir()
        save_file({f"{start}model.layers.0.w": torch.ones(4)}, tmp_path / name / "m.safetensors")
    measured = measure(open_checkpoint(tmp_path / "a"), open_checkpoint(tmp_path / "b"))
    assert [drift.moved for drift in measured.drifts.values()] == [False]


def test_a_reference_in_shards_of_another_size_is_compared_too(tmp_path):
    base = drawn(3000, 700).float()
    torch.save({"w": base}, tmp_path / "reference.pt")
    (tmp_path / "own").mkdir()
    save_file({"w": base + 1e-3}, tmp_path / "own" / "model.safetensors")
    (drift,) = measure(open_checkpoint(tmp_path / "own"), open_checkpoint(tmp_path / "reference.pt")).drifts.values()
    assert drift.difference == pytest.approx(1e-3 * base.numel() ** 0.5, rel=1e-3)


@pytest.mark.parametrize("rows", [1, 1000, 2999])
def test_a_reference_in_pieces_is_compared_where_each_lies(rows, tmp_path):
    """As a sharded tensor lies: blocks of the one reach over the pieces of the other."""
    base = drawn(3000, 2000).float()
    (tmp_path / "own").mkdir()
    save_file({"w": base + drawn(3000, 2000, scale=1e-3, seed=1).float()}, tmp_path / "own" / "model.safetensors")
    (tmp_path / "reference").mkdir()
    for name, part in (("a", base[:rows]), ("b", base[rows:])):
        save_file({name: part.contiguous()}, tmp_path / "reference" / f"{name}.safetensors")
    reference = open_checkpoint(tmp_path / "reference")
    first, second = sorted(reference.tensors, key=lambda tensor: tensor.name)
    reference.tensors = [replace(first, name="w", shape=(3000, 2000), pieces=first.pieces + second.pieces)]
    (drift,) = measure(open_checkpoint(tmp_path / "own"), reference).drifts.values()
    assert drift.difference == pytest.approx(1e-3 * base.numel() ** 0.5, rel=2e-3)
