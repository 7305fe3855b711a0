"""Checkpoints made to harm: one line each, nothing run, nothing read outside, nothing written."""

import io
import json
import os
import pickle
import pickletools
import random
import struct
import time
import zipfile

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
import transformers
import trl
from safetensors.torch import save_file

from tests.checkpoints.written import content_of, edit_json, rules_of, saved_policy
from trl_ext.checkpoints.health.judging import judge
from trl_ext.checkpoints.imports import danger
from trl_ext.checkpoints.pickled import Name
from trl_ext.checkpoints.reader import open_checkpoint


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.fixture
def ran(tmp_path):
    return tmp_path / "ran"


def header_of(length, content=b"{}"):
    return struct.pack("<Q", length) + content


def tensors_that_overlap():
    header = json.dumps({name: {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]} for name in ("a", "b")}).encode()
    return header_of(len(header), header) + bytes(16)


def tensor_outside():
    header = json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]}}).encode()
    return header_of(len(header), header) + bytes(16)


def tensor_of_another_size():
    header = json.dumps({"a": {"dtype": "F32", "shape": [2**31, 2**31], "data_offsets": [0, 16]}}).encode()
    return header_of(len(header), header) + bytes(16)


@pytest.mark.parametrize("content", [
    header_of(100 * 10**9), header_of(2**64 - 1), tensors_that_overlap(), tensor_outside(), tensor_of_another_size(),
    header_of(40, b"[" * 40), b"\0" * 7,
])  # fmt: skip
def test_a_hostile_header_is_refused_in_one_line(content, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(content)
    health = judge(tmp_path)
    (finding,) = health.findings
    assert finding.severity == "critical" and finding.rule.startswith("file_")
    assert "\n" not in finding.message and len(finding.message) < 300
    assert not health.measured.tensors


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_pickle_bomb_is_named_and_not_run(is_zip, tmp_path, ran):
    folder = tmp_path / "c"
    folder.mkdir()
    torch.save(
        {"w": torch.ones(2), "x": Bomb(ran)}, folder / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip
    )
    assert rules_of(folder)["pickle_imports"] == "critical"
    assert not ran.exists()


@pytest.mark.parametrize("file", ["optimizer.pt", "training_args.bin", "scheduler.pt", "rng_state.pth"])
def test_a_bomb_in_a_file_of_the_trainer_is_not_run(file, tmp_path, ran):
    folder = saved_policy(tmp_path / "c")
    torch.save({"state": Bomb(ran)}, folder / file)
    assert rules_of(folder)["pickle_imports"] == "critical"
    assert not ran.exists()


@pytest.mark.parametrize("file", ["random_states_0.pkl", ".metadata", "pytorch_model_fsdp_0/.metadata"])
def test_a_bomb_in_a_plain_pickle_is_named_and_not_run(file, tmp_path, ran):
    folder = saved_policy(tmp_path / "c")
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_bytes(pickle.dumps({"state_dict_metadata": Bomb(ran)}))
    assert rules_of(folder)["pickle_imports"] == "critical"
    assert not ran.exists()


@pytest.mark.parametrize(
    "name", ["torch._utils\ntraceback.linecache.os.system", "torch\nload", "torch._utils\nos.system"]
)
def test_a_name_behind_a_harmless_module_is_told(name, tmp_path):
    """What a module has imported can be reached through it."""
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(2)}, buffer)
    folder = tmp_path / "c"
    folder.mkdir()
    with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(folder / "pytorch_model.bin", "w") as new:
        for entry in old.infolist():
            content = old.read(entry)
            if entry.filename.endswith("data.pkl"):
                content = content[:-1] + f"c{name}\n0.".encode()
            new.writestr(entry.filename, content)
    assert rules_of(folder)["pickle_imports"] == "critical"


@pytest.mark.parametrize("file", ["scheduler.pt", "training_args.bin", "rng_state.pth", "random_states_0.pkl"])
@pytest.mark.parametrize("how", ["old instructions", "compressed", "timeit"])
def test_a_bomb_that_is_hidden_in_a_file_of_the_trainer_is_no_silence(file, how, tmp_path):
    folder = saved_policy(tmp_path / "c")
    if how == "old instructions":
        (folder / file).write_bytes(b"(S'true'\nios\nsystem\n.")
    elif how == "timeit":
        (folder / file).write_bytes(b"ctimeit\ntimeit\n(S'1'\ntR.")
    else:
        with zipfile.ZipFile(folder / file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("archive/data.pkl", b"cos\nsystem\n(S'true'\ntR." + b" " * 500)
    assert judge(folder).severity >= "error"


def test_two_pickles_in_one_zip_are_refused(tmp_path):
    torch.save({"w": torch.ones(2)}, tmp_path / "pytorch_model.bin")
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "a") as archive:
        archive.writestr("pytorch_model/DATA.PKL", b"cos\nsystem\n0N.")
    assert rules_of(tmp_path)["file_unsafe"] == "critical"


