"""What ends a run from outside its code, in one line: no memory, a full disk, a lost process, a broken checkpoint."""

import errno
import os
import re
import shutil
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from ..checkpoints.saved import checkpoints, how_to_go_on, is_whole, saved_step
from ..errors import UserError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# safetensors hides the number in a text, torch.save notices by the place it stands at in its file
_FULL_TEXT = re.compile(rf"\(os error ({'|'.join(map(str, _FULL))})\)")
_TORCH_WRITER = re.compile(r"inline_container\.cc.*unexpected pos|PytorchStreamWriter failed writing", re.DOTALL)
_NO_HOST_MEMORY = "DefaultCPUAllocator: can't allocate memory"
_PEER_GONE = re.compile(
    r"Connection (closed|reset) by peer|Broken pipe|remote process exited|NCCL communicator was aborted"
)
# The methods that read a checkpoint, Transformers' and our trainers' own
LOADERS = {"_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_rng_state", "_load_scaler",
           "_load_callback_state", "_init_training_state", "load_from_json"}  # fmt: skip
STEPPER = "accelerate.optimizer"  # what calls the trainer's own optimizer
# Whose states are looked into by name
OPTIMIZERS = ("torch.optim.", "bitsandbytes.optim.", "transformers.optimization")
_LENGTHS = ("response_length", "max_completion_length", "max_length")  # the first that a configuration has


class LostProcessError(UserError):
    """Another process of this run is gone."""


@contextmanager
def telling_failures(trainer: Any, checkpoint: str | None = None) -> Iterator[None]:
    """Around training and saving: a `UserError` that says what happened and how to go on. Other exceptions pass.

    Args:
        checkpoint: the folder that training goes on from.
    Raises:
        UserError: memory of a GPU or of the machine ran out; the disk is full; another process of the run is gone; the
            checkpoint cannot be loaded.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        known = isinstance(error, RuntimeError | OSError | MemoryError | SafetensorError)
        told = (_told(error, trainer) if known else None) or _not_loaded(error, trainer, checkpoint)
        if told is None:
            raise
        raise told from error


def _told(error: BaseException, trainer: Any) -> UserError | None:
    args = getattr(trainer, "args", None)
    folder = str(getattr(args, "output_dir", "."))
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or _NO_HOST_MEMORY in str(error):
        return UserError(f"{_where(trainer)}: {_first_sentences(error)} {_advice(trainer)} {to_go_on(trainer)}")
    if _is_disk_full(error):
        disk = _disk(folder, getattr(args, "save_total_limit", None))
        return UserError(f"{_where(trainer, saving=True)}: {disk} {to_go_on(trainer)}")
    if _several() and _PEER_GONE.search(str(error)):
        return LostProcessError(f"{_where(trainer)}: {lost_process()} {to_go_on(trainer)}")
    return None


def _not_loaded(error: Exception, trainer: Any, checkpoint: str | None) -> UserError | None:
    if checkpoint is None:
        return None
    modules = []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        name, module = frame.f_code.co_name, str(frame.f_globals.get("__name__"))
        modules.append(module)
        if name in LOADERS and module.startswith(("transformers.", "trl_ext.")):
            options = ", optim or lr_scheduler_type" if name == "_load_optimizer_and_scheduler" else ""
            return UserError(
                f"cannot load {checkpoint}: {type(error).__name__} in {name}: {_first_sentences(error)} A file of it "
                f"is broken, or of another model{options or ' or version'}: resume from another checkpoint, or drop "
                "resume_from_checkpoint."
            )
    # A state of another optimizer is loaded without a word, and its names are missed in the first step
    missed = isinstance(error, KeyError) and STEPPER in modules and modules[-1].startswith(OPTIMIZERS)
    if missed and trainer.state.global_step == saved_step(Path(checkpoint)):
        return UserError(
            f"cannot go on from {checkpoint}: the state of its optimizer has no {error}. Set optim (now "
            f"{getattr(trainer.args.optim, 'value', trainer.args.optim)}) as it was, or drop resume_from_checkpoint."
        )
    return None


def to_go_on(trainer: Any) -> str:
    """The sentence for the end of a message, with the checkpoint that `resume_from_checkpoint: true` would take."""
    folder = str(getattr(getattr(trainer, "args", None), "output_dir", "."))
    return how_to_go_on(folder, getattr(trainer, "checkpoint_files", ()))


def lost_process() -> str:
    return (
        "another process of this run is gone. What ended it stands in the log; with exit code -9 it was killed, by "
        "hand or by the kernel because the machine's memory was full (dmesg)."
    )


def _where(trainer: Any, saving: bool = False) -> str:
    done = getattr(getattr(trainer, "state", None), "global_step", 0)
    return (f"failed after step {done}" if saving else f"failed in step {done + 1}") + (
        f", process {os.environ.get('RANK', '0')}" if _several() else ""
    )


def _several() -> bool:
    return int(os.environ.get("WORLD_SIZE", 1)) > 1


def _first_sentences(error: BaseException, limit: int = 160) -> str:
    """How much was asked for and what the card has; not the advice about PyTorch's allocator."""
    text = " ".join(str(error).split()) or "the machine's memory is full"
    text = text.partition(" In PyTorch 2.6, we changed the default")[0]  # what follows is advice to unpickle it
    text = text if len(text) <= limit else text[:limit].rpartition(". ")[0] or text[:limit]
    return text.rstrip(".") + "."


def _advice(trainer: Any) -> str:
    """The options that are not at their least already, the cheapest first."""
    args = getattr(trainer, "args", None)
    options = []
    size = getattr(args, "per_device_train_batch_size", 1)
    if size > 1:
        options.append(f"per_device_train_batch_size (now {size}; raise gradient_accumulation_steps in turn)")
    options += [f"{name} (now {getattr(args, name)})" for name in _LENGTHS if getattr(args, name, None)][:1]
    lower = f"Lower {', '.join(options)}" if options else ""
    if not getattr(args, "gradient_checkpointing", True):
        lower += ("; or take " if lower else "Take ") + "gradient_checkpointing: true"
    if getattr(args, "fast_generation", False):
        lower += f"{'; or drop' if lower else 'Drop'} fast_generation (two bytes a weight, and a cache)"
    take = []
    if not hasattr(getattr(trainer, "model", None), "peft_config"):
        take.append("use_peft: true")
    if not (getattr(trainer, "is_fsdp_enabled", False) or getattr(trainer, "is_deepspeed_enabled", False)):
        take.append("several GPUs with accelerate_configs/fsdp2.yaml")
    anew = f"{' or '.join(take)} would begin anew from the weights." if take else ""
    return " ".join(filter(None, (lower and f"{lower}.", anew)))


def _is_disk_full(error: BaseException) -> bool:
    return (
        getattr(error, "errno", None) in _FULL
        or _FULL_TEXT.search(str(error)) is not None
        or _TORCH_WRITER.search(str(error)) is not None
    )


def _disk(folder: str, save_total_limit: int | None) -> str:
    there = next(path for path in (Path(folder).absolute(), *Path(folder).absolute().parents) if path.exists())
    text = (
        f"a file could not be written to its end: {shutil.disk_usage(there).free / 1e6:,.0f} MB are free in {folder}."
    )
    half = [path.name for path in checkpoints(folder) if not is_whole(path)]
    if half:
        text += f" {half[-1]} is half written: no resume takes it, delete it."
    limit = "lower" if save_total_limit else "set"
    return f"{text} Make room, or {limit} save_total_limit (older checkpoints go once a new one is whole)."
