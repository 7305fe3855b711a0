"""Processes, engines and quantization that do not go together: one line, before anything is loaded."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import FullyShardedDataParallelPlugin
from torch.distributed.fsdp.fully_sharded_data_parallel import StateDictType
from torchrun import torchrun
from transformers import AutoModelForCausalLM
from trl import ModelConfig, RewardConfig, SFTConfig

from trl_ext import UserError, tiny
from trl_ext.configuration import engines, init_kwargs, parse

ROOT = Path(__file__).parents[2]
ENGINES = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED",
           "ACCELERATE_USE_CPU", "FSDP_VERSION", "FSDP_STATE_DICT_TYPE",
           "CUDA_VISIBLE_DEVICES")  # fmt: skip
FSDP2 = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT"}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in ENGINES:
        monkeypatch.delenv(name, raising=False)


def launched(monkeypatch, processes=1, **environment):
    monkeypatch.setattr(engines, "SHARDS_ON_THE_CPU", True)
    names = {"LOCAL_RANK": 0, "RANK": 0, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, **environment}
    for name, value in names.items():
        monkeypatch.setenv(name, str(value))


def training(folder, **options):
    """Made before the environment speaks of processes, since it would join them."""
    return SFTConfig(str(folder), report_to="none", bf16=False, use_cpu=True, **options)


@pytest.mark.parametrize(("devices", "visible", "named"), [
    (2, None, "8 processes were started on a machine with 2 GPUs, and each needs its own: set --num_processes 2"),
    (1, "3", "with 1 GPU (CUDA_VISIBLE_DEVICES=3), and each needs its own: set --num_processes 1"),
    (0, None, "8 processes were started, and torch .* finds no GPU: add --use_cpu .* accelerate_configs/cpu.yaml"),
])  # fmt: skip
def test_processes_without_a_gpu_each_are_told_before_one_is_taken(tmp_path, monkeypatch, devices, visible, named):
    launched(monkeypatch, processes=8, **({"CUDA_VISIBLE_DEVICES": visible} if visible else {}))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: devices)
    with pytest.raises(UserError, match=named.replace("(", r"\(").replace(")", r"\)")):
        parse((SFTConfig, ModelConfig), ["--output_dir", str(tmp_path)])


@pytest.mark.parametrize(("devices", "here", "world", "use_cpu"), [
    (8, 8, 8, False), (8, 8, 64, False), (8, 2, 2, False), (0, 1, 1, False), (0, 8, 8, True), (2, 8, 8, True),
])  # fmt: skip
def test_processes_that_fit_pass(monkeypatch, devices, here, world, use_cpu):
    launched(monkeypatch, processes=world, LOCAL_WORLD_SIZE=here)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: devices)
    with engines.telling_engines(use_cpu):
        pass


def test_deepspeed_that_is_asked_for_and_missing_is_named(tmp_path):
    (tmp_path / "zero.json").write_text('{"zero_optimization": {"stage": 2}}')
    with pytest.raises(UserError, match=r"DeepSpeed is asked for and not installed: pip install deepspeed, or take"):
        parse((SFTConfig,), ["--output_dir", str(tmp_path), "--use_cpu", "--deepspeed", str(tmp_path / "zero.json")])


def test_another_missing_module_keeps_its_own_words():
    with pytest.raises(ImportError, match="no wandb"), engines.telling_engines(False):
        raise ImportError("no wandb")


def test_two_engines_are_one_too_many(monkeypatch):
    launched(monkeypatch, ACCELERATE_USE_DEEPSPEED="true")
    args = SFTConfig.__new__(SFTConfig)
    args.fsdp, args.deepspeed = True, None
    with pytest.raises(UserError, match="set fsdp, and the Accelerate configuration is one of DeepSpeed: drop one"):
        engines.check_engine((args,))
    monkeypatch.delenv("ACCELERATE_USE_DEEPSPEED")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    args.fsdp, args.deepspeed = None, {"zero_optimization": {"stage": 2}}
    with pytest.raises(UserError, match="set deepspeed, and the Accelerate configuration is one of FSDP: drop one"):
        engines.check_engine((args,))


def test_an_engine_without_processes_names_the_command(tmp_path):
    with pytest.raises(UserError, match=r"drop fsdp and start with accelerate launch --config_file .*fsdp2.yaml"):
        engines.check_engine((training(tmp_path, fsdp=True),))


@pytest.mark.parametrize(("change", "named"), [
    ({"FSDP_VERSION": "1"}, "set fsdp_version: 2"),
    ({"FSDP_VERSION": ""}, "set fsdp_version: 2"),  # Accelerate's default is 1
    ({"FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT"}, "SHARDED_STATE_DICT the trained model is saved without weights"),
    ({"FSDP_STATE_DICT_TYPE": ""}, "set FULL_STATE_DICT"),  # Accelerate's default of version 2
])  # fmt: skip
def test_an_fsdp_that_would_lose_weights_is_refused(tmp_path, monkeypatch, change, named):
    args = training(tmp_path)
    launched(monkeypatch, **FSDP2)
    engines.check_engine((args,))
    for name, value in change.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=named):
        engines.check_engine((args,))


def test_options_of_the_trainer_are_looked_at_like_those_of_accelerate(tmp_path, monkeypatch):
    whole = training(tmp_path, fsdp=True)
    sharded = training(tmp_path, fsdp=True, fsdp_config={"state_dict_type": "SHARDED_STATE_DICT"})
    launched(monkeypatch)
    engines.check_engine((whole,))
    with pytest.raises(UserError, match="SHARDED_STATE_DICT"):
        engines.check_engine((sharded,))


@pytest.mark.parametrize(("stage", "gather", "fine"), [(2, False, True), (3, True, True), (3, False, False)])
def test_zero3_that_would_save_no_weights_is_refused(tmp_path, stage, gather, fine):
    args = training(tmp_path)
    config = {"zero_optimization": {"stage": stage, "stage3_gather_16bit_weights_on_model_save": gather}}
    args.deepspeed_plugin = SimpleNamespace(zero_stage=stage, hf_ds_config=SimpleNamespace(config=config))
    if fine:
        engines.check_engine((args,))
    else:
        with pytest.raises(UserError, match="zero3_save_16bit_model: true"):
            engines.check_engine((args,))


def test_accelerates_own_defaults_are_those_that_are_assumed(monkeypatch):
    assert FullyShardedDataParallelPlugin().fsdp_version == 1
    monkeypatch.setenv("FSDP_VERSION", "2")
    assert FullyShardedDataParallelPlugin().state_dict_type == StateDictType.SHARDED_STATE_DICT


def test_a_model_that_a_trainer_loads_is_laid_over_gpus_only_by_one_process_that_has_several(tmp_path):
    """TRL's `device_map="auto"` gave each process of FSDP a reference on all GPUs, and one GPU other new weights."""
    args, model_args = training(tmp_path), ModelConfig(dtype="float32")
    assert init_kwargs(args, model_args)["device_map"] is None
    assert "device_map" not in init_kwargs(SimpleNamespace(n_gpu=4, model_init_kwargs=None), model_args)
    own = SimpleNamespace(n_gpu=1, model_init_kwargs={"device_map": {"": 1}})
    assert init_kwargs(own, model_args)["device_map"] == {"": 1}


