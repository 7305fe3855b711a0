import os
import subprocess
import sys
from pathlib import Path

import pytest
from accelerate import FullyShardedDataParallelPlugin
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
from torch.distributed.fsdp.fully_sharded_data_parallel import StateDictType

FOLDER = Path(__file__).parents[1] / "accelerate_configs"
# What `accelerate launch` makes of each file: (kind, processes, on the CPU, the GPUs it may see).
EXPECTED = {
    "cpu.yaml": ("NO", 1, True, None),
    "single_gpu.yaml": ("NO", 1, False, "0"),
    "multi_gpu.yaml": ("MULTI_GPU", 2, False, "all"),
    "fsdp2.yaml": ("FSDP", 2, False, "all"),
    "zero2.yaml": ("DEEPSPEED", 2, False, "all"),
    "zero3.yaml": ("DEEPSPEED", 2, False, "all"),
}
SCRIPT = """
import sys, torch
from accelerate import PartialState
print(PartialState().num_processes, PartialState().device, torch.get_num_threads(), sys.argv[1:])
"""


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.yaml")))
def test_accelerates_own_loader_reads_every_file_as_meant(name):
    config = load_config_from_file(str(FOLDER / name))  # raises on a key that Accelerate does not know
    assert name in EXPECTED, f"say in EXPECTED what {name} is for"
    kind, processes, use_cpu, gpu_ids = EXPECTED[name]
    assert (config.distributed_type.value, config.num_processes) == (kind, processes)
    assert (config.use_cpu, config.gpu_ids) == (use_cpu, gpu_ids)
    assert config.num_machines == 1


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_precision_is_left_to_the_trainer(name):
    # An Accelerate precision other than "no" would win over `bf16: false` in a training configuration.
    assert load_config_from_file(str(FOLDER / name)).mixed_precision == "no"


def test_launch_on_the_cpu_gives_one_process_the_threads_asked_for(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(FOLDER / "cpu.yaml")]
    command += ["--num_cpu_threads_per_process", "1", str(script), "--seed", "1"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "MKL_"))}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2] == "1 cpu 1 ['--seed', '1']"
    assert "had defaults used instead" not in done.stderr


def launched(name):
    """What `accelerate launch` has parsed, of the file alone."""
    words = ["--config_file", str(FOLDER / name), "script.py"]
    return _validate_launch_command(launch_command_parser().parse_args(words))[0]


def test_the_plugin_that_fsdp2_becomes_shards_by_blocks_and_saves_what_from_pretrained_loads(monkeypatch):
    for key, value in prepare_multi_gpu_env(launched("fsdp2.yaml")).items():
        monkeypatch.setenv(key, value)
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is True
    assert plugin.state_dict_type == StateDictType.FULL_STATE_DICT
    assert plugin.cpu_ram_efficient_loading is False
    assert plugin.auto_wrap_policy.__name__ == "transformer_auto_wrap_policy"
    assert plugin.transformer_cls_names_to_wrap is None  # each architecture names its own blocks


@pytest.mark.parametrize(("name", "stage"), [("zero2.yaml", "2"), ("zero3.yaml", "3")])
def test_what_deepspeed_is_told_is_the_stage_and_to_save_whole_weights(name, stage):
    args = launched(name)
    args.deepspeed_fields_from_accelerate_config = ""
    _, environment = prepare_deepspeed_cmd_env(args)
    assert environment["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == stage
    assert environment.get("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "false") == str(stage == "3").lower()
    assert environment["ACCELERATE_DEEPSPEED_ZERO3_INIT"] == str(stage == "3").lower()
    assert environment["ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE"] == "none"
