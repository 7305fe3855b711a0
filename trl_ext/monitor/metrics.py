"""Canonical metric names, and the key under which each trainer and TRL version logs them. The one table of the monitor.

Units matter: `kl` of GRPO and RLOO is a mean per token, `objective/kl` of PPO a sum over the sequence, so they are two
metrics here. The same holds for entropy. KTO logs a batch estimate under `kl`, which is neither.
"""

from fnmatch import fnmatchcase
from functools import lru_cache

# canonical name: the keys that carry it, the preferred one first (our own trainers log several of them side by side)
METRICS: dict[str, tuple[str, ...]] = {
    # reward
    "reward": ("reward", "objective/scores"),  # before any KL penalty
    "reward_std": ("reward_std",),
    "reward_with_kl": ("objective/rlhf_reward",),
    "kl_penalty": ("objective/non_score_reward",),  # -kl_coef * kl, summed over the sequence
    "zero_std_fraction": ("frac_reward_zero_std",),
    # distance to the reference, in nats
    "kl_per_token": ("kl",),
    "kl_per_sequence": ("objective/kl",),
    # entropy of the policy, in nats; the sequence sum is negative before trl#6121 (padding counted), so rules skip it
    "entropy_per_token": ("entropy", "policy/entropy_avg"),
    "entropy_per_sequence": ("objective/entropy",),
    # the policy update
    "loss": ("loss",),
    "grad_norm": ("grad_norm",),
    "learning_rate": ("learning_rate", "lr"),
    "policy_loss": ("policy_loss", "loss/policy_avg"),
    "approx_kl": ("policy/approxkl_avg",),  # old against new policy, within one update
    "ratio_mean": ("val/ratio",),
    "ratio_variance": ("val/ratio_var",),
    "clip_fraction": ("clip_ratio/region_mean", "policy/clipfrac_avg", "clip_ratio"),
    "clip_fraction_low": ("clip_ratio/low_mean",),
    "clip_fraction_low_min": ("clip_ratio/low_min",),
    "clip_fraction_high": ("clip_ratio/high_mean",),
    "clip_fraction_high_max": ("clip_ratio/high_max",),
    "advantage_mean": ("advantages/mean",),
    "advantage_std": ("advantages/std",),
    "entropy_coefficient": ("entropy_coef",),
    "aux_loss": ("aux_loss",),
    # the value function
    "value_loss": ("loss/value_avg",),
    "value_clip_fraction": ("val/clipfrac_avg",),
    "value_mean": ("value/mean",),
    "explained_variance": ("value/explained_variance",),
    # completions, in tokens
    "completion_length": ("completions/mean_length", "completion_length"),
    "completion_length_min": ("completions/min_length",),
    "completion_length_max": ("completions/max_length",),
    "terminated_length": ("completions/mean_terminated_length",),
    "terminated_length_min": ("completions/min_terminated_length",),
    "terminated_length_max": ("completions/max_terminated_length",),
    "truncated_fraction": ("completions/clipped_ratio",),
    "eos_count": ("val/num_eos_tokens",),
    # another engine sampled than the one that trains (vLLM)
    "importance_ratio_min": ("sampling/importance_sampling_ratio/min",),
    "importance_ratio_mean": ("sampling/importance_sampling_ratio/mean",),
    "importance_ratio_max": ("sampling/importance_sampling_ratio/max",),
    "sampling_logp_difference": ("sampling/sampling_logp_difference/mean",),
    "sampling_logp_difference_max": ("sampling/sampling_logp_difference/max",),
    # progress and speed
    "epoch": ("epoch",),
    "episode": ("episode",),
    "num_tokens": ("num_tokens",),
    "episodes_per_second": ("eps",),
    "step_time": ("step_time",),
}
KEY_MAP: dict[str, str] = {key: name for name, keys in METRICS.items() for key in keys}
_RANK = {key: rank for keys in METRICS.values() for rank, key in enumerate(keys)}

# Patterns (fnmatch) of keys that measure time or memory, logged or canonical: two runs of one seed differ in these.
TIMING_KEYS = (
    "eps", "episodes_per_second", "*step_time", "*_runtime", "*_per_second", "time/*", "profiling/*", "system/*"
)  # fmt: skip

_PREFERENCE_PARTS = ("chosen", "rejected", "accuracies", "margins")


def is_timing(key: str) -> bool:
    """Whether `key`, as logged or canonical, measures time or memory."""
    return any(fnmatchcase(key, pattern) for pattern in TIMING_KEYS)


def canonical_name(key: str) -> str:
    """The canonical name of a logged `key`; a key nobody knows keeps its own name.

    `eval_<key>` becomes `eval/<canonical>`. `rewards/<function>/mean` (and `rewards/<function>` of GRPO up to 0.15)
    becomes `reward/<function>/mean`; `rewards/chosen` and its like, of DPO and KTO, stay.
    """
    if key.startswith("eval_"):
        return "eval/" + canonical_name(key.removeprefix("eval_"))
    if key.startswith("rewards/") and key.removeprefix("rewards/") not in _PREFERENCE_PARTS:
        stem = "reward/" + key.removeprefix("rewards/")
        return stem if stem.endswith(("/mean", "/std")) else stem + "/mean"
    return KEY_MAP.get(key, key)


@lru_cache(maxsize=256)
def canonical_names(keys: tuple[str, ...]) -> tuple[str | None, ...]:
    """The canonical name of each key of one log, `None` for one that another key of this log says better (or that is
    no string).

    Cached because a trainer logs the same few sets of keys thousands of times.
    """
    names: list[str | None] = [canonical_name(key) if isinstance(key, str) else None for key in keys]
    if "kl" in keys and "logps/chosen" in keys:
        names[keys.index("kl")] = "kl_kto"
    owner: dict[str, int] = {}
    for i, name in enumerate(names):
        if name is None:
            continue
        other = owner.setdefault(name, i)
        if other != i:
            loser = max(i, other, key=lambda at: _RANK.get(keys[at].removeprefix("eval_"), -1))
            names[loser] = None
            owner[name] = i if loser == other else other
    return tuple(names)
