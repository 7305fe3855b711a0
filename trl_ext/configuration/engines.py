"""How a run is spread over processes: what would fail late, or in silence, is told before anything loads."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.utils.peft_utils import find_adapter_config_file
from trl import ModelConfig, RewardConfig

from .. import tiny
from ..errors import UserError

_FSDP2 = "accelerate launch --config_file accelerate_configs/fsdp2.yaml"
SHARDS_ON_THE_CPU = False  # tests/benchmarks/scale/gloo_engines.py teaches Accelerate to
_FLOATS = ("bfloat16", "float16", "float32")  # bitsandbytes packs 4-bit weights into uint8 unless told otherwise


@contextmanager
def telling_engines(use_cpu: bool) -> Iterator[None]:
    """Around the making of training arguments, which starts the process group and takes a GPU.

    Args:
        use_cpu: whether the options ask for the CPU.
    Raises:
        UserError: more processes than GPUs, several processes without any, or DeepSpeed that is not installed.
    """
    _check_devices(use_cpu or _is_true("ACCELERATE_USE_CPU"))
    try:
        yield
    except ImportError as error:  # of Transformers, which says that a distribution is missing
        if "deepspeed" not in str(error).lower():
            raise
        raise UserError(
            "DeepSpeed is asked for and not installed: pip install deepspeed, or take accelerate_configs/fsdp2.yaml, "
            "which needs no more than torch"
        ) from error


def check_engine(options: tuple[Any, ...]) -> None:
    """What the parsed options and the Accelerate configuration say of sharding and quantization, taken together.

    Args:
        options: instances of dataclasses, of which `TrainingArguments` and TRL's `ModelConfig` count.
    Raises:
        UserError: two engines, one without processes, one that `save_model` would write no weights of, or quantized
            weights that cannot be trained or divided.
    """
    args = next((each for each in options if isinstance(each, TrainingArguments)), None)
    model_args = next((each for each in options if isinstance(each, ModelConfig)), None)
    if args is None:  # nothing is trained
        return
    if model_args is not None:
        _check_quantized(model_args)
        _check_quantized_head(args, model_args)
    _check_one_engine(args)
    _check_zero3(args)
    fsdp = _fsdp_of(args)
    if fsdp is not None:
        _check_fsdp(fsdp)
        if model_args is not None:
            _check_quantized_shards(model_args)


def _check_devices(use_cpu: bool) -> None:
    here, world = (int(os.environ.get(name, 1)) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    if use_cpu or "LOCAL_RANK" not in os.environ:
        return
    devices = torch.accelerator.device_count()
    if devices == 0 and world > 1:  # each would train for itself, and all would write into one folder
        raise UserError(
            f"{world} processes were started, and torch {torch.__version__} finds no GPU: add --use_cpu to train with "
            "them on the CPU, or take accelerate_configs/cpu.yaml for one process"
        )
    if 0 < devices < here:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise UserError(
            f"{here} processes were started on a machine with {devices} GPU{'s' * (devices > 1)}"
            + (f" (CUDA_VISIBLE_DEVICES={visible})" if visible else "")
            + f", and each needs its own: set --num_processes {devices}"
        )


def _check_one_engine(args: TrainingArguments) -> None:
    on_the_cpu = args.use_cpu or not torch.accelerator.device_count()
    for engine in ("FSDP", "DeepSpeed"):
        if on_the_cpu and _is_true(f"ACCELERATE_USE_{engine.upper()}") and not SHARDS_ON_THE_CPU:
            raise UserError(
                f"{engine} divides a model over GPUs; on the CPU Accelerate trains it whole in each process: take "
                "accelerate_configs/cpu.yaml, or multi_gpu.yaml with use_cpu for several processes"
            )
    for option, asked, other, engine in (
        ("fsdp", args.fsdp, "DEEPSPEED", "DeepSpeed"),
        ("deepspeed", args.deepspeed, "FSDP", "FSDP"),
    ):
        if not asked:
            continue
        if _is_true(f"ACCELERATE_USE_{other}"):
            raise UserError(
                f"the training options set {option}, and the Accelerate configuration is one of {engine}: drop one"
            )
        if "LOCAL_RANK" not in os.environ:
            raise UserError(
                f"{option} divides a model over processes, and there is one: drop {option} and start with {_FSDP2}"
            )


def _check_zero3(args: TrainingArguments) -> None:
    plugin = getattr(args, "deepspeed_plugin", None)
    if plugin is None or plugin.zero_stage != 3:
        return
    if not plugin.hf_ds_config.config["zero_optimization"].get("stage3_gather_16bit_weights_on_model_save"):
        raise UserError(
            "ZeRO-3 as it is set saves no weights that from_pretrained could load: set zero3_save_16bit_model: true, "
            "as accelerate_configs/zero3.yaml does (in a JSON of DeepSpeed stage3_gather_16bit_weights_on_model_save)"
        )


def _fsdp_of(args: TrainingArguments) -> dict[str, str] | None:
    """Version and state dict of FSDP, in the names of Accelerate's configuration; None without FSDP."""
    names = ("version", "state_dict_type")
    if args.fsdp:
        plugin = {"version": args.fsdp_plugin_args.get("fsdp_version"), **args.fsdp_plugin_args}
        return {name: str(plugin[name]) for name in names}
    if not _is_true("ACCELERATE_USE_FSDP"):
        return None
    found = {name: os.environ.get(f"FSDP_{name.upper()}", "") for name in names}
    version = found["version"] or "1"  # as Accelerate reads them
    usual = "FULL_STATE_DICT" if version == "1" else "SHARDED_STATE_DICT"
    return {**found, "version": version, "state_dict_type": found["state_dict_type"] or usual}


