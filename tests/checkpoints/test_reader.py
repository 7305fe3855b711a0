"""Every form of checkpoint, written by those who write them: where each tensor lies, against what they load."""

import json
import os
import pickle
import struct
import sys
import types
import zipfile
from collections import OrderedDict

import pytest
import torch
import torch.distributed.checkpoint as dcp
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import nn

from trl_ext import tiny
from trl_ext.checkpoints.errors import UnreadableError
from trl_ext.checkpoints.folder import CheckpointFolder
from trl_ext.checkpoints.health.judging import judge
from trl_ext.checkpoints.pickled import Name, read_pickle
from trl_ext.checkpoints.reader import open_checkpoint

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64,
    torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64,
]  # fmt: skip


def some(dtype, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).mul(9).to(dtype)


def content_of(checkpoint, tensor):
    """The tensor that the bytes in the files make."""
    parts = []
    for piece in tensor.pieces:
        content = (checkpoint.path / piece.file).read_bytes()
        parts.append(content[piece.offset : piece.offset + piece.size])
    if not tensor.size:
        return torch.empty(tensor.shape, dtype=tensor.torch_dtype)
    return torch.frombuffer(bytearray(b"".join(parts)), dtype=tensor.torch_dtype).reshape(tensor.shape)


def assert_holds(path, expected):
    """That the checkpoint has these tensors and no others."""
    checkpoint = open_checkpoint(path)
    assert checkpoint.problems == []
    found = {tensor.name: tensor for tensor in checkpoint.tensors}
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.ordered, name
        read = content_of(checkpoint, tensor)
        assert read.dtype == expected[name].dtype
        assert torch.equal(
            read.view(torch.uint8) if read.dim() else read, _bytes(expected[name]) if read.dim() else expected[name]
        )
    return checkpoint


def _bytes(tensor):
    return tensor.contiguous().view(torch.uint8)


def test_safetensors_of_every_dtype_and_shape(tmp_path):
    tensors = {str(dtype): some(dtype, 3, 4) for dtype in DTYPES}
    tensors |= {"scalar": torch.tensor(3.0), "empty": torch.empty(0, 5)}
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = assert_holds(tmp_path, tensors)
    assert checkpoint.form == "safetensors"
    assert_holds(tmp_path / "model.safetensors", tensors)


def test_a_sharded_model_of_transformers(tmp_path):
    model = tiny.random_policy()
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    expected = {}
    for shard in shards:
        expected |= load_file(shard)
    checkpoint = assert_holds(tmp_path, expected)
    assert checkpoint.form == f"safetensors, {len(shards)} files"
    assert checkpoint.indices["model.safetensors.index.json"].keys() == expected.keys()
    assert checkpoint.documents["config.json"]["model_type"] == model.config.model_type


def test_an_adapter_of_peft(tmp_path):
    model = get_peft_model(tiny.random_policy(), LoraConfig(r=4, target_modules=["q_proj"]))
    model.save_pretrained(tmp_path)
    checkpoint = assert_holds(tmp_path, load_file(tmp_path / "adapter_model.safetensors"))
    assert checkpoint.form == "PEFT adapter, safetensors"


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_file_of_torch_save_of_every_dtype(is_zip, tmp_path):
    dtypes = DTYPES if is_zip else [dtype for dtype in DTYPES if "float8" not in str(dtype)]  # torch cannot load those
    tensors = OrderedDict({str(dtype): some(dtype, 3, 4) for dtype in dtypes})
    tensors["tied"] = tensors["torch.float32"]
    tensors["parameter"] = nn.Parameter(some(torch.float32, 2, 2))
    tensors["part"] = some(torch.float32, 6, 4)[2:4]
    torch.save(tensors, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)
    expected = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    checkpoint = assert_holds(tmp_path, {name: tensor.detach() for name, tensor in expected.items()})
    assert checkpoint.form == "torch"
    assert checkpoint.imports == {}


