"""What ends a run from outside: one line that says how to go on, and the last good checkpoint survives and resumes."""

import errno
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from accelerate.utils.constants import FSDP_MODEL_NAME
from datasets import Dataset
from peft import LoraConfig
from safetensors import SafetensorError
from safetensors.torch import save_file
from torchrun import started, torchrun
from trl import SFTConfig, SFTTrainer

from trl_ext import UserError, tiny, train
from trl_ext.trainers import failures

ROOT = Path(__file__).parents[2]


class Fails(SFTTrainer):
    """Raises `error` in its fourth step, after the checkpoint of the second."""

    error: BaseException | None = None

    def training_step(self, *args, **kwargs):
        if self.error is not None and self.state.global_step == 3:
            raise self.error
        return super().training_step(*args, **kwargs)


def sft_trainer(folder, peft_config=None, **options):
    options = {"max_steps": 6, "save_steps": 2, "per_device_train_batch_size": 2, "max_length": 16, **options}
    args = SFTConfig(
        str(folder), logging_steps=1, report_to="none", bf16=False, use_cpu=True, gradient_checkpointing=False,
        disable_tqdm=True, model_init_kwargs={"dtype": "float32"}, **options,
    )  # fmt: skip
    data = Dataset.from_dict({"text": ["a good film", "a bad film", "no film at all", "films"] * 4})
    return Fails(tiny.resolve(tiny.NAME), args, train_dataset=data, peft_config=peft_config)


def losses(trainer):
    return {row["step"]: row["loss"] for row in trainer.state.log_history if "loss" in row}


def test_a_step_without_memory_is_told_with_what_to_lower_and_goes_on_from_the_checkpoint(tmp_path):
    trainer = sft_trainer(tmp_path)
    trainer.error = torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.20 GiB is "
        "free. Including non-PyTorch memory, this process has 78.04 GiB memory in use. If reserved but unallocated ..."
    )
    with pytest.raises(UserError) as told:
        train(trainer)
    assert str(told.value) == (
        "failed in step 4: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of "
        "which 1.20 GiB is free. Lower per_device_train_batch_size (now 2; raise gradient_accumulation_steps in turn), "
        "max_length (now 16); or take gradient_checkpointing: true. use_peft: true or several GPUs with "
        "accelerate_configs/fsdp2.yaml would begin anew from the weights. To go on: resume_from_checkpoint: true takes "
        f"{tmp_path}/checkpoint-2."
    )
    resumed = sft_trainer(tmp_path)
    train(resumed, resume_from_checkpoint="true")
    whole = sft_trainer(tmp_path / "whole")
    train(whole)
    assert losses(resumed) == losses(whole)


def test_an_option_that_is_set_is_not_advised(tmp_path):
    args = SimpleNamespace(output_dir=str(tmp_path), per_device_train_batch_size=1, gradient_checkpointing=True,
                           response_length=53, max_completion_length=53)  # fmt: skip
    trainer = SimpleNamespace(args=args, model=SimpleNamespace(peft_config={}), is_fsdp_enabled=True)
    args.fast_generation = True
    with (
        pytest.raises(UserError, match=r"53\); or drop fast_generation \(two bytes a weight, and a cache\)\. There is"),
        failures.telling_failures(trainer),
    ):
        raise MemoryError
    args.fast_generation = False
    with pytest.raises(UserError) as told, failures.telling_failures(trainer):
        raise MemoryError
    assert "memory is full. Lower response_length (now 53). There is no whole checkpoint in" in str(told.value)


