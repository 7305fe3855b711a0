"""The faults of the real tiny runs, each injected into the training itself, and their healthy twins.

`expected` names the rules that say what is wrong: the cause where the logs or the trainer's arguments show it, else the
symptom that it must lead to. `starts` is the row (from 0) at which the fault begins; a run that is stopped half way
logs one row more there, its summary.
"""

from dataclasses import dataclass, replace
from typing import Any

from detection.injections import (
    HALF,
    all_labels_masked,
    constant,
    frozen,
    half_precision,
    identical_pairs,
    inverted,
    kind_words,
    long_texts,
    masks_pads,
    nan,
    never_eos,
    other_order,
    pad_is_eos,
    pads_right,
    reference_with_dropout,
)  # fmt: skip
from detection.tiny_runs import DEFAULTS, Setting

KL = ("kl_high", "kl_spike", "kl_runaway")
RATIO = ("approx_kl_spike", "ratio_out_of_band", "clip_fraction_high")
GRADIENT = ("grad_norm_spike", "grad_norm_trend")
ENTROPY = ("entropy_collapse", "entropy_explosion")
DIVERGED = (
    *KL, *RATIO, *ENTROPY, *GRADIENT, "nonfinite_metric", "preference_magnitude", "preference_displacement",
    "reward_model_scale", "early_divergence", "loss_divergence",
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    name: str
    setting: Setting
    expected: tuple[str, ...]
    starts: int = 0


def _lr(kind: str) -> dict[str, float]:
    return {"learning_rate": 1000 * DEFAULTS[kind]["learning_rate"]}


def _lr_x10000(kind: str) -> dict[str, float]:
    return {"learning_rate": 10_000 * DEFAULTS[kind]["learning_rate"]}


LONG = {"max_completion_length": 64}
LONG_PPO = {"response_length": 64}
NO_EOS = {"generation_kwargs": {"suppress_tokens": [1]}}
HACKED = ("reward_hacking_suspected", *KL, "entropy_collapse")
NO_KL = {"grpo": {"beta": 0.0, "learning_rate": 1e-3}, "ppo": {"kl_coef": 0.0}, "stock_ppo": {"kl_coef": 0.0}}


def _table() -> list[Fault]:
    rows: list[Fault] = []

    def add(fault: str, kinds: str, expected: tuple[str, ...], starts: int = 0, **change: Any) -> None:
        for kind in kinds.split():
            made = {k: (v(kind) if k == "options" and callable(v) else v) for k, v in change.items()}
            rows.append(Fault(f"{kind}_{fault}", Setting(kind, **made), expected, starts))

    add("lr_x1000", "grpo reinforce_loo ppo stock_ppo dpo sft", DIVERGED, options=_lr)
    add("lr_x10000", "grpo reinforce_loo ppo stock_ppo dpo sft reward", DIVERGED, options=_lr_x10000)
    coin = "preference_chance"  # its advice says what to do with the learning rate in either case
    add("lr_x1000", "reward", (*DIVERGED, coin), options=_lr)
    add("hackable_kl0", "grpo ppo stock_ppo", HACKED, reward=kind_words, options=NO_KL.get)
    rows[-3:-1] = [replace(f, setting=replace(f.setting, held_back=True)) for f in rows[-3:-1]]  # stock logs none
    nonfinite = ("nonfinite_metric", "zero_signal", "frozen_policy")
    add("reward_nan", "grpo ppo", nonfinite, HALF, reward=nan)
    dead = ("zero_signal", "dead_reward_component", "reward_saturated", "frozen_policy")
    add("reward_constant", "grpo ppo stock_ppo", dead, HALF, reward=constant)
    add("reward_inverted", "grpo reinforce_loo ppo stock_ppo", ("reward_drop",), HALF, reward=inverted)
    add("optimizer_frozen", "grpo reinforce_loo ppo stock_ppo dpo", ("frozen_policy",), trainer_change=frozen)
    add("optimizer_frozen", "sft", ("frozen_policy", "loss_flat"), trainer_change=frozen)
    add("optimizer_frozen", "reward", ("frozen_policy", "loss_flat", coin), trainer_change=frozen)
    add("labels_masked", "sft", ("no_supervised_tokens",), trainer_change=all_labels_masked)
    add("labels_masked", "dpo", ("preference_labels_masked",), trainer_change=all_labels_masked)
    add("identical_pairs", "dpo reward", ("preference_identical",), data=identical_pairs)
    add("reference_dropout", "grpo dpo", ("first_step_mismatch", "loss_scale"),
        trainer_change=reference_with_dropout)  # fmt: skip
    eos = ("eos_missing", "all_truncated")
    add("eos_unreachable", "grpo reinforce_loo ppo", eos, options=NO_EOS)
    add("eos_unreachable", "stock_ppo", eos, model=never_eos)
    add("fp16", "grpo dpo sft reward", ("nonfinite_metric", *DIVERGED), model=half_precision, options={"max_steps": 30})
    add("fp16", "ppo", ("nonfinite_metric", *DIVERGED), model=half_precision, options={"total_episodes": 32 * 30})
    value = ("value_loss_weight", "value_loss_divergence", "value_explained_variance", *GRADIENT, *KL, *RATIO)
    add("value_weight_x100", "ppo stock_ppo", value, options={"vf_coef": 100.0})
    add("padding_right", "stock_ppo", ("tokenizer_setup", "first_step_mismatch"), tokenizer=pads_right)
    add("pad_is_eos", "stock_ppo", ("tokenizer_setup", "eos_missing"), tokenizer=pad_is_eos)
    add("pad_is_eos", "sft", ("tokenizer_setup",), tokenizer=pad_is_eos, trainer_change=masks_pads)
    add("data_order", "sft", ("resume_discontinuity",), HALF + 1, resume=True,
        options={"ignore_data_skip": True})  # fmt: skip
    add("data_order", "grpo dpo", ("resume_discontinuity",), HALF + 1, resume=True, data=other_order)
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
    # these pad and mask by themselves, whatever the tokenizer says
    for kind in ("grpo", "sft"):
        runs[f"{kind}_padding_right_1"] = Setting(kind, 1, tokenizer=pads_right)
    runs["grpo_pad_is_eos_1"] = Setting("grpo", 1, tokenizer=pad_is_eos)
    return [Fault(name, setting, ()) for name, setting in runs.items()]


HEALTHY = _twins()