def test_views_of_storages(tmp_path):
    square = some(torch.float32, 4, 6)
    torch.save({"t": square.t(), "every": square[:, ::2], "wide": square[0].expand(3, 6)}, tmp_path / "x.pt")
    checkpoint = open_checkpoint(tmp_path)
    (transposed,) = checkpoint.tensors
    assert (transposed.name, transposed.ordered) == ("t", False)
    assert torch.equal(content_of(checkpoint, transposed).flatten(), square.flatten())
    assert sorted(checkpoint.left_out) == ["every", "wide"]


class Own:
    """A class that no other process has."""

    def __init__(self):
        self.weight = some(torch.float32, 2, 3)


def test_tensors_in_objects_of_unknown_classes_are_found_without_them(tmp_path):
    torch.save({"module": {"layers": [Own(), {"b": some(torch.bfloat16, 5)}]}, "step": 3}, tmp_path / "x.pt")
    checkpoint = open_checkpoint(tmp_path)
    assert [tensor.name for tensor in checkpoint.tensors] == ["module.layers.0.weight", "module.layers.1.b"]
    assert torch.equal(content_of(checkpoint, checkpoint.tensors[0]), some(torch.float32, 2, 3))
    assert checkpoint.imports == {"x.pt": [Name(Own.__module__, "Own")]}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_distributed_checkpoint(tmp_path):
    tensors = {"w": some(torch.float32, 7, 5), "b": some(torch.bfloat16, 3), "s": torch.tensor(2.0)}
    dcp.save({"model": tensors, "step": 7}, checkpoint_id=tmp_path / "pytorch_model_fsdp_0")
    checkpoint = assert_holds(tmp_path, {f"model.{name}": tensor for name, tensor in tensors.items()})
    assert checkpoint.form == "torch.distributed.checkpoint"
    assert_holds(tmp_path / "pytorch_model_fsdp_0", {f"model.{name}": tensor for name, tensor in tensors.items()})


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_lost_file_of_a_rank_is_named_with_its_tensors(tmp_path):
    dcp.save({"w": some(torch.float32, 7, 5)}, checkpoint_id=tmp_path)
    (tmp_path / "__0_0.distcp").unlink()
    (problem,) = open_checkpoint(tmp_path).problems
    assert problem.message == "w: '__0_0.distcp' cannot be read: No such file or directory"


@pytest.mark.parametrize("is_zip", [True, False])
def test_the_state_dict_of_a_module_as_it_is(is_zip, tmp_path):
    """It is an OrderedDict with an attribute `_metadata`."""
    states = tiny.random_policy().state_dict()
    assert states._metadata
    torch.save(states, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)
    loaded = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    assert_holds(tmp_path, dict(loaded))