@pytest.fixture
def disk(tmp_path):
    """Of 20 MB, where a checkpoint takes 12; needs root, as in most containers."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("no right to mount a small disk")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # weights are mapped as long as a trainer lives


def test_a_full_disk_is_told_and_the_last_good_checkpoint_survives_and_resumes(tmp_path, disk):
    with pytest.raises(UserError) as told:
        train(sft_trainer(disk / "run", save_total_limit=1))
    assert "failed after step 4: a file could not be written to its end: 0 MB are free in" in str(told.value)
    assert "checkpoint-4 is half written: no resume takes it, delete it" in str(told.value)
    assert f"resume_from_checkpoint: true takes {disk}/run/checkpoint-2" in str(told.value)
    subprocess.run(["mount", "-o", "remount,size=80m", str(disk)], check=True)
    resumed = sft_trainer(disk / "run", save_total_limit=1)
    train(resumed, resume_from_checkpoint=True)
    assert sorted(path.name for path in (disk / "run").glob("checkpoint-*")) == ["checkpoint-6"]
    whole = sft_trainer(tmp_path / "whole")
    train(whole)
    assert losses(resumed) == losses(whole)


@pytest.mark.parametrize("error", [
    OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EDQUOT, "Disk quota exceeded"),
    SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"),
    RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"),
])  # fmt: skip
def test_every_writer_says_a_full_disk_in_its_own_words(tmp_path, error):
    trainer = SimpleNamespace(args=SimpleNamespace(output_dir=str(tmp_path)))
    with pytest.raises(UserError, match="a file could not be written to its end"), failures.telling_failures(trainer):
        raise error


@pytest.mark.parametrize("error", [
    RuntimeError("shape mismatch"), OSError(errno.EACCES, "Permission denied"), KeyError("x"),
    RuntimeError("Connection closed by peer"),  # of one process alone: not of this run's
])  # fmt: skip
def test_an_unknown_error_passes_as_it_is(error, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(type(error)) as passed, failures.telling_failures(SimpleNamespace()):
        raise error
    assert passed.value is error


def test_a_checkpoint_of_another_engine_is_refused_with_the_configuration_to_take(tmp_path):
    files = [
        ("fsdp", "pytorch_model_fsdp.bin"), ("zero2", "global_step2/zero_pp_rank_0_mp_rank_00_optim_states.pt"),
        ("zero2", "global_step2/mp_rank_00_model_states.pt"),
        ("zero3", "global_step2/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"),
        ("zero3", "global_step2/zero_pp_rank_0_mp_rank_00_model_states.pt"),
    ]  # fmt: skip
    for name, file in files:
        path = tmp_path / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({}, path)
        (tmp_path / name / "trainer_state.json").write_text('{"global_step": 4}')
    assert FSDP_MODEL_NAME == "pytorch_model_fsdp"
    plain = sft_trainer(tmp_path / "plain")
    with pytest.raises(UserError, match=r"was saved under FSDP, and this run is undivided: .*fsdp2\.yaml"):
        train(plain, resume_from_checkpoint=str(tmp_path / "fsdp"))
    for stage in (2, 3):
        with pytest.raises(UserError, match=rf"under ZeRO-{stage}, .*zero{stage}\.yaml"):
            train(plain, resume_from_checkpoint=str(tmp_path / f"zero{stage}"))
    divided = sft_trainer(tmp_path / "divided")
    divided.is_deepspeed_enabled = True
    divided.accelerator.state.deepspeed_plugins = {"default": SimpleNamespace(zero_stage=2, selected=True)}
    divided.accelerator.state.distributed_type = DistributedType.DEEPSPEED
    try:
        with pytest.raises(UserError, match=r"under ZeRO-3, and this run is one of ZeRO-2: .*zero3\.yaml"):
            train(divided, resume_from_checkpoint=str(tmp_path / "zero3"))
        other = tmp_path / "zero2" / "global_step2" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
        torch.save({}, other)
        with pytest.raises(
            UserError, match="by 2 processes, and ZeRO resumes on the same number alone: set --num_proc"
        ):
            train(divided, resume_from_checkpoint=str(tmp_path / "zero2"))
    finally:
        AcceleratorState._reset_state(True)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "trainer_state.json").write_text('{"global_step": 4}')
    save_file({"weight": torch.ones(2)}, tmp_path / "own" / "model.safetensors")
    plain.is_fsdp_enabled = True
    with pytest.raises(UserError, match="by an undivided run, and this run is one of FSDP: start it without"):
        train(plain, resume_from_checkpoint=str(tmp_path / "own"))


# Two processes --------------------------------------------------------------------------------------------------------


def start(folder, data, *words):
    options = {"config": ROOT / "recipes/sft.yaml", "model_name_or_path": tiny.NAME, "dtype": "float32",
               "dataset_name": data, "dataset_test_split": "none", "output_dir": folder, "use_cpu": "true",
               "per_device_train_batch_size": 2, "logging_steps": 1, "save_strategy": "steps", "save_steps": 2,
               "save_total_limit": 2, "max_length": 16, "lr_scheduler_type": "constant", "warmup_steps": 0,
               "max_steps": 100_000, "disable_tqdm": "true"}  # fmt: skip
    command = torchrun(ROOT / "recipes/sft.py", *(x for k, v in options.items() for x in (f"--{k}", v)), *words)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return started(command, env=environment)


def rank_pid(launcher, rank):
    for pid in map(int, Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()):
        if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return pid
    raise AssertionError(f"no process of rank {rank}")


def killed(launched, rank, folder, step):
    """The one line of the process that is left, once `rank` is killed after the checkpoint of `step`."""
    with launched as run:
        end = time.monotonic() + 120
        while not (folder / f"checkpoint-{step}/trainer_state.json").exists():
            assert time.monotonic() < end and run.poll() is None, run.communicate()[1][-2000:]
            time.sleep(0.02)
        os.kill(rank_pid(run.pid, rank), signal.SIGKILL)
        _, stderr = run.communicate(timeout=30)  # not the minutes after which gloo and NCCL give up
    assert run.returncode != 0
    lines = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "another process of this run is gone" in lines[0], stderr
    assert f"process {1 - rank}" in lines[0]
    return lines[0]


def with_unknown_field(checkpoint):
    path = checkpoint / "trainer_state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "of_a_later_version": 1}))


@pytest.mark.parametrize(("damage", "named"), [
    (with_unknown_field, "TypeError in load_from_json: .*'of_a_later_version'"),
    (lambda folder: (folder / "trainer_state.json").write_text('{"global_step": 2}'), "in _init_training_state"),
    (lambda folder: (folder / "optimizer.pt").write_bytes(b"\x80\x02" + b"junk" * 9), "_load_optimizer_and_scheduler"),
    (lambda folder: torch.save({}, folder / "rng_state.pth"), "KeyError in _load_rng_state: 'python'"),
    (lambda folder: torch.save({"factor": 0.1}, folder / "scheduler.pt"),  # that of ReduceLROnPlateau
     "in _load_optimizer_and_scheduler: 'lr_lambdas'.* model, optim or lr_scheduler_type"),
])  # fmt: skip
def test_a_checkpoint_that_cannot_be_loaded_is_named_and_kept_as_it_was(tmp_path, damage, named):
    train(sft_trainer(tmp_path, max_steps=2))
    damage(tmp_path / "checkpoint-2")
    before = {path: path.read_bytes() for path in (tmp_path / "checkpoint-2").iterdir()}
    with pytest.raises(UserError, match=f"cannot load {tmp_path}/checkpoint-2: .*{named}.* resume from another check"):
        train(sft_trainer(tmp_path), resume_from_checkpoint=True)
    assert {path: path.read_bytes() for path in (tmp_path / "checkpoint-2").iterdir()} == before


@pytest.mark.current_trl
@pytest.mark.parametrize(("before", "after", "named"), [
    ("adamw_torch", "sgd", "no 'momentum'"),
    ("sgd", "adamw_torch", "no 'betas'"),
    ("adamw_torch", "adafactor", "no '"),
    ("adamw_torch", "adamw_bnb_8bit", "no '"),
    ("adamw_bnb_8bit", "adamw_torch", "no '"),
])  # fmt: skip
def test_a_resume_with_another_optimizer_names_the_option(tmp_path, before, after, named):
    train(sft_trainer(tmp_path, max_steps=2, optim=before))
    with pytest.raises(UserError, match=rf"cannot go on from {tmp_path}/checkpoint-2: .*{named}.*\(now {after}\)"):
        train(sft_trainer(tmp_path, optim=after), resume_from_checkpoint=True)


@pytest.mark.parametrize("error", [KeyError("of the user"), RuntimeError("a kernel is not built for this card")])
def test_what_else_fails_in_the_first_step_is_no_fault_of_the_checkpoint(tmp_path, error):
    def hook(*args):
        raise error

    train(sft_trainer(tmp_path, max_steps=2))
    trainer = sft_trainer(tmp_path)
    trainer.create_optimizer()
    trainer.optimizer.register_step_pre_hook(hook)
    with pytest.raises(type(error)) as told:
        train(trainer, resume_from_checkpoint=True)
    assert told.value is error


def test_another_optimizer_of_the_user_is_no_fault_of_the_checkpoint(tmp_path):
    train(sft_trainer(tmp_path, max_steps=2))
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    optimizer = torch.optim.AdamW([weight])
    del optimizer.param_groups[0]["betas"]
    trainer = sft_trainer(tmp_path)
    trainer.training_step = lambda *args, **kwargs: optimizer.step()
    with pytest.raises(KeyError, match="betas"):
        train(trainer, resume_from_checkpoint=True)


def load_from_json():  # a user's, by the name of a loader
    raise KeyError("of the user")


def test_what_fails_in_a_function_of_a_user_is_no_fault_of_the_checkpoint():
    with pytest.raises(KeyError), failures.telling_failures(SimpleNamespace(), "checkpoint-2"):
        load_from_json()


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the process in /proc")
def test_a_killed_process_ends_the_others_at_once_with_a_line_and_the_run_resumes(tmp_path):
    data, folder = tmp_path / "texts.jsonl", tmp_path / "run"
    data.write_text("\n".join(json.dumps({"text": f"a film of {i} minutes"}) for i in range(32)))
    line = killed(start(folder, data), 1, folder, 2)
    newest = int(line.rpartition("checkpoint-")[2].rstrip("."))
    line = killed(start(folder, data, "--resume_from_checkpoint", "true"), 0, folder, newest + 2)
    newest = int(line.rpartition("checkpoint-")[2].rstrip("."))
    state = json.loads((folder / f"checkpoint-{newest}" / "trainer_state.json").read_text())
    assert [row["step"] for row in state["log_history"] if "loss" in row] == list(range(1, newest + 1))


def test_a_checkpoint_of_an_adapter_and_a_run_without_one_are_told_apart_and_the_other_way_round(tmp_path):
    train(sft_trainer(tmp_path / "whole"))
    adapted = sft_trainer(tmp_path / "adapter", peft_config=LoraConfig(target_modules="all-linear"))
    train(adapted)
    again = sft_trainer(tmp_path / "adapter", peft_config=LoraConfig(target_modules="all-linear"))
    with pytest.raises(
        UserError, match="of a whole model, and this run trains an adapter: drop use_peft, or begin anew"
    ):
        train(again, resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    with pytest.raises(UserError, match="of an adapter, and this run trains all weights: set use_peft: true"):
        train(sft_trainer(tmp_path / "x"), resume_from_checkpoint=str(tmp_path / "adapter" / "checkpoint-2"))
    train(again, resume_from_checkpoint=True)
