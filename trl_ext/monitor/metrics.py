"""Canonical metric names, and the key under which each trainer and TRL version logs them. The one table of the monitor.

Units matter: `kl` of GRPO and RLOO is a mean per token, `objective/kl` of PPO a sum over the sequence, so they are two
metrics here. The same holds for entropy. KTO logs a batch estimate under `kl`, which is neither. `docs/metrics.md` is
this table for readers, with units and trainers.
"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import lru_cache

# canonical name: the keys that carry it, the preferred one first (our own trainers log several of them side by side)
METRICS: dict[str, tuple[str, ...]] = {
    # reward, before any KL penalty
    "reward": ("reward", "objective/scores", "env/reward_mean", "ppo/mean_scores", "objective/model_scores",
               "self_distillation/reward_mean"),
    "reward_std": ("reward_std", "env/reward_std", "ppo/std_scores", "self_distillation/reward_std"),
    "reward_with_kl": ("objective/rlhf_reward",),
    "kl_penalty": ("objective/non_score_reward",),  # -kl_coef * kl, summed over the sequence
    "kl_penalty_per_token": ("ppo/mean_non_score_reward",),  # the same, a mean over tokens
    "zero_std_fraction": ("frac_reward_zero_std", "zero_std_ratio", "self_distillation/flat_group_fraction"),
    # distance to the reference, in nats
    "kl_per_token": ("kl",),
    "kl_per_sequence": ("objective/kl", "loss/kl"),
    "kl_coefficient": ("objective/kl_coef",),
    # entropy of the policy, in nats; the sequence sum is negative before trl#6121 (padding counted), so rules skip it
    "entropy_per_token": ("entropy", "policy/entropy_avg", "ppo/policy/entropy", "entropy/mean"),
    "entropy_per_sequence": ("objective/entropy",),
    # the policy update
    "loss": ("loss", "ppo/loss/total", "Training Loss"),
    "grad_norm": ("grad_norm",),
    "learning_rate": ("learning_rate", "lr", "ppo/learning_rate"),
    "policy_loss": ("policy_loss", "loss/policy_avg", "ppo/loss/policy"),
    # half the mean squared log-ratio of old and new policy within one update
    "approx_kl": ("policy/approxkl_avg", "ppo/policy/approxkl", "policy/approxkl"),
    "ratio_mean": ("val/ratio", "ppo/policy/ratio"),
    "ratio_variance": ("val/ratio_var",),
    "clip_fraction": ("clip_ratio/region_mean", "policy/clipfrac_avg", "ppo/policy/clipfrac", "policy/clipfrac",
                      "clip_ratio", "cispo_clip_ratio"),
    "clip_fraction_low": ("clip_ratio/low_mean",),
    "clip_fraction_low_min": ("clip_ratio/low_min",),
    "clip_fraction_high": ("clip_ratio/high_mean",),
    "clip_fraction_high_max": ("clip_ratio/high_max",),
    "advantage_mean": ("advantages/mean", "ppo/policy/advantages_mean", "advantage"),
    "advantage_std": ("advantages/std",),
    "entropy_coefficient": ("entropy_coef",),
    "aux_loss": ("aux_loss",),
    # the value function
    "value_loss": ("loss/value_avg", "ppo/loss/value"),  # not yet times vf_coef
    "value_clip_fraction": ("val/clipfrac_avg", "ppo/val/clipfrac"),
    "value_mean": ("value/mean", "ppo/val/mean", "ppo/val/vpred"),
    "value_variance": ("ppo/val/var",),
    "value_error": ("ppo/val/error",),
    "return_mean": ("ppo/returns/mean",),
    "return_variance": ("ppo/returns/var",),
    "explained_variance": ("value/explained_variance", "ppo/val/var_explained"),
    # completions, in tokens
    "completion_length": ("completions/mean_length", "completion_length", "tokens/responses_len_mean"),
    "completion_length_min": ("completions/min_length",),
    "completion_length_max": ("completions/max_length",),
    "completion_length_std": ("tokens/responses_len_std",),
    "terminated_length": ("completions/mean_terminated_length",),
    "terminated_length_min": ("completions/min_terminated_length",),
    "terminated_length_max": ("completions/max_terminated_length",),
    "prompt_length": ("tokens/queries_len_mean",),
    "truncated_fraction": ("completions/clipped_ratio", "completions/truncated_fraction"),
    "eos_count": ("val/num_eos_tokens",),  # tokens in the whole batch
    "eos_fraction": ("val/contain_eos_token", "val/model_contain_eos_token"),  # share of the completions
    # another engine sampled than the one that trains (vLLM)
    "importance_ratio_min": ("sampling/importance_sampling_ratio/min",),
    "importance_ratio_mean": ("sampling/importance_sampling_ratio/mean",),
    "importance_ratio_max": ("sampling/importance_sampling_ratio/max",),
    "sampling_logp_difference": ("sampling/sampling_logp_difference/mean",),
    "sampling_logp_difference_max": ("sampling/sampling_logp_difference/max",),
    # preference pairs
    "rewards/chosen": ("rewards/chosen",),
    "rewards/rejected": ("rewards/rejected",),
    "rewards/accuracies": ("rewards/accuracies",),
    "rewards/margins": ("rewards/margins",),
    "logps/chosen": ("logps/chosen",),
    "logps/rejected": ("logps/rejected",),
    "logits/chosen": ("logits/chosen",),
    "logits/rejected": ("logits/rejected",),
    "nll_loss": ("nll_loss", "sft_loss"),
    "log_odds_ratio": ("log_odds_ratio",),
    "log_odds_chosen": ("log_odds_chosen",),
    # supervised, and reward models
    "token_accuracy": ("mean_token_accuracy", "token_acc"),
    "accuracy": ("accuracy",),
    "margin": ("margin",),
    "mean_reward": ("mean_reward",),  # of chosen and rejected together
    "min_reward": ("min_reward",),
    "max_reward": ("max_reward",),
    # progress, speed and memory
    "epoch": ("epoch",),
    "episode": ("episode",),
    "num_tokens": ("num_tokens", "num_input_tokens_seen", "total_tokens"),
    "episodes_per_second": ("eps",),
    "step_time": ("step_time",),
    "memory_gb": ("memory(GiB)", "memory/device_reserved (GiB)", "vram_reserved"),  # reserved on the GPU, in GiB
}  # fmt: skip
KEY_MAP: dict[str, str] = {key: name for name, keys in METRICS.items() for key in keys}
_RANK = {key: rank for keys in METRICS.values() for rank, key in enumerate(keys)}

# (key, keys of which one stands in the same log, what the key then means)
BESIDE: tuple[tuple[str, frozenset[str], str], ...] = (
    # KTO's `kl` is a batch estimate, and TRL's KTO logs only the side of the pair that the batch had
    ("kl", frozenset({"logps/chosen", "logps/rejected", "rewards/chosen", "rewards/rejected"}), "kl_kto"),
    ("ratio", frozenset({"clip_ratio/region_mean"}), "ratio_mean"),  # asynchronous GRPO
    ("accuracy", frozenset({"current_steps"}), "rewards/accuracies"),  # LLaMA-Factory's trainer_log.jsonl
)
_BESIDE_KEYS = frozenset(key for key, _, _ in BESIDE)

# Patterns (fnmatch) of keys that TRL and its users log and that keep their name: no other key says the same.
UNMAPPED = (
    # of one trainer alone: online DPO, Nash-MD, XPO, BCO, A2PO, asynchronous and distilling trainers, old PPO
    "alpha", "beta", "mixture_coef", "delta", "count/*", "implicit_reward", "v_star", "loss/dpo", "loss/xpo",
    "loss/score", "objective/ref_scores", "objective/scores_margin", "rewards/probabilities",
    "val/ref_contain_eos_token", "vespo/*", "tools/*", "batch/*", "sample/*", "perf/*", "jsd", "teacher_*", "ssd/*",
    "iw_opd/*", "completions/o*_policy_*", "matched_loss", "unmatched_loss", "on_policy_loss", "off_policy_loss",
    "self_distillation/*", "odds_ratio_loss", "ppo/*", "tokens/*", "env/reward_dist", "objective/kl_dist",
    "objective/*logprobs",
    # of trl_ext: share of completions that a reward function failed on, the reliability of the rewards, episodes
    "reward_failures/*", "reward_reliability/*", "episodes/*",
    # of a launcher: ms-swift, LLaMA-Factory, Axolotl, notebooks, Transformers at the end of a run
    "entropy/m??", "train_speed(*)", "*global_step*", "current_steps", "total_steps", "percentage", "throughput",
    "elapsed_time*", "remaining_time", "memory/*", "vram_allocated", "ppl", "tokens_per_second_per_gpu",
    "predict_loss", "[Ss]tep", "train_loss", "total_flos", "*_mem_?pu_*",
    # clocks
    "*runtime", "*s_per_second", "*model_preparation_time", "time/*", "profiling/*", "system/*",
)  # fmt: skip

# Patterns (fnmatch) of keys that measure time or memory, logged or canonical: two runs of one seed differ in these.
TIMING_KEYS = (
    "eps", "episodes_per_second", "*step_time", "*_runtime", "*_per_second", "*model_preparation_time", "time/*",
    "profiling/*", "system/*", "perf/*", "sample/time_in_queue_s", "train_speed(*)", "elapsed_time*", "remaining_time",
    "throughput", "tokens_per_second_per_gpu", "*memory_gb", "*memory(GiB)", "memory/*", "vram_*", "*_mem_?pu_*",
)  # fmt: skip

_PREFERENCE_PARTS = frozenset({"chosen", "rejected", "accuracies", "margins", "probabilities"})
# what Transformers itself logs of each of several evaluation sets
_OF_ANY_SET = frozenset({"loss", "accuracy", "runtime", "samples_per_second", "steps_per_second"})
_RUN_NAME = re.compile(r"^.* - (?=(?:train|eval)/)", re.DOTALL)
_LONGEST_KEY = 300


def is_timing(key: str) -> bool:
    """Whether `key`, as logged or canonical, measures time or memory."""
    return any(fnmatchcase(key, pattern) for pattern in TIMING_KEYS)


def is_known(key: str) -> bool:
    """Whether the map says what a logged `key` is, be it that the key keeps its own name."""
    bare = _split(key)[1]
    return _is_mapped(bare) or any(fnmatchcase(bare, pattern) for pattern in UNMAPPED)


def canonical_name(key: str) -> str:
    """The canonical name of a logged `key`; a key nobody knows keeps its own name.

    `rewards/<function>/mean` (and `rewards/<function>` of GRPO up to 0.16) becomes `reward/<function>/mean`;
    `rewards/chosen` and its like, of DPO and KTO, stay. `eval_<key>` and `eval/<key>` become `eval/<canonical>`, one of
    several evaluation sets (`eval_<set>_loss`) `eval/<set>/loss`. `train/<key>` of trackers, also behind the name of
    the run (`my-run - train/loss`), and the spelling of notebooks (`rewards / f / mean`) count as the plain key.
    """
    place, bare = _split(key)
    return place + _plain_name(bare)


@lru_cache(maxsize=256)
def canonical_names(keys: tuple[str, ...]) -> tuple[str | None, ...]:
    """The canonical name of each key of one log, `None` for one that another key of this log says better (or that is
    no string).

    Unlike `canonical_name` it sees what stands beside a key (`BESIDE`). Cached because a trainer logs the same few sets
    of keys thousands of times.
    """
    parts = [_split(key) if isinstance(key, str) else None for key in keys]
    beside = frozenset(part for part in parts if part is not None)
    names: list[str | None] = []
    owner: dict[str, int] = {}
    for i, part in enumerate(parts):
        if part is None:
            names.append(None)
            continue
        name = part[0] + _name_beside(*part, beside)
        names.append(name)
        other = owner.setdefault(name, i)
        if other != i:
            loser = max(i, other, key=lambda at: _RANK.get((parts[at] or part)[1], -1))
            names[loser] = None
            owner[name] = i if loser == other else other
    return tuple(names)


def canonical_name_beside(key: str, keys: Iterable[str]) -> str:
    """The canonical name of `key` in a log of `keys`, without asking whether another of them says it better."""
    part = _split(key)
    return part[0] + _name_beside(*part, frozenset(map(_split, keys)))


def _split(key: str) -> tuple[str, str]:
    """`("eval/", "loss")` of `eval_loss`; what comes first is empty for training."""
    key = _RUN_NAME.sub("", key).replace(" / ", "/").removeprefix("train/")
    if key == "Validation Loss":
        return "eval/", "loss"
    if not key.startswith(("eval_", "eval/")):
        return "", key
    rest = key[len("eval/") :]
    if _is_mapped(rest) or len(rest) > _LONGEST_KEY:
        return "eval/", rest
    for i in range(1, len(rest)):
        bare = rest[i + 1 :]
        if rest[i] == "_" and (bare in _OF_ANY_SET or ("/" in bare and _is_mapped(bare))):
            return f"eval/{rest[:i]}/", bare
    return "eval/", rest


def _name_beside(place: str, bare: str, beside: frozenset[tuple[str, str]]) -> str:
    if bare in _BESIDE_KEYS:
        for key, others, name in BESIDE:
            if key == bare and any((place, other) in beside for other in others):
                return name
    return _plain_name(bare)


def _plain_name(bare: str) -> str:
    if _is_reward(bare):
        stem = "reward/" + bare.split("rewards/", 1)[1]
        return stem if stem.endswith(("/mean", "/std")) else stem + "/mean"
    return KEY_MAP.get(bare, bare)


def _is_reward(bare: str) -> bool:
    """One reward function: `rewards/<function>...`, which SDPO puts under `self_distillation/`."""
    bare = bare.removeprefix("self_distillation/")
    return bare.startswith("rewards/") and bare.removeprefix("rewards/") not in _PREFERENCE_PARTS


def _is_mapped(bare: str) -> bool:
    return bare in KEY_MAP or bare in METRICS or bare in _BESIDE_KEYS or _is_reward(bare)