def rewritten(folder, change):
    """A file of torch.save with another pickle."""
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(4, 4)}, buffer)
    folder.mkdir()
    with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(folder / "pytorch_model.bin", "w") as new:
        for entry in old.infolist():
            content = old.read(entry)
            new.writestr(entry.filename, change(content) if entry.filename.endswith("data.pkl") else content)
    return folder


LAUGHS = b"\x80\x02" + b"]" + b"".join(b"q%c](h%ch%ce" % (i, i, i) for i in range(60)) + b"."


@pytest.mark.parametrize("change", [
    lambda content: LAUGHS, lambda content: b"\x80\x02]q\x00(h\x00h\x00e.", lambda content: content[:40],
    lambda content: content.replace(b"K\x04K\x04\x86", b"J\xff\xff\xff\xffK\x04\x86"),
    lambda content: content.replace(b"QK\x00", b"QJ\xf0\xff\xff\xff"),
    lambda content: content.replace(b"K\x04K\x04\x86", b"NN\x86"),
    lambda content: b"\x80\x04]]\x93.",
])  # fmt: skip
def test_a_pickle_of_nonsense_is_refused_at_once(change, tmp_path):
    folder = rewritten(tmp_path / "c", change)
    start = time.monotonic()
    health = judge(folder)
    assert time.monotonic() - start < 30
    assert not health.measured.tensors and health.severity >= "error"


def test_links_to_folders_and_a_folder_in_a_snapshot_are_no_fault(tmp_path):
    snapshot = tmp_path / "models--a--b" / "snapshots" / "abc" / "checkpoint-10"
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for path in saved_policy(tmp_path / "made").iterdir():
        path.rename(blobs / path.name)
        (snapshot / path.name).symlink_to(f"../../../blobs/{path.name}")
    (snapshot / "logs").symlink_to(tmp_path)
    assert {finding.rule for finding in judge(snapshot).findings} <= {"trainer_state_missing", "resume_incomplete"}


def test_what_a_trainer_writes_is_no_bomb(tmp_path):
    folder = saved_policy(tmp_path / "c")
    torch.save(transformers.TrainingArguments("x", report_to="none", use_cpu=True), folder / "training_args.bin")
    torch.save({"python": random.getstate(), "numpy": np.random.get_state()}, folder / "rng_state.pth")
    (folder / "random_states_0.pkl").write_bytes(pickle.dumps({"numpy": np.random.get_state()}))
    assert "pickle_imports" not in rules_of(folder)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "x/../../outside"])
def test_a_zip_that_leads_out_is_refused(name, tmp_path):
    folder = tmp_path / "c"
    folder.mkdir()
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(2)}, buffer)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(name, b"x")
    (folder / "pytorch_model.bin").write_bytes(buffer.getvalue())
    assert rules_of(folder)["file_unsafe"] == "critical"
    assert sorted(os.listdir(tmp_path)) == ["c"]


@pytest.mark.parametrize("shard", ["../../etc/passwd", "/etc/passwd", "..\\secret", "a/../../secret.safetensors"])
def test_an_index_that_leads_out_is_refused(shard, tmp_path):
    save_file({"secret": torch.full((3, 3), 7.0)}, tmp_path / "secret.safetensors")
    folder = saved_policy(tmp_path / "c", max_shard_size="1MB")
    index = judge(folder).checkpoint.documents["model.safetensors.index.json"]
    index["weight_map"]["secret"] = shard
    edit_json(folder, "model.safetensors.index.json", **index)
    health = judge(folder)
    assert {finding.rule for finding in health.findings} == {"file_unsafe"}
    assert "secret" not in health.measured.tensors