def _check_fsdp(fsdp: dict[str, str]) -> None:
    if fsdp["version"] != "2":
        raise UserError(
            "FSDP 1 keeps weights in a form that reference, value function and fast generation cannot follow: set "
            "fsdp_version: 2, as accelerate_configs/fsdp2.yaml does"
        )
    if "FULL_STATE_DICT" not in fsdp["state_dict_type"]:
        raise UserError(
            f"with fsdp_state_dict_type: {fsdp['state_dict_type']} the trained model is saved without weights: set "
            "FULL_STATE_DICT, as accelerate_configs/fsdp2.yaml does"
        )


def _check_quantized(model_args: ModelConfig) -> None:
    if model_args.use_peft or not (model_args.load_in_4bit or model_args.load_in_8bit):
        return
    option = "load_in_4bit" if model_args.load_in_4bit else "load_in_8bit"
    name = model_args.model_name_or_path
    if name and find_adapter_config_file(tiny.resolve(name)) is not None:  # an adapter, which trains
        return
    raise UserError(
        f"{option} leaves weights that cannot be trained: set use_peft: true to train a LoRA adapter on them, or drop "
        f"{option}"
    )


def _check_quantized_head(args: TrainingArguments, model_args: ModelConfig) -> None:
    """TRL makes the norms of quantized weights float32 and leaves a reward model's head; autocast reconciles them."""
    if isinstance(args, RewardConfig) and not (args.bf16 or args.fp16):
        for option in ("load_in_4bit", "load_in_8bit"):
            if getattr(model_args, option):
                raise UserError(f"a reward model with {option} trains in mixed precision alone: set bf16: true")


def _check_quantized_shards(model_args: ModelConfig) -> None:
    if model_args.load_in_8bit:
        raise UserError(
            "FSDP cannot divide weights of load_in_8bit: take load_in_4bit with bnb_4bit_quant_storage: bfloat16 and "
            "dtype: bfloat16, or accelerate_configs/multi_gpu.yaml, which holds the model whole on each GPU"
        )
    storage, dtype = model_args.bnb_4bit_quant_storage, model_args.dtype
    if model_args.load_in_4bit and (storage not in _FLOATS or (dtype in _FLOATS and storage != dtype)):
        raise UserError(
            f"FSDP divides 4-bit weights only if they are stored in the dtype of the others: set dtype: bfloat16 and "
            f"bnb_4bit_quant_storage: bfloat16 (they are {dtype} and {storage or 'uint8'}), or take "
            "accelerate_configs/multi_gpu.yaml, which holds the model whole on each GPU"
        )


def _is_true(name: str) -> bool:
    return os.environ.get(name, "false").lower() in ("1", "true", "yes")
