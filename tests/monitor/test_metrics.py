"""The key map: every key of every trainer has one canonical name, and units are never mixed."""

from collections import Counter

import pytest

from trl_ext.monitor.metrics import KEY_MAP, METRICS, canonical_name, canonical_names, is_timing

STOCK_PPO = [
    "eps",
    "objective/kl",
    "objective/entropy",
    "objective/non_score_reward",
    "objective/rlhf_reward",
    "objective/scores",
    "policy/approxkl_avg",
    "policy/clipfrac_avg",
    "policy/entropy_avg",
    "loss/policy_avg",
    "loss/value_avg",
    "val/clipfrac_avg",
    "val/ratio",
    "val/ratio_var",
    "val/num_eos_tokens",
    "lr",
    "episode",
]
CURRENT_GRPO = [
    "loss",
    "grad_norm",
    "learning_rate",
    "num_tokens",
    "completions/mean_length",
    "completions/min_length",
    "completions/max_length",
    "completions/mean_terminated_length",
    "completions/min_terminated_length",
    "completions/max_terminated_length",
    "completions/clipped_ratio",
    "reward",
    "reward_std",
    "frac_reward_zero_std",
    "kl",
    "entropy",
    "clip_ratio/low_mean",
    "clip_ratio/low_min",
    "clip_ratio/high_mean",
    "clip_ratio/high_max",
    "clip_ratio/region_mean",
    "step_time",
    "aux_loss",
    "sampling/importance_sampling_ratio/min",
    "sampling/importance_sampling_ratio/mean",
    "sampling/importance_sampling_ratio/max",
    "sampling/sampling_logp_difference/mean",
    "sampling/sampling_logp_difference/max",
    "entropy_coef",
    "policy_loss",
]
OURS_ALONE = ["value/explained_variance", "value/mean", "advantages/mean", "advantages/std"]


@pytest.mark.parametrize("key", [*STOCK_PPO, *CURRENT_GRPO, *OURS_ALONE, "completion_length", "clip_ratio"])
def test_every_key_of_ppo_rloo_grpo_and_our_trainers_is_known(key):
    assert key in KEY_MAP


def test_no_key_has_two_canonical_names():
    assert max(Counter(key for keys in METRICS.values() for key in keys).values()) == 1


def test_per_token_and_per_sequence_are_two_metrics():
    names = canonical_names(("kl", "objective/kl", "entropy", "objective/entropy"))
    assert names == ("kl_per_token", "kl_per_sequence", "entropy_per_token", "entropy_per_sequence")


def test_stock_entropy_per_token_and_grpo_entropy_are_one_metric():
    assert canonical_name("policy/entropy_avg") == canonical_name("entropy") == "entropy_per_token"


@pytest.mark.parametrize("keys", [("objective/scores", "reward"), ("reward", "objective/scores")])
def test_of_two_keys_for_one_metric_the_preferred_one_counts_in_any_order(keys):
    assert dict(zip(keys, canonical_names(keys), strict=True)) == {"reward": "reward", "objective/scores": None}


def test_three_keys_for_one_metric_leave_the_most_preferred():
    keys = ("clip_ratio", "policy/clipfrac_avg", "clip_ratio/region_mean")
    assert canonical_names(keys) == (None, None, "clip_fraction")


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("rewards/accuracy/mean", "reward/accuracy/mean"),
        ("rewards/accuracy", "reward/accuracy/mean"),
        ("rewards/accuracy/std", "reward/accuracy/std"),
        ("rewards/chosen", "rewards/chosen"),
        ("rewards/margins", "rewards/margins"),
        ("eval_kl", "eval/kl_per_token"),
        ("eval_rewards/f/mean", "eval/reward/f/mean"),
        ("my/own", "my/own"),
    ],
)
def test_patterns(key, name):
    assert canonical_name(key) == name


def test_kl_of_kto_is_not_a_kl_per_token():
    assert canonical_names(("kl", "logps/chosen")) == ("kl_kto", "logps/chosen")


def test_time_and_memory_are_recognised_and_nothing_else():
    timing = ["eps", "step_time", "train_runtime", "train_samples_per_second", "eval_steps_per_second",
              "episodes_per_second", "system/rss_mb", "eval_step_time"]  # fmt: skip
    assert all(map(is_timing, timing))
    assert {key for key in (*METRICS, *KEY_MAP) if is_timing(key)} == {"eps", "step_time", "episodes_per_second"}