@pytest.mark.parametrize("option", ["load_in_4bit", "load_in_8bit"])
def test_quantized_weights_train_only_with_an_adapter(option, tmp_path):
    engines.check_engine((training(tmp_path), ModelConfig(use_peft=True, **{option: True})))
    with pytest.raises(UserError, match=f"{option} leaves weights .* set use_peft: true .* or drop {option}"):
        engines.check_engine((training(tmp_path), ModelConfig(**{option: True})))
    engines.check_engine((ModelConfig(**{option: True}),))  # recipes/compare.py trains nothing


@pytest.mark.parametrize("option", ["load_in_4bit", "load_in_8bit"])
def test_a_quantized_reward_model_without_mixed_precision_is_refused(option, tmp_path):
    model_args = ModelConfig(use_peft=True, **{option: True})
    args = [RewardConfig(str(tmp_path), report_to="none", bf16=bf16, use_cpu=True) for bf16 in (True, False)]
    engines.check_engine((args[0], model_args))
    with pytest.raises(UserError, match=f"{option} .* set bf16: true"):
        engines.check_engine((args[1], model_args))
    engines.check_engine((args[1], ModelConfig(use_peft=True)))


def test_a_quantized_model_with_an_adapter_of_its_own_passes(tmp_path):
    from peft import LoraConfig, get_peft_model

    model = AutoModelForCausalLM.from_pretrained(tiny.resolve(tiny.NAME))
    get_peft_model(model, LoraConfig(target_modules="all-linear")).save_pretrained(tmp_path / "adapter")
    adapter = ModelConfig(model_name_or_path=str(tmp_path / "adapter"), load_in_4bit=True)
    engines.check_engine((training(tmp_path), adapter))
    with pytest.raises(UserError, match="use_peft"):
        engines.check_engine((training(tmp_path), ModelConfig(model_name_or_path=tiny.NAME, load_in_4bit=True)))


