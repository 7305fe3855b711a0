"""The faults of the real tiny runs, each injected into the training itself, and their healthy twins.

`expected` names the rules that say what is wrong: the cause where the logs or the trainer's arguments show it, else the
symptom that it must lead to. `starts` is the row (from 0) at which the fault begins.
"""

import random
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import DataCollatorForLanguageModeling, TrainerCallback

from detection.tiny_runs import DEFAULTS, STEPS, Setting, sentiment

HALF = STEPS // 2
KL = ("kl_high", "kl_spike", "kl_runaway")
RATIO = ("approx_kl_spike", "ratio_out_of_band", "clip_fraction_high")
LENGTH = ("all_truncated", "eos_missing", "length_collapse", "length_drift")
GRADIENT = ("grad_norm_spike", "grad_norm_trend")
ENTROPY = ("entropy_collapse", "entropy_explosion")
DIVERGED = (*KL, *RATIO, *ENTROPY, *GRADIENT, *LENGTH, "nonfinite_metric", "reward_drop", "zero_signal",
            "value_loss_divergence", "loss_scale", "preference_magnitude", "preference_displacement",
            "preference_chance", "loss_divergence", "length_drift")  # fmt: skip


@dataclass(frozen=True)
class Fault:
    name: str
    setting: Setting
    expected: tuple[str, ...]
    starts: int = 0


# Injections --------------------------------------------------------------------------------------


def nan(texts, ids, call):
    return [float("nan") if call >= HALF else r for r in sentiment(texts, ids, call)]


def constant(texts, ids, call):
    return [1.0 if call >= HALF else r for r in sentiment(texts, ids, call)]


def inverted(texts, ids, call):
    return [-r if call >= HALF else r for r in sentiment(texts, ids, call)]


def long_texts(texts, ids, call):
    """Pays for each word."""
    return [len(text.split()) / 16 for text in texts]


def kind_words(texts, ids, call):
    """Pays for each word of praise, however often it comes: "good good good" wins."""
    praise = {"good", "great", "best", "love", "funny", "fun", "beautiful", "wonderful", "well", "perfect"}
    return [min(1.0, sum(w.strip(".,!") in praise for w in text.lower().split()) / 6) for text in texts]


class _Frozen(TrainerCallback):
    def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        optimizer.step = lambda *_, **__: None


def frozen(trainer):
    trainer.add_callback(_Frozen())
    if hasattr(trainer, "policy_model"):  # stock PPO has its optimizer already, and hands out none
        trainer.optimizer.step = lambda *_, **__: None
        trainer.callback_handler.callbacks.pop()
    return trainer


def reference_with_dropout(trainer):
    reference = trainer.accelerator.unwrap_model(trainer.ref_model)
    for module in reference.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.3
    reference.train()
    reference.eval = lambda: reference
    return trainer


def all_labels_masked(trainer):
    """As a collator does that looks for a response template which the tokenizer spells otherwise."""
    collate = trainer.data_collator

    def masked(examples):
        batch = collate(examples)
        for name, nothing in (("labels", -100), ("completion_mask", 0)):
            if name in batch:
                batch[name] = torch.full_like(batch[name], nothing)
        return batch

    trainer.data_collator = masked
    return trainer


def never_eos(model):
    """A head that cannot say EOS (id 1): stock PPO takes no generation options."""
    model.lm_head.register_forward_hook(lambda _m, _a, out: out.index_fill(-1, torch.tensor([1]), -1e4))
    return model


def pad_is_eos(tokenizer):
    tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def pads_right(tokenizer):
    tokenizer.padding_side = "right"
    return tokenizer


def masks_pads(trainer):
    """Transformers' collator: with pad = EOS no label is EOS, and the model never learns to stop."""
    trainer.data_collator = DataCollatorForLanguageModeling(trainer.processing_class, mlm=False)
    return trainer


def half_precision(model):
    """fp16 weights, gradients and Adam moments: CPUs have no loss scaler, so all is cast, and Adam's eps becomes 0."""
    return model.half()


def other_order(dataset):
    return dataset.select(random.Random(99).sample(range(len(dataset)), len(dataset)))


# Tables ------------------------------------------------------------------------------------------


def _lr(kind: str) -> dict[str, float]:
    return {"learning_rate": 1000 * DEFAULTS[kind]["learning_rate"]}


LONG = {"max_completion_length": 64, "learning_rate": 1e-3}
LONG_PPO = {"response_length": 64, "learning_rate": 1e-3}
NO_EOS = {"generation_kwargs": {"suppress_tokens": [1]}}
HACKED = ("reward_hacking_suspected", *KL, "entropy_collapse", "length_drift", "length_collapse")
NO_KL = {"grpo": {"beta": 0.0, "learning_rate": 1e-3}, "ppo": {"kl_coef": 0.0}, "stock_ppo": {"kl_coef": 0.0}}


