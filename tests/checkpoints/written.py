"""Checkpoints as the libraries write them, for tests."""

import json
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from trl_ext import tiny
from trl_ext.checkpoints.health.judging import judge

TINY = Path(tiny.__file__).parent
WEIGHTS = "model.safetensors"


def policy(dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(TINY, dtype=dtype)


def saved_policy(folder, **options):
    """With its tokenizer."""
    policy().save_pretrained(folder, **options)
    AutoTokenizer.from_pretrained(TINY).save_pretrained(folder)
    return folder


def saved_reward_model(folder):
    AutoModelForSequenceClassification.from_pretrained(TINY, num_labels=1).save_pretrained(folder)
    return folder


def saved_adapter(folder, model=None, **options):
    """Trained, as far as B is other than zero, unless `init_lora_weights` is given."""
    options = {"r": 8, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False, **options}
    get_peft_model(model or policy(), LoraConfig(**options)).save_pretrained(folder)
    return folder


def edit_weights(folder, change, file=WEIGHTS):
    tensors = load_file(folder / file)
    change(tensors)
    save_file(tensors, folder / file, metadata={"format": "pt"})


def edit_json(folder, file, **values):
    path = folder / file
    document = {**(json.loads(path.read_text()) if path.exists() else {}), **values}
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not ...}))


def rules_of(folder, reference=None):
    """The severity of each rule that speaks."""
    return {finding.rule: finding.severity.value for finding in judge(folder, reference).findings}


def content_of(folder):
    """Every file with its bytes and the time it was changed."""
    return {
        path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*")) if path.is_file()
    }  # fmt: skip
