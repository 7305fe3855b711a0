"""Loads a sequence classifier so that its scores can be trusted."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import PartialState
from safetensors import SafetensorError
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import cached_file, logging

from trl_ext.errors import UserError
from trl_ext.rewards.classifier import Classifier

_LONGEST = 1_000_000  # tokenizers that know no limit say 1e30
_HEADS = ("score", "classifier", "out_proj")  # the last layer's name in Transformers' heads


def load_classifier(
    name: str, label: str | int | None, device: str | None, max_length: int | None, **options: Any
) -> Classifier:
    """The model called `name`, which may be a PEFT adapter; arguments are those of `RewardModelReward`.

    Raises:
        UserError: it is not there, or its scores would mean nothing.
    """
    try:
        target = PartialState().device if device is None else _device(device)
        adapter = _file(name, "adapter_config.json", options)
        if adapter is None and _file(name, "config.json", options) is None:
            raise UserError(_not_there(name))
        model, base = _load_model(name, options) if adapter is None else _load_adapter(name, options)
        tokenizer = _load_tokenizer(name, base, options)
        model = model.to(target).eval().requires_grad_(False)
    except UserError:
        raise
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        cause = " ".join(str(error).split())[:300]
        raise UserError(f"cannot load the reward model {name!r}: {cause}") from error
    pad_id = _pad_id(model, tokenizer, name)
    model.config.get_text_config().pad_token_id = pad_id  # by which the model finds the last token
    model.config.use_cache = False  # nothing is generated
    limit = max_length or _limit(model, tokenizer)
    return Classifier(model, tokenizer, _label_index(model, label, name), pad_id, limit, name)


def _load_model(name: str, options: dict, provided: frozenset[str] = frozenset(), **config: Any) -> tuple[Any, str]:
    """The model and the name its tokenizer has; `provided` are weights that come later, from an adapter."""
    if not any(_file(name, file, options) for file in ("model.safetensors", "model.safetensors.index.json")):
        raise UserError(
            f"{name!r} has no safetensors weights, and pickled ones are refused: load it once and call "
            "save_pretrained on it, which writes them"
        )
    with _without_report():
        model, info = AutoModelForSequenceClassification.from_pretrained(
            name, use_safetensors=True, output_loading_info=True, **options, **config
        )
    missing = sorted(set(info["missing_keys"]) - provided)
    if missing:
        raise UserError(
            f"{name!r} is no trained reward model: its checkpoint has no {', '.join(missing[:3])}, so scores would be "
            "random; train one with recipes/reward.py or name another"
        )
    return model, name


@contextmanager
def _without_report() -> Iterator[None]:
    """Transformers warns of weights that are missing; here that is an error, or an adapter brings them."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def _load_adapter(name: str, options: dict) -> tuple[Any, str]:
    """The base model with the adapter merged into it.

    PEFT's `AutoPeftModelForSequenceClassification` would give a base without a head two labels, whatever was trained,
    and does not say which weights are missing.
    """
    from peft import PeftConfig, PeftModel
    from safetensors import safe_open

    weights = _file(name, "adapter_model.safetensors", options)
    if weights is None:
        raise UserError(f"the adapter {name!r} has no adapter_model.safetensors, and pickled weights are refused")
    with safe_open(weights, "pt") as tensors:
        shapes = {key.removeprefix("base_model.model."): tensors.get_slice(key).get_shape() for key in tensors.keys()}  # noqa: SIM118
    heads = [shape[0] for key, shape in shapes.items() if key.split(".")[-2] in _HEADS and key.endswith(".weight")]
    peft_config = PeftConfig.from_pretrained(name, revision=options["revision"])
    if peft_config.task_type not in (None, "SEQ_CLS"):
        raise UserError(f"the adapter {name!r} is no reward model: it was trained for the task {peft_config.task_type}")
    base_name = peft_config.base_model_name_or_path
    base_options = options | {"revision": peft_config.revision}
    if _file(base_name, "config.json", base_options) is None:
        raise UserError(f"the adapter {name!r} was trained on {base_name!r}: {_not_there(base_name)}")
    config = {"num_labels": heads[0]} if heads else {}
    base, _ = _load_model(base_name, base_options, frozenset(shapes), **config)
    model = PeftModel.from_pretrained(base, name, revision=options["revision"])
    return (model if peft_config.is_prompt_learning else model.merge_and_unload()), base_name


def _load_tokenizer(name: str, base: str, options: dict) -> Any:
    """The tokenizer that was saved with the model, or with the base of an adapter."""
    source = name if _file(name, "tokenizer_config.json", options) else base
    revision = options["revision"] if source == name else None
    return AutoTokenizer.from_pretrained(
        source, revision=revision, trust_remote_code=options["trust_remote_code"], truncation_side="left"
    )


def _file(name: str, file: str, options: dict) -> str | None:
    try:
        return cached_file(name, file, revision=options["revision"] or "main")
    except OSError:
        return None


def _not_there(name: str) -> str:
    if os.path.isdir(name):
        return f"folder {name!r} holds no model: no config.json in it"
    return f"no reward model {name!r}: neither a local folder nor a reachable hub model has that name"


def _pad_id(model: Any, tokenizer: Any, name: str) -> int:
    """The model's own, by which it was trained to find the last token; else the tokenizer's; else its end token."""
    known = model.get_input_embeddings().num_embeddings
    for token in (model.config.get_text_config().pad_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token is not None and 0 <= token < known:
            return token
    raise UserError(f"the tokenizer of {name!r} has neither a pad nor an end token: set pad_token in its files")


def _limit(model: Any, tokenizer: Any) -> int | None:
    limits = [tokenizer.model_max_length, getattr(model.config.get_text_config(), "max_position_embeddings", None)]
    return min((int(limit) for limit in limits if limit and 1 < limit < _LONGEST), default=None)


def _label_index(model: Any, label: str | int | None, name: str) -> int:
    names = {int(index): str(each) for index, each in model.config.id2label.items()}
    if label is None and len(names) == 1:
        return 0
    if isinstance(label, int) and label in names:
        return label
    found = [index for index, each in names.items() if each == label]
    if found:
        return found[0]
    offered = ", ".join(f"{each} ({index})" for index, each in list(names.items())[:20])
    if label is None:
        raise UserError(f"reward model {name!r} has {len(names)} labels, which one? Write label: one of {offered}")
    raise UserError(f"reward model {name!r} has no label {label!r}: write one of {offered}")


def _device(name: str) -> torch.device:
    """One that is there."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        return device
    except (RuntimeError, AssertionError, ValueError, TypeError) as error:
        raise UserError(f"reward_model cannot use the device {name!r} here: write cpu, cuda or cuda:0") from error