def test_a_folder_of_deepspeed(tmp_path):
    """As ZeRO-2 lays it out: the module in bf16, flat fp32 partitions in the optimizer's files."""
    inner = tmp_path / "global_step5"
    inner.mkdir()
    (tmp_path / "latest").write_text("global_step5")
    weight = some(torch.bfloat16, 4, 4)
    torch.save({"module": OrderedDict(w=weight), "ds_version": "0.19"}, inner / "mp_rank_00_model_states.pt")
    states = {"optimizer_state_dict": {"single_partition_of_fp32_groups": [some(torch.float32, 16)], "scaler": Own()}}
    torch.save(states, inner / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.form == "DeepSpeed ZeRO"
    (tensor,) = checkpoint.tensors
    assert tensor.name == "mp_rank_00.module.w"
    assert torch.equal(content_of(checkpoint, tensor), weight)
    assert any("single_partition_of_fp32_groups" in tensor.name for tensor in checkpoint.optimizer)


def test_what_deepspeed_holds_beside_gathered_weights_is_counted_once(tmp_path, monkeypatch):
    """As the Trainer saves with ZeRO: model.safetensors, and the engine's own states of the same weights, whose classes
    are no alarm."""
    kinds = {}
    for module, name in (("deepspeed.runtime.zero.config", "ZeroStageEnum"),
                         ("deepspeed.runtime.fp16.loss_scaler", "LossScaler"),
                         ("deepspeed.utils.tensor_fragment", "fragment_address")):  # fmt: skip
        kinds[name] = type(name, (), {"__module__": module})
        parents = ["deepspeed", "deepspeed.runtime", "deepspeed.runtime.zero", "deepspeed.runtime.fp16",
                   "deepspeed.utils"]  # fmt: skip
        for one in (*parents, module):
            monkeypatch.setitem(sys.modules, one, sys.modules.get(one) or types.ModuleType(one))
        setattr(sys.modules[module], name, kinds[name])
    weight = some(torch.bfloat16, 4, 4)
    save_file({"w": weight}, tmp_path / "model.safetensors")
    inner = tmp_path / "global_step5"
    inner.mkdir()
    torch.save({"module": OrderedDict(w=weight)}, inner / "mp_rank_00_model_states.pt")
    states = {"optimizer_state_dict": {name: kind() for name, kind in kinds.items()}, "flat": some(torch.float32, 16)}
    torch.save(states, inner / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt")
    found = judge(tmp_path)
    assert found.checkpoint.form == "safetensors, DeepSpeed ZeRO"
    assert [tensor.name for tensor in found.checkpoint.tensors] == ["w"]
    assert {finding.rule for finding in found.findings} <= {"config_missing"}


def test_packed_weights_are_marked(tmp_path):
    tensors = {
        "a.weight": torch.zeros(32, 1, dtype=torch.uint8),
        "a.weight.quant_state.bitsandbytes__nf4": torch.zeros(8, dtype=torch.uint8),
        "b.weight": torch.zeros(4, 4, dtype=torch.int8), "b.SCB": torch.ones(4),
        "c.qweight": torch.zeros(2, dtype=torch.int32), "d.weight": torch.zeros(3),
    }  # fmt: skip
    save_file(tensors, tmp_path / "model.safetensors")
    forms = {tensor.name: tensor.form for tensor in open_checkpoint(tmp_path).tensors}
    assert {name: form for name, form in forms.items() if form} == {
        "a.weight": "nf4", "b.weight": "int8", "c.qweight": "packed",
    }  # fmt: skip


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_pickle_bomb_is_named_and_not_run(is_zip, tmp_path):
    (tmp_path / "c").mkdir()
    torch.save({"w": some(torch.float32, 2), "x": Bomb(tmp_path / "ran")}, tmp_path / "c" / "pytorch_model.bin",
               _use_new_zipfile_serialization=is_zip)  # fmt: skip
    checkpoint = open_checkpoint(tmp_path / "c")
    assert [tensor.name for tensor in checkpoint.tensors] == ["w"]
    assert checkpoint.imports["pytorch_model.bin"] == [Name("posix", "system")]
    assert not (tmp_path / "ran").exists()


def test_a_plain_pickle_and_a_distributed_bomb_are_not_run(tmp_path):
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "model.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    (problem,) = open_checkpoint(tmp_path / "plain").problems
    assert problem.kind == "unsafe"
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps({"state_dict_metadata": Bomb(tmp_path / "ran")}))
    (problem,) = open_checkpoint(tmp_path / "dcp").problems
    assert "names no tensor" in problem.message
    assert not (tmp_path / "ran").exists()


def header(length=None, **entries):
    content = json.dumps(entries).encode()
    return struct.pack("<Q", len(content) if length is None else length) + content


def entry(begin, end, shape=(1,)):
    return {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "empty"),
        (b"\0\0\0", "truncated"),
        (header(length=100 << 30), "truncated"),
        (header(length=1 << 63) + b"x" * 50, "truncated"),
        (header(a=entry(0, 4), b=entry(0, 4)) + bytes(4), "header"),  # overlap
        (header(a=entry(0, 4), b=entry(2, 6)) + bytes(6), "header"),
        (header(a=entry(4, 8)) + bytes(8), "header"),  # a hole
        (header(a=entry(0, 8)) + bytes(8), "header"),  # no float of eight bytes
        (header(a=entry(0, 4000, (1000,))) + bytes(400), "truncated"),
        (header(a=entry(0, -4)) + bytes(4), "header"),
        (header(a=entry(0, 4, (-1,))) + bytes(4), "header"),
        (header(a={"dtype": "F32"}) + bytes(4), "header"),
        (header(a=3) + bytes(4), "header"),
        (struct.pack("<Q", 5) + b"[1,2]", "header"),
        (struct.pack("<Q", 20_000) + b"[" * 20_000, "header"),
        (header(a=entry(0, 4)) + bytes(8), "header"),  # bytes that belong to nothing
        (b"<html>404 not found</html>" * 9, "truncated"),
    ],
)
def test_a_hostile_or_broken_safetensors_file_is_one_line(content, kind, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(content)
    (problem,) = open_checkpoint(tmp_path).problems
    assert problem.kind == kind, problem
    assert "\n" not in problem.message


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("is_zip", [True, False])
def test_a_file_of_torch_that_is_cut_off_is_one_line(share, is_zip, tmp_path):
    torch.save({"w": some(torch.float32, 400)}, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)
    content = (tmp_path / "pytorch_model.bin").read_bytes()
    (tmp_path / "pytorch_model.bin").write_bytes(content[: int(len(content) * share)])
    checkpoint = open_checkpoint(tmp_path)
    (problem,) = checkpoint.problems
    assert problem.kind in ("empty", "truncated", "format")
    assert "\n" not in problem.message


def test_a_zip_that_would_unpack_elsewhere_is_refused(tmp_path):
    torch.save({"w": some(torch.float32, 4)}, tmp_path / "good.bin")
    with zipfile.ZipFile(tmp_path / "good.bin") as good, zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as bad:
        for info in good.infolist():
            bad.writestr(info.filename, good.read(info))
        bad.writestr("archive/../../outside", b"x")
    (tmp_path / "good.bin").unlink()
    (problem,) = open_checkpoint(tmp_path).problems
    assert (problem.kind, "leads out of it" in problem.message) == ("unsafe", True)


def test_links_out_of_the_folder_and_pipes_are_refused(tmp_path):
    outside = tmp_path / "outside.safetensors"
    save_file({"w": some(torch.float32, 4)}, outside)
    folder = tmp_path / "c"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(outside)
    (folder / "config.json").symlink_to("/etc/passwd")
    (folder / "loop.safetensors").symlink_to("loop.safetensors")
    os.mkfifo(folder / "pipe.safetensors")
    checkpoint = open_checkpoint(folder)
    assert checkpoint.tensors == [] and checkpoint.documents == {}
    kinds = {problem.file: problem.kind for problem in checkpoint.problems}
    assert kinds == {
        "model.safetensors": "unsafe", "config.json": "unsafe", "pipe.safetensors": "unsafe",
        "loop.safetensors": "missing",
    }  # fmt: skip
    with pytest.raises(UnreadableError, match="leads out of the checkpoint"):
        CheckpointFolder(folder).open("../outside.safetensors")


def test_links_within_and_in_a_cache_of_the_hub_are_followed(tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    tensors = {"w": some(torch.float32, 4)}
    save_file(tensors, blobs / "123")
    (snapshot / "model.safetensors").symlink_to("../../blobs/123")
    assert_holds(snapshot, tensors)


def test_nothing_of_that_name_is_one_line(tmp_path):
    with pytest.raises(UnreadableError, match="does not exist: name the folder of a checkpoint"):
        open_checkpoint(tmp_path / "nowhere")


@pytest.mark.parametrize("protocol", range(6))
def test_plain_data_reads_from_a_pickle_as_pickle_reads_it(protocol):
    data = {"a": [1, 2.5, -(2**80), None, True, "é"], (1, 2): {"b": ()}, "n": [[[]], (1, 2, 3, 4)], "big": "x" * 70_000}
    if protocol >= 4:  # made by calls before
        data["a"] += [b"x", {1, 2}]
    assert read_pickle(pickle.dumps(data, protocol), "it") == data
