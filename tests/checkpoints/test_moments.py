"""Statistics of stored tensors against numpy's, on the tensors that the library loads."""

import threading

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from trl_ext.checkpoints.blocks import map_blocks
from trl_ext.checkpoints.moments import moments_of, statistics_of
from trl_ext.checkpoints.reader import open_checkpoint


def all_statistics(path, workers=1):
    checkpoint = open_checkpoint(path)
    done = list(map_blocks(checkpoint.folder, checkpoint.tensors, moments_of, workers))
    assert all(one.error is None for one in done)
    return {one.tensor.name: statistics_of(one.tensor, one.result) for one in done}


def assert_is_numpys(found, tensor):
    values = tensor.to(torch.float64).numpy()
    finite = values[np.isfinite(values)]
    assert found.nan == np.isnan(values).sum()
    assert found.infinite == np.isinf(values).sum()
    assert found.zeros == (values == 0).sum()
    scale = np.abs(finite).max() if finite.size else 1.0
    assert found.mean == pytest.approx(finite.mean(), rel=1e-5, abs=1e-6 * scale)
    assert found.std == pytest.approx(finite.std(), rel=1e-4, abs=1e-9 * scale)
    assert found.abs_max == np.abs(finite).max()
    assert found.norm == pytest.approx(np.linalg.norm(finite), rel=1e-5)
    assert found.constant == (values.size > 1 and np.ptp(finite) == 0 and finite.size == values.size)
    if values.ndim > 1:
        flat = values.reshape(len(values), -1)
        assert found.dead_rows == (flat == 0).all(axis=1).sum()
        assert found.dead_columns == (flat == 0).all(axis=0).sum()


def normal(*shape, scale=0.02, shift=0.0, dtype=torch.float32, seed=0):
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (drawn * scale + shift).to(dtype)


def damaged(dtype):
    tensor = normal(300, 700, dtype=dtype)
    tensor[3, 5], tensor[200, 1], tensor[299, 699] = float("nan"), float("inf"), float("-inf")
    return tensor


def with_dead(dtype):
    tensor = normal(40, 50, dtype=dtype)
    tensor[7] = tensor[9] = 0
    tensor[:, 3] = 0
    tensor[0, 0] = -0.0
    return tensor


TENSORS = {
    **{f"normal {dtype}": normal(600, 1001, dtype=dtype)
       for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)},
    "fp8": normal(64, 128, scale=1.0, dtype=torch.float8_e4m3fn),
    "fp8 e5m2": normal(64, 128, scale=1.0, dtype=torch.float8_e5m2),
    "int8": normal(64, 128, scale=40.0, dtype=torch.int8),
    "uint8": torch.arange(256, dtype=torch.uint8).reshape(16, 16),
    "int64": torch.tensor([2**60, -(2**61), 3]), "bool": torch.tensor([True, False, True]),
    "far from 0": normal(4096, scale=1e-3, shift=1.0),
    "far, large": normal(900_000, scale=1e-2, shift=5.0, dtype=torch.float32),
    "large": normal(1000, scale=1e30), "small": normal(1000, scale=1e-30, dtype=torch.float32),
    "ones": torch.ones(700_000), "minus": torch.full((9,), -2.5, dtype=torch.bfloat16), "one": torch.tensor([3.0]),
    "both signs": torch.tensor([1.0, -1.0, 1.0]), "zeros": torch.zeros(700, 1000, dtype=torch.bfloat16),
    "3d": normal(8, 16, 9), "conv": torch.zeros(4, 3, 2, 2),
    **{f"damaged {dtype}": damaged(dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)},
    **{f"dead {dtype}": with_dead(dtype) for dtype in (torch.float32, torch.bfloat16)},
    "step": torch.cat([torch.zeros(300_000), torch.ones(300_000)]),
}  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("statistics")
    save_file(TENSORS, folder / "model.safetensors")
    return all_statistics(folder), load_file(folder / "model.safetensors")


@pytest.mark.parametrize("name", TENSORS)
def test_statistics_are_numpys(found, name):
    statistics, loaded = found
    assert_is_numpys(statistics[name], loaded[name])


def test_what_has_no_finite_element_has_no_moments(tmp_path):
    save_file({"w": torch.full((3, 3), float("nan")), "e": torch.empty(0, 4)}, tmp_path / "model.safetensors")
    statistics = all_statistics(tmp_path)
    assert statistics["w"].nan == 9
    assert np.isnan([statistics["w"].mean, statistics["w"].norm]).all()
    assert np.isnan(statistics["e"].mean)