@pytest.mark.parametrize("what", ["weights", "config.json", "folder"])
def test_a_link_out_of_the_folder_is_not_followed(what, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    save_file({"secret": torch.full((3, 3), 7.0)}, outside / "model.safetensors")
    (outside / "config.json").write_text('{"secret": 1}')
    folder = saved_policy(tmp_path / "c")
    if what == "folder":
        (folder / "global_step5").symlink_to(outside)
    else:
        name = "model.safetensors" if what == "weights" else what
        (folder / name).unlink()
        (folder / name).symlink_to(outside / name)
        assert rules_of(folder)["file_unsafe"] == "critical"
    health = judge(folder)
    assert "secret" not in health.measured.tensors
    assert "secret" not in json.dumps(health.checkpoint.documents)


def test_links_in_a_circle_and_a_pipe_are_refused(tmp_path):
    (tmp_path / "model.safetensors").symlink_to("model.safetensors")
    os.mkfifo(tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").symlink_to("config.json")
    assert judge(tmp_path).status == "unusable"


def test_a_cache_of_the_hub_is_read_although_it_is_links(tmp_path):
    saved_policy(tmp_path / "made")
    blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for path in (tmp_path / "made").iterdir():
        path.rename(blobs / path.name)
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    assert judge(snapshot).findings == []


def test_tensor_names_are_no_markup_in_the_report(tmp_path):
    from trl_ext.reporting.checkpoint_report import markdown

    name = "model.layers.0.[x](http://evil)<script>|\nboo.lora_A.weight"
    other = name.replace("lora_A", "lora_B")
    save_file({name: torch.ones(2, 3), other: torch.ones(4, 2)}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text("{}")
    text = markdown(judge(tmp_path))
    assert "[x](http" not in text and "<script" not in text.replace("\\<script", "")


def test_reading_writes_nothing_into_the_checkpoint(tmp_path):
    folder = saved_policy(tmp_path / "c")
    before = content_of(folder)
    judge(folder, saved_policy(tmp_path / "reference"))
    assert content_of(folder) == before


def test_a_checkpoint_that_may_only_be_read_is_judged(tmp_path):
    folder = saved_policy(tmp_path / "c")
    for path in [*folder.iterdir(), folder]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        assert judge(folder).findings == []
    finally:
        folder.chmod(0o700)


def test_a_name_that_reaches_into_a_class_is_dangerous_wherever_it_begins():
    """`getattr` along the dots finds whatever the module has imported."""
    for module, name in (("transformers", "Trainer.train.__globals__"), ("torch.optim", "Adam.step.os.system")):
        assert danger(Name(module, name), of_a_trainer=True) == "critical"


@pytest.mark.parametrize("config", ["SFTConfig", "GRPOConfig", "RLOOConfig", "DPOConfig", "RewardConfig", "KTOConfig"])
def test_the_arguments_of_every_trainer_are_no_alarm(config, tmp_path):
    saved_policy(tmp_path)
    arguments = getattr(trl, config)(str(tmp_path), use_cpu=True, report_to=[], debug="underflow_overflow")
    torch.save(arguments, tmp_path / "training_args.bin")
    assert not judge(tmp_path).findings


@pytest.mark.parametrize(
    ("module", "name"),
    [("torch", "PyTorchFileWriter"), ("torch", "PyTorchFileReader"), ("torch._C", "PyTorchFileWriter")],
)
def test_a_class_that_opens_files_when_it_is_made_is_an_alarm(module, name):
    for of_a_trainer in (True, False):
        assert danger(Name(module, name), of_a_trainer) is not None
    assert danger(Name("datasets", "ArrowWriter"), of_a_trainer=True) == "warning"


def test_a_bomb_among_what_is_no_tensor_in_a_distributed_checkpoint_is_named(ran, tmp_path):
    """`dcp.load` unpickles such items."""
    dcp.save({"w": torch.ones(3), "state": Bomb(ran)}, checkpoint_id=tmp_path / "c", no_dist=True)
    found = {finding.rule: finding for finding in judge(tmp_path / "c").findings}
    assert found["pickle_imports"].severity == "critical"
    assert found["pickle_imports"].numbers["file"].endswith(".distcp")
    assert not ran.exists()


@pytest.mark.parametrize("which", range(5))
def test_a_bomb_in_any_pickle_of_the_older_form_is_named(which, ran, tmp_path):
    """Magic number, version, machine, content, keys: `torch.load` runs them all."""
    whole = io.BytesIO()
    torch.save({"w": torch.ones(3)}, whole, _use_new_zipfile_serialization=False)
    rest, pickles = io.BytesIO(whole.getvalue()), []
    for _ in range(5):
        begin = rest.tell()
        list(pickletools.genops(rest))
        pickles.append(whole.getvalue()[begin : rest.tell()])
    bomb = b"cos\nsystem\n(S'touch " + str(ran).encode() + b"'\ntR0"
    pickles[which] = pickles[which][:2] + bomb + pickles[which][2:]
    saved_policy(tmp_path / "saved")
    (tmp_path / "saved" / "training_args.bin").write_bytes(b"".join(pickles) + rest.read())
    assert rules_of(tmp_path / "saved") == {"pickle_imports": "critical"}
    assert not ran.exists()


def test_a_zip_with_two_directories_is_refused(tmp_path):
    """zipfile reads the one in front of the end, torch the one that the end names."""
    saved_policy(tmp_path / "saved")
    path = tmp_path / "saved" / "training_args.bin"
    torch.save({"w": torch.ones(3)}, path)
    content = path.read_bytes()
    at = content.rindex(b"PK\5\6")
    size, offset = struct.unpack("<II", content[at + 12 : at + 20])
    path.write_bytes(
        b"PK\3\4" + bytes(996) + content
    )  # all that zipfile finds has moved, and what the end says has not
    assert zipfile.ZipFile(path).namelist()
    assert (size, offset) != (0, 0)
    assert rules_of(tmp_path / "saved") == {"file_unsafe": "critical"}
    path.write_bytes(content + b"behind")
    assert rules_of(tmp_path / "saved").keys() <= {"file_unsafe", "file_truncated", "file_unreadable"}


def test_a_pickle_of_millions_of_objects_is_refused_in_little_memory(tmp_path):
    saved_policy(tmp_path / "saved")
    (tmp_path / "saved" / "random_states_0.pkl").write_bytes(b"\x80\x02" + b"}" * 20_000_000 + b".")
    began = time.perf_counter()
    assert rules_of(tmp_path / "saved") == {"file_unsafe": "critical"}
    assert time.perf_counter() - began < 60


def test_a_file_of_a_big_endian_machine_is_not_misread(tmp_path):
    torch.save({"w": torch.ones(3)}, tmp_path / "pytorch_model.bin")
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin") as archive:
        entries = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, b"big" if name.endswith("byteorder") else content)
    assert rules_of(tmp_path)["file_unreadable"] == "error"


def test_what_trainers_and_torch_write_of_their_own_is_no_alarm(tmp_path):
    """Random states of numpy in each of its forms, rare dtypes, quantised tensors."""
    saved_policy(tmp_path)
    states = {"old": np.random.RandomState(0), "new": np.random.default_rng(0)}
    torch.save(states, tmp_path / "rng_state.pth")
    with open(tmp_path / "random_states_0.pkl", "wb") as file:
        pickle.dump(states, file)
    quantised = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)
    dtypes = [torch.float8_e8m0fnu, torch.complex32, torch.float16, torch.per_tensor_affine, torch.strided]
    torch.save({"q": quantised, "dtypes": dtypes}, tmp_path / "scheduler.pt")
    assert "pickle_imports" not in rules_of(tmp_path)
    torch.save(torch.nn.TransformerEncoderLayer(8, 2), tmp_path / "training_args.bin")
    assert rules_of(tmp_path)["pickle_imports"] == "warning"


@pytest.mark.parametrize(
    "name",
    [
        ("datasets.utils._dill", "CodeType"), ("dill._dill", "_create_function"),
        ("cloudpickle.cloudpickle", "_make_function"),
        ("accelerate.utils.transformer_engine", "MethodType"), ("torch.distributed._shard.sharded_tensor.api", "Stats"),
        ("torch.distributed", "TCPStore"), ("trl.trainer.grpo_trainer", "Path"), ("transformers.trainer", "Trainer"),
    ],
)  # fmt: skip
def test_what_a_module_of_the_ecosystem_imported_itself_is_not_its_own(name):
    """`CodeType` and `FunctionType` make a function of any bytes."""
    assert danger(Name(*name), of_a_trainer=True) in ("warning", "critical")
    if "dill" in name[0]:
        assert danger(Name(*name), of_a_trainer=True) == "critical"


def test_sets_and_bytes_of_protocol_2_are_no_alarm(tmp_path):
    saved_policy(tmp_path)
    with open(tmp_path / "random_states_0.pkl", "wb") as file:
        pickle.dump({"a": {1, 2}, "b": b"bytes", "c": bytearray(b"x"), "d": 1j, "e": frozenset((3,))}, file, protocol=2)
    assert not judge(tmp_path).findings


@pytest.mark.parametrize("name", ["custom_checkpoint_0.pkl", "model.ckpt", "anything.pickle"])
def test_a_bomb_under_any_name_of_a_pickle_is_named(name, ran, tmp_path):
    saved_policy(tmp_path / "saved")
    with open(tmp_path / "saved" / name, "wb") as file:
        pickle.dump(Bomb(ran), file)
    assert rules_of(tmp_path / "saved") == {"pickle_imports": "critical"}
    assert not ran.exists()


def test_a_file_of_many_tensors_is_read_in_time_that_grows_with_their_number(tmp_path):
    """A tuple's beginning is looked for from the end of the stack: 30,000 tensors take seconds, and took minutes."""
    torch.save({f"layers.{i}.w": torch.ones(2) for i in range(30_000)}, tmp_path / "pytorch_model.bin")
    began = time.perf_counter()
    assert len(open_checkpoint(tmp_path).tensors) == 30_000
    assert time.perf_counter() - began < 60
