"""What the trainer's arguments, tokenizer and data say of a run, for rules that logs alone cannot decide."""

import hashlib
import logging
from collections.abc import Callable
from typing import Any

from transformers import TrainerState, TrainingArguments

from trl_ext.callbacks.stopping import ignores_control

logger = logging.getLogger(__name__)

# fact: the names of the option in the trainers that have it, stock PPO's last
_OPTIONS = {
    "learning_rate": ("learning_rate",), "lr_scheduler_type": ("lr_scheduler_type",), "beta": ("beta",),
    "gradient_accumulation_steps": ("gradient_accumulation_steps",), "kl_coef": ("kl_coef",), "vf_coef": ("vf_coef",),
    "num_iterations": ("num_iterations", "num_ppo_epochs"), "fp16": ("fp16",), "loss_type": ("loss_type",),
    "max_completion_length": ("max_completion_length", "response_length"),
}  # fmt: skip
_FINGERPRINT_ROWS = 8


def read_facts(args: TrainingArguments, state: TrainerState, trainer: Any = None, **event: Any) -> dict[str, Any]:
    """The facts of the monitor's engine; one that cannot be read is left out. No parameter of the model is touched.

    Args:
        trainer: the trainer if it is known; its class name is guessed from that of its arguments otherwise.
        event: `model`, `processing_class` and `train_dataloader` of `on_train_begin`.
    """
    stock_ppo = ignores_control(state)
    facts: dict[str, Any] = {"trainer": type(args).__name__.replace("Config", "Trainer")}
    if trainer is not None:
        facts["trainer"] = type(trainer).__name__
    for fact, names in _OPTIONS.items():
        value = next((found for name in names if (found := getattr(args, name, None)) is not None), None)
        facts[fact] = getattr(value, "value", value)  # the value of an enum
    if state.max_steps > 0:
        facts["max_steps"] = state.max_steps
        if hasattr(args, "get_warmup_steps"):
            facts["warmup_steps"] = args.get_warmup_steps(state.max_steps)
    facts["logging_steps"] = 1 if stock_ppo else state.logging_steps  # stock PPO logs every update
    moves = getattr(args, "reference", "frozen") != "frozen" or getattr(args, "sync_ref_model", False)
    facts["reference_moves"] = moves or None
    facts["held_back_rewards"] = _held_back(args, trainer)
    facts |= _read(_group_facts, args, facts["logging_steps"])
    facts |= _read(_model_facts, event.get("model")) | _read(_tokenizer_facts, event.get("processing_class"))
    if not stock_ppo:
        facts.pop("padding_side", None)  # all others pad prompts on the left, whatever the tokenizer says
    facts["data"] = _read(_data_facts, args, state, stock_ppo, event.get("train_dataloader")) or None
    return {fact: value for fact, value in facts.items() if value is not None}


def _read(part: Callable[..., dict[str, Any]], *sources: Any) -> dict[str, Any]:
    """Models, tokenizers and datasets are the user's own classes: whatever one of them raises costs its facts alone."""
    try:
        return part(*sources)
    except Exception:
        logger.info("The monitor goes without %s", part.__name__.strip("_").replace("_", " "), exc_info=True)
        return {}


def _held_back(args: TrainingArguments, trainer: Any) -> list[str] | None:
    """Names of the reward functions that are logged but carry no weight."""
    names, weights = getattr(trainer, "reward_func_names", None), getattr(args, "reward_weights", None)
    if not names or not weights or len(names) != len(weights):
        return None
    return [name for name, weight in zip(names, weights, strict=True) if weight == 0]


def _group_facts(args: TrainingArguments, logging_steps: int) -> dict[str, Any]:
    """How many completions, and groups of them, a log is a mean of: those of one generation at least."""
    group, batch = getattr(args, "num_generations", None), getattr(args, "generation_batch_size", None)
    if not group or not batch:
        return {}
    a_step = args.per_device_train_batch_size * args.world_size * args.gradient_accumulation_steps
    completions = max(batch, a_step * logging_steps)
    return {"completions_per_log": completions, "groups_per_log": max(completions // group, 1)}


def _model_facts(model: Any) -> dict[str, Any]:
    for wrapper in ("module", "policy"):  # of DDP, and of stock PPO
        model = getattr(model, wrapper, model)
    config: Any = getattr(model, "config", None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    return {"vocab_size": getattr(config, "vocab_size", None)}


def _tokenizer_facts(processing_class: Any) -> dict[str, Any]:
    tokenizer = getattr(processing_class, "tokenizer", processing_class)  # of a processor
    pad, eos = (getattr(tokenizer, name, None) for name in ("pad_token_id", "eos_token_id"))
    side = getattr(tokenizer, "padding_side", None)
    return {"padding_side": side, "pad_is_eos": None if pad is None or eos is None else pad == eos}


def _data_facts(args: TrainingArguments, state: TrainerState, stock_ppo: bool, dataloader: Any) -> dict[str, Any]:
    """What decides the order of the data, to be compared on resume."""
    samples = getattr(args, "batch_size", None) if stock_ppo else None
    if samples is None:
        # on resume `state` has that of the checkpoint, which Transformers takes over for this option alone
        found = state.train_batch_size if args.auto_find_batch_size else None
        samples = (found or args.train_batch_size) * args.gradient_accumulation_steps * args.world_size
    dataset: Any = getattr(dataloader, "dataset", None)
    return {
        "seed": args.seed, "data_seed": args.data_seed, "ignore_data_skip": args.ignore_data_skip,
        "samples_per_step": samples, "dataset_rows": len(dataset) if hasattr(dataset, "__len__") else None,
        "dataset_fingerprint": _fingerprint(dataset),
    }  # fmt: skip


def _fingerprint(dataset: Any) -> str | None:
    """Of a few rows as stored, spread over the dataset, so that another order shows. `None` unless it is a
    `datasets.Dataset` (whose own fingerprint changes with every function that cannot be hashed)."""
    if not hasattr(dataset, "with_format") or not hasattr(dataset, "column_names") or not hasattr(dataset, "__len__"):
        return None
    rows = dataset.with_format("arrow")  # stored values: images are not decoded, transforms not applied
    digest = hashlib.sha256(repr(sorted(rows.column_names)).encode())
    for i in range(_FINGERPRINT_ROWS):
        if len(rows):
            digest.update(repr(rows[i * (len(rows) - 1) // (_FINGERPRINT_ROWS - 1)].to_pydict()).encode())
    return digest.hexdigest()[:16]