@pytest.mark.parametrize("columns", [1024, 1000, 7])
def test_quantiles_of_the_sample_are_those_of_the_tensor(columns, tmp_path):
    """Also where each column has a scale of its own: the sample is not of one column."""
    tensor = normal(1 << 20, scale=1.0)[: (1 << 20) // columns * columns].reshape(-1, columns)
    tensor *= torch.linspace(0.1, 2.0, columns)
    save_file({"w": tensor}, tmp_path / "model.safetensors")
    at = [0.01, 0.25, 0.5, 0.75, 0.99]
    estimated = all_statistics(tmp_path)["w"].quantiles(at)
    values = np.sort(tensor.flatten().numpy())
    ranks = np.searchsorted(values, estimated) / len(values)
    assert ranks == pytest.approx(at, abs=0.025)


def test_elements_in_another_order_have_the_same_statistics(tmp_path):
    tensor = with_dead(torch.float32)
    torch.save({"w": tensor.t(), "other": tensor}, tmp_path / "x.pt")
    statistics = all_statistics(tmp_path)
    assert statistics["w"].norm == pytest.approx(statistics["other"].norm)
    assert statistics["w"].dead_rows is None


def test_a_file_that_shrinks_while_it_is_read_is_told_and_the_others_are_read(tmp_path):
    save_file({"a": normal(4_000_000)}, tmp_path / "model-1.safetensors")
    save_file({"b": normal(10)}, tmp_path / "model-2.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    with open(tmp_path / "model-1.safetensors", "r+b") as file:
        file.truncate(9_000_000)
    a, b = map_blocks(checkpoint.folder, checkpoint.tensors, moments_of, workers=2)
    assert (a.tensor.name, b.tensor.name) == ("a", "b")
    assert "became shorter" in str(a.error)
    assert b.error is None and b.result.finite == 10


def test_a_file_that_is_gone_is_told(tmp_path):
    save_file({"a": normal(10)}, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (done,) = map_blocks(checkpoint.folder, checkpoint.tensors, moments_of)
    assert "cannot be read" in str(done.error)


def test_blocks_that_nobody_reads_to_the_end_leave_no_thread(tmp_path):
    save_file({f"a{i}": normal(2_000_000) for i in range(9)}, tmp_path / "model.safetensors")
    checkpoint, before = open_checkpoint(tmp_path), threading.active_count()
    blocks = map_blocks(checkpoint.folder, checkpoint.tensors, moments_of, workers=2)
    next(blocks)
    blocks.close()
    assert threading.active_count() == before


def test_several_workers_find_the_same(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    one, three = all_statistics(tmp_path), all_statistics(tmp_path, workers=3)
    for name, found in one.items():
        assert repr(found) == repr(three[name]), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_columns_and_sample_of_a_tensor_of_several_blocks(dtype, tmp_path):
    """Zeros are counted where they lie: in the last part of a block, and in the last block."""
    tensor = normal(4600, 2503, dtype=dtype)
    tensor[4599] = tensor[1600] = 0
    tensor[:, 2502] = 0
    tensor[3000, 7] = 0
    save_file({"w": tensor}, tmp_path / "model.safetensors")
    found = all_statistics(tmp_path, workers=2)["w"]
    assert_is_numpys(found, tensor)
    assert (found.dead_rows, found.dead_columns) == (2, 1)
    stride = next(s for s in range(tensor.numel() // 4096, 10_000) if len(tensor.flatten()[::s]) == len(found.sample)
                  and np.array_equal(tensor.flatten()[::s].double().numpy(), found.sample))  # fmt: skip
    assert stride > 1


def test_workers_compute_on_one_core_and_the_process_keeps_its_number(tmp_path):
    """Threads that each compute on all cores wait for each other; those that are started meanwhile are none of ours."""
    save_file({f"w{i}": normal(3000, 3000) for i in range(3)}, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    inside, beside = set(), set()

    def work(block):
        block.values.sum()  # in parallel where the number of threads allows
        inside.add(torch.get_num_threads())
        other = threading.Thread(target=lambda: beside.add(torch.get_num_threads()))
        other.start()
        other.join()
        return moments_of(block)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        list(map_blocks(checkpoint.folder, checkpoint.tensors, work, 2))
        assert (inside, beside, torch.get_num_threads()) == ({1}, {2}, 2)
    finally:
        torch.set_num_threads(before)
