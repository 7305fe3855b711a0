"""Which trainer wrote a log."""

import re
from collections.abc import Iterable

_GRPO_ALONE = {"policy_loss", "entropy_coef", "clip_ratio", "completion_length", "cispo_clip_ratio"}
_PREFIX = re.compile(r"^(train/|eval[_/])")
_PREFERENCE = {"rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen"}


def trainer_kind(keys: Iterable[str]) -> str | None:
    """The trainer, guessed from all keys of a log, as logged or canonical; `None` when they tell nothing.

    `"GRPO/RLOO"` where the two cannot be told: since TRL 0.22 RLOO logs nothing that GRPO does not. A log of `loss`
    alone, or of token accuracies, counts as `"SFT"`; reward models up to TRL 0.23 look the same.
    """
    names = {_PREFIX.sub("", key) for key in keys}
    if names & {"loss/value_avg", "value_loss", "explained_variance", "value/explained_variance"}:
        return "PPO"
    if "objective/scores" in names or "objective/kl" in names:
        if names & _PREFERENCE:
            return "OnlineDPO"
        return "ReinforceLOO" if "advantages/mean" in names else "RLOO"  # RLOO up to TRL 0.21 had PPO's keys
    if names & _PREFERENCE:
        return _preference_kind(names)
    if names & {"reward", "reward_std", "frac_reward_zero_std"} or any(map(_is_reward_function, names)):
        return "GRPO" if names & _GRPO_ALONE or any(map(_is_grpo_alone, names)) else "GRPO/RLOO"
    if names & {"margin", "mean_reward", "min_reward"} or ("accuracy" in names and "mean_token_accuracy" not in names):
        return "Reward"
    return "SFT" if names & {"loss", "mean_token_accuracy"} else None


def _preference_kind(names: set[str]) -> str:
    if "log_odds_ratio" in names:
        return "ORPO"
    if "rewards/accuracies" not in names:
        return "KTO"
    return "CPO" if "nll_loss" in names else "DPO"


def _is_reward_function(name: str) -> bool:
    return name.startswith(("rewards/", "reward/"))


def _is_grpo_alone(name: str) -> bool:
    """GRPO's tools and vLLM correction, and its reward functions up to TRL 0.15, which had no `/mean`."""
    return name.startswith(("tools/", "sampling/", "vespo/")) or (
        name.startswith("rewards/") and not name.endswith(("/mean", "/std"))
    )