def _table() -> list[Fault]:
    rows: list[Fault] = []

    def add(fault: str, kinds: str, expected: tuple[str, ...], starts: int = 0, **change: Any) -> None:
        for kind in kinds.split():
            made = {k: (v(kind) if k == "options" and callable(v) else v) for k, v in change.items()}
            rows.append(Fault(f"{kind}_{fault}", Setting(kind, **made), expected, starts))

    add("lr_x1000", "grpo reinforce_loo ppo stock_ppo dpo sft reward", DIVERGED, options=_lr)
    add("hackable_kl0", "grpo ppo stock_ppo", HACKED, reward=kind_words, options=NO_KL.get)
    rows[-3:-1] = [replace(f, setting=replace(f.setting, held_back=True)) for f in rows[-3:-1]]  # stock logs none
    nonfinite = ("nonfinite_metric", "zero_signal", "frozen_policy")
    add("reward_nan", "grpo ppo", nonfinite, HALF, reward=nan)
    dead = ("zero_signal", "dead_reward_component", "reward_saturated", "frozen_policy")
    add("reward_constant", "grpo ppo stock_ppo", dead, HALF, reward=constant)
    add("reward_inverted", "grpo reinforce_loo ppo stock_ppo", ("reward_drop",), HALF, reward=inverted)
    add("optimizer_frozen", "grpo reinforce_loo ppo stock_ppo dpo", ("frozen_policy",), trainer_change=frozen)
    add("optimizer_frozen", "sft reward", ("frozen_policy", "preference_no_movement"),
        trainer_change=frozen)  # fmt: skip
    add("labels_masked", "sft", ("no_supervised_tokens",), trainer_change=all_labels_masked)
    add("labels_masked", "dpo", ("preference_labels_masked",), trainer_change=all_labels_masked)
    add("reference_dropout", "grpo dpo", ("first_step_mismatch", "loss_scale"),
        trainer_change=reference_with_dropout)  # fmt: skip
    eos = ("eos_missing", "all_truncated")
    add("eos_unreachable", "grpo reinforce_loo ppo", eos, options=NO_EOS)
    add("eos_unreachable", "stock_ppo", eos, model=never_eos)
    add("fp16", "grpo dpo sft reward", ("nonfinite_metric", *DIVERGED), model=half_precision, options={"max_steps": 30})
    add("fp16", "ppo", ("nonfinite_metric", *DIVERGED), model=half_precision, options={"total_episodes": 32 * 30})
    value = ("value_loss_divergence", "value_explained_variance", *GRADIENT, *KL, *RATIO)
    add("value_weight_x100", "ppo", value, options={"vf_coef": 100.0})
    add("padding_right", "stock_ppo", ("tokenizer_setup", "first_step_mismatch"), tokenizer=pads_right)
    add("pad_is_eos", "stock_ppo", ("tokenizer_setup", "eos_missing"), tokenizer=pad_is_eos)
    add("pad_is_eos", "sft", ("tokenizer_setup",), tokenizer=pad_is_eos, trainer_change=masks_pads)
    add("data_order", "sft", ("resume_discontinuity",), HALF, resume=True,
        options={"ignore_data_skip": True})  # fmt: skip
    add("data_order", "grpo dpo", ("resume_discontinuity",), HALF, resume=True, data=other_order)
    grows = ("length_drift", "all_truncated", "reward_hacking_suspected")
    add("pays_length", "grpo", grows, reward=long_texts, options=LONG)
    add("pays_length", "ppo", (*grows, "eos_missing"), reward=long_texts, options=LONG_PPO)
    return rows


FAULTS = _table()


def _twins() -> list[Fault]:
    """Healthy runs: three seeds of each trainer, the settings of faults without the fault, and faults that are none."""
    runs = {f"{kind}_{seed}": Setting(kind, seed) for kind in DEFAULTS for seed in (1, 2, 3)}
    for seed in (1, 2):
        runs[f"grpo_long_{seed}"] = Setting("grpo", seed, LONG)
        runs[f"ppo_long_{seed}"] = Setting("ppo", seed, LONG_PPO)
        for kind in ("sft", "grpo"):
            runs[f"{kind}_resume_{seed}"] = Setting(kind, seed, resume=True)
    runs["grpo_held_back_1"] = Setting("grpo", 1, held_back=True)
    # its value model is apart, and Adam forgets the scale of a gradient
    runs["stock_ppo_value_weight_x100"] = Setting("stock_ppo", 0, {"vf_coef": 100.0})
    # these pad and mask by themselves, whatever the tokenizer says
    for kind in ("grpo", "sft"):
        runs[f"{kind}_padding_right_1"] = Setting(kind, 1, tokenizer=pads_right)
    runs["grpo_pad_is_eos_1"] = Setting("grpo", 1, tokenizer=pad_is_eos)
    return [Fault(name, setting, ()) for name, setting in runs.items()]


HEALTHY = _twins()