@pytest.mark.parametrize(("options", "named"), [
    ({"load_in_4bit": True, "dtype": "bfloat16"}, "they are bfloat16 and uint8"),
    ({"load_in_4bit": True, "dtype": "float32", "bnb_4bit_quant_storage": "bfloat16"}, "they are float32 and bfloat16"),
    ({"load_in_4bit": True, "dtype": "auto"}, "they are auto and uint8"),
    ({"load_in_8bit": True}, "FSDP cannot divide weights of load_in_8bit"),
    ({"load_in_4bit": True, "dtype": "bfloat16", "bnb_4bit_quant_storage": "bfloat16"}, None),
])  # fmt: skip
def test_fsdp_divides_quantized_weights_that_are_stored_as_the_others(tmp_path, monkeypatch, options, named):
    args, model_args = SFTConfig(str(tmp_path), bf16=False, use_cpu=True), ModelConfig(use_peft=True, **options)
    engines.check_engine((args, model_args))  # without FSDP
    launched(monkeypatch, **FSDP2)
    if named is None:
        engines.check_engine((args, model_args))
    else:
        with pytest.raises(UserError, match=named):
            engines.check_engine((args, model_args))


def test_what_all_processes_find_is_said_once():
    command = torchrun(ROOT / "recipes" / "sft.py", "--config", ROOT / "recipes" / "sft.yaml")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode != 0
    assert len(lines) == 1
    assert "2 processes were started, and torch" in lines[0]


def test_an_engine_on_the_cpu_is_refused_where_accelerate_would_not_divide(tmp_path, monkeypatch):
    args = training(tmp_path)
    launched(monkeypatch, **FSDP2)
    engines.check_engine((args,))
    monkeypatch.setattr(engines, "SHARDS_ON_THE_CPU", False)
    with pytest.raises(UserError, match=r"FSDP .* on the CPU Accelerate trains it whole .*multi_gpu\.yaml"):
        engines.check_engine((args,))
    args.use_cpu = False
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 0)  # one process, which looks for a GPU in vain
    with pytest.raises(UserError, match=r"FSDP .* on the CPU Accelerate trains it whole .*cpu\.yaml"):
        engines.check_engine((args,))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    engines.check_engine((args,))
    monkeypatch.delenv("ACCELERATE_USE_FSDP")
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    args.use_cpu = True
    with pytest.raises(UserError, match=r"DeepSpeed .* on the CPU Accelerate trains it whole"):
        engines.check_engine((args,))
