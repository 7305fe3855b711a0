"""What Transformers would build from config.json is the oracle: what `from_pretrained` says of the same folder."""

import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.checkpoints.test_health_of_healthy import MODELS, SMALL
from tests.checkpoints.written import (
    TINY,
    WEIGHTS,
    edit_json,
    edit_weights,
    policy,
    rules_of,
    saved_adapter,
    saved_policy,
    saved_reward_model,
)
from trl_ext.checkpoints import architecture_process
from trl_ext.checkpoints.architecture import architecture_of
from trl_ext.checkpoints.health.judging import judge

ROOT = Path(__file__).parents[2]
PROJECTION = "model.layers.0.self_attn.q_proj.weight"


def without(*parts):
    return lambda tensors: [tensors.pop(name) for name in list(tensors) if any(part in name for part in parts)]


def renamed(change):
    def edit(tensors):
        for name in list(tensors):
            tensors[change(name)] = tensors.pop(name)

    return edit


def scaled(part, times):
    return lambda tensors: [tensor.mul_(times) for name, tensor in tensors.items() if part in name]


FAULTS = {
    "the last norm lost": (without("model.norm."), "tensors_lost", "error"),
    "a weight lost in all layers": (without("q_proj.weight"), "tensors_lost", "error"),
    "a weight lost in half of the layers": (without("0.self_attn.q", "1.self_attn.q"), "tensors_lost", "error"),
    "names of DataParallel": (renamed(lambda name: "module." + name), "names_wrapped", "critical"),
    "names of torch.compile": (renamed(lambda name: "_orig_mod." + name), "names_wrapped", "critical"),
    "names of PEFT": (renamed(lambda name: "base_model.model." + name), "names_wrapped", "critical"),
    "an adapter not merged": (
        renamed(lambda name: name.replace("q_proj.weight", "q_proj.base_layer.weight")), "names_wrapped", "critical"),
    "names of FSDP": (
        renamed(lambda name: name.replace("layers.0.", "layers.0._fsdp_wrapped_module.")), "names_wrapped", "critical"),
    "one rank's half": (
        lambda tensors: tensors.update({name: tensor[: len(tensor) // 2].clone() for name, tensor in tensors.items()
                                        if "q_proj.weight" in name}), "shape_disagrees", "error"),
    "a tensor too many": (
        lambda tensors: tensors.update({"model.extra": torch.ones(3)}), "tensors_unexpected", "info"),
    "a tensor too many in a layer": (
        lambda tensors: tensors.update({"model.layers.0.extra": torch.ones(3)}), "tensors_unexpected", "warning"),
    "all weights scaled": (scaled("", 1e3), "weight_scale", "warning"),
    "norms scaled": (scaled("norm", 1e4), "weight_scale", "warning"),
    "one layer scaled": (scaled(PROJECTION, 50), "weight_outlier", "warning"),
    "a norm of zeros": (scaled("model.norm", 0), "zero_norm", "warning"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_is_the_only_one(name, tmp_path):
    change, rule, severity = FAULTS[name]
    saved_policy(tmp_path)
    edit_weights(tmp_path, change)
    assert rules_of(tmp_path) == {rule: severity}


@pytest.mark.parametrize(
    "changed", [{"intermediate_size": 77}, {"num_key_value_heads": 1}, {"max_position_embeddings": 7}]
)
def test_a_configuration_of_another_model_is_found(changed, tmp_path):
    saved_policy(tmp_path)
    edit_json(tmp_path, "config.json", **changed)
    expected = {} if "max_position_embeddings" in changed else {"shape_disagrees": "error"}  # of no weight
    assert rules_of(tmp_path) == expected


@pytest.mark.parametrize("change", [without("model.norm."), without("mlp.up_proj", "input_layernorm")])
def test_missing_tensors_are_those_that_transformers_names(change, tmp_path):
    saved_policy(tmp_path)
    edit_weights(tmp_path, change)
    _, said = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    found = judge(tmp_path)
    (finding,) = found.findings
    assert finding.numbers["count"] == len(said["missing_keys"])
    assert set(finding.numbers["tensors"]) <= set(said["missing_keys"])


@pytest.mark.parametrize("name", MODELS)
def test_a_model_lacks_nothing_and_has_nothing_more(name, tmp_path):
    """Also of those whose experts are stored one by one, and of tied weights."""
    AutoModelForCausalLM.from_config(MODELS[name]).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    shapes = {name: tuple(tensor.shape) for name, tensor in load_file(tmp_path / WEIGHTS).items()}
    found = architecture_of(config).compared(shapes)
    assert (found.missing, found.unexpected, found.reshaped, found.wrapped) == ([], [], {}, [])


def test_the_inner_model_of_an_architecture_may_be_saved_alone(tmp_path):
    """`from_pretrained` of the whole puts the prefix in front, and lacks the head, which has a rule of its own."""
    config = transformers.LlamaConfig(**SMALL)
    transformers.LlamaForCausalLM(config).model.save_pretrained(tmp_path)
    edit_json(tmp_path, "config.json", architectures=["LlamaForCausalLM"])
    found = judge(tmp_path)
    assert {f.rule for f in found.findings} == {"head_missing"}


def test_names_of_old_norms_are_no_fault(tmp_path):
    """Transformers renames gamma and beta."""
    config = transformers.BertConfig(**SMALL)
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path)
    edit_weights(
        tmp_path,
        renamed(lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("Norm.bias", "Norm.beta")),
    )
    assert not judge(tmp_path).findings


def test_files_of_others_beside_are_not_the_model(tmp_path):
    """Mistral's own format repeats all weights under other names."""
    saved_policy(tmp_path)
    (tmp_path / "consolidated.safetensors").write_bytes((tmp_path / WEIGHTS).read_bytes())
    edit_weights(tmp_path, renamed(lambda name: name.replace("model.", "")), "consolidated.safetensors")
    assert not judge(tmp_path).findings


def test_heads_and_adapters_are_judged_by_rules_of_their_own(tmp_path):
    saved_reward_model(tmp_path / "reward")
    edit_weights(tmp_path / "reward", without("score."))
    assert rules_of(tmp_path / "reward") == {"value_head_missing": "critical"}
    saved_adapter(tmp_path / "adapter")
    assert judge(tmp_path / "adapter").measured.tensors and "tensors_lost" not in rules_of(tmp_path / "adapter")


def test_building_draws_no_number_and_holds_no_memory():
    config = {**transformers.LlamaConfig(num_hidden_layers=48, hidden_size=8192).to_dict(),
              "architectures": ["LlamaForCausalLM"]}  # fmt: skip
    before, device = torch.get_rng_state(), torch.get_default_device()
    built = []
    thread = threading.Thread(target=lambda: built.append(architecture_of(config)))  # as in the callback
    thread.start()
    thread.join()
    assert built[0] is not None
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_default_device() == device


def test_more_layers_than_can_be_built_in_a_moment_are_not_built():
    llama = {
        **transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": 1}).to_dict(),
        "architectures": ["LlamaForCausalLM"],
    }
    assert architecture_of(llama) is not None
    assert architecture_of({**llama, "num_hidden_layers": 2001}) is None


QWEN = json.loads((TINY / "config.json").read_text())


@pytest.mark.parametrize(
    "changed",
    [
        {"num_hidden_layers": 10**9}, {"num_hidden_layers": 10**400}, {"architectures": ["os.system"]},
        {"architectures": ["AutoConfig"]}, {"architectures": ["Trainer"]}, {"architectures": []}, {"model_type": "x"},
        {"model_type": ["qwen2"]}, {"use_timm_backbone": True},
        {"architectures": ["LlamaForCausalLM"]}, {"vocab_size": 2**40}, {"num_labels": 3 * 10**7},
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_be_built_says_nothing(changed, caplog):
    with caplog.at_level(logging.WARNING, logger="trl_ext"):
        assert architecture_of({**QWEN, **changed}) is None
    assert not caplog.records


@pytest.mark.parametrize(
    "changed",
    [
        {"auto_map": {"AutoModelForCausalLM": "evil--model.Model"}}, {"attn_implementation": "evil/kernel"},
        {"_attn_implementation": "evil/kernel"}, {"_attn_implementation_internal": "evil/kernel"},
        {"experts_implementation": "evil/kernel"}, {"_name_or_path": "evil/model"},
    ],
)  # fmt: skip
def test_code_that_a_configuration_names_is_not_looked_for(changed, monkeypatch):
    from huggingface_hub import constants

    def fetch(*_, **__):
        raise AssertionError("fetched")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", fetch)
    monkeypatch.setattr("transformers.modeling_utils.load_and_register_attn_kernel", fetch, raising=False)
    assert architecture_of({**QWEN, **changed}) is not None


def test_a_shared_storage_is_no_tensor_too_many(tmp_path):
    """torch.save keeps a tied head and its embedding as one."""
    model = policy()
    saved_policy(tmp_path)
    (tmp_path / WEIGHTS).unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    assert "lm_head.weight" in model.state_dict()
    assert {f.rule for f in judge(tmp_path, TINY).findings} == {"nothing_moved"}


def test_a_configuration_that_contradicts_itself_is_told(tmp_path):
    config = transformers.LlamaConfig(**SMALL)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    edit_json(tmp_path, "config.json", num_attention_heads=7)
    assert rules_of(tmp_path) == {"config_contradiction": "warning"}


def test_remote_code_may_be_named_as_transformers_names_its_own(tmp_path):
    saved_policy(tmp_path)
    edit_weights(tmp_path, renamed(lambda name: name.replace("q_proj", "qkv_proj")))
    edit_json(tmp_path, "config.json", auto_map={"AutoModelForCausalLM": "modeling.Qwen2ForCausalLM"})
    assert not judge(tmp_path).findings


def test_a_builder_that_takes_too_long_or_dies_is_ended_and_the_next_question_is_answered(monkeypatch):
    builder = architecture_process._Builder()
    question = json.dumps([QWEN, {"model.norm.weight": [128]}])
    assert builder.ask(question)["missing"]
    builder._process.kill()
    builder._process.wait()
    assert builder.ask(question)["missing"]
    hanging = ["python", "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(architecture_process, "_SECONDS", 0.2)
    with monkeypatch.context() as patched:
        patched.setattr(architecture_process, "_START", hanging[2])
        builder.end()
        with pytest.raises(architecture_process._NoAnswerError, match="more than"):
            builder.ask(question)
    monkeypatch.setattr(architecture_process, "_SECONDS", 60.0)
    assert builder.ask(question)["missing"]
    process = builder._process
    builder.end()
    assert process.returncode is not None


def test_nothing_changes_in_the_process_that_judges(tmp_path):
    """Transformers sets the default dtype of the process while it builds a model of several parts."""
    saved_policy(tmp_path)
    seen, modules = set(), set(sys.modules)
    ended = threading.Event()

    def watch():
        while not ended.is_set():
            seen.add((torch.get_default_dtype(), str(torch.get_default_device())))

    watching = threading.Thread(target=watch)
    before = torch.get_rng_state()
    watching.start()
    judge(tmp_path)
    ended.set()
    watching.join()
    assert seen == {(torch.float32, "cpu")}
    assert torch.equal(torch.get_rng_state(), before)
    assert not {name for name in set(sys.modules) - modules if name.startswith("transformers.models")}


def test_a_process_that_cannot_be_started_is_told_and_asked_again(tmp_path, monkeypatch):
    saved_policy(tmp_path)
    edit_json(tmp_path, "config.json", bos_token_id=7)  # a question of its own
    edit_weights(tmp_path, without("model.norm."))
    architecture_process._BUILDER.end()
    for executable in ("/bin/false", "", None):
        monkeypatch.setattr(sys, "executable", executable)
        assert rules_of(tmp_path) == {"architecture_not_compared": "info"}
    monkeypatch.undo()
    assert rules_of(tmp_path) == {"tensors_lost": "error"}


def test_modules_in_the_folder_of_a_checkpoint_are_not_imported(tmp_path):
    """`cd checkpoint; trl-ext checkpoint .`"""
    saved_policy(tmp_path)
    for name in ("json", "torch", "transformers", "selectors", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    command = [
        sys.executable,
        "-P",
        "-c",
        "import sys; from trl_ext.cli import main; sys.exit(main(['checkpoint', '.']))",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "healthy" in done.stdout, done.stderr
    assert not (tmp_path / "ran").exists()


def test_the_next_checkpoint_of_a_run_starts_no_process(tmp_path):
    """Its configuration and shapes are those of the one before, whose answer is kept."""
    judge(saved_policy(tmp_path / "first"))
    architecture_process._BUILDER.end()
    judge(saved_policy(tmp_path / "second"))
    assert architecture_process._BUILDER._process is None
    edit_json(tmp_path / "second", "config.json", rms_norm_eps=1e-4)
    judge(tmp_path / "second")
    assert architecture_process._BUILDER._process is not None
