"""Presets: the rules of one kind of trainer, with limits that speak earlier than the defaults.

For runs that are expensive: a false alarm now and then is cheaper there than a day lost.
"""

from collections.abc import Mapping
from typing import Any

from trl_ext.monitor.names import unknown_name
from trl_ext.monitor.rules import FAMILIES, RULES

_ALWAYS = ("numerics", "gradients", "learning_rate", "resources", "resume", "setup")
_REWARD = ("kl", "entropy", "reward", "lengths", "frozen")

# name: the families of rules, and the thresholds that differ from the defaults
PRESETS: dict[str, tuple[tuple[str, ...], dict[str, float]]] = {
    "ppo_safe": (
        (*_ALWAYS, *_REWARD, "policy_ratio", "value_function"),
        {
            "kl_high.per_sequence_warning": 8, "kl_high.per_sequence_error": 20,
            "kl_high.per_sequence_critical": 50, "approx_kl_spike.warning": 0.05, "clip_fraction_high.warning": 0.2,
            "entropy_collapse.warning_fraction": 0.3,
        },
    ),
    "grpo_safe": (
        (*_ALWAYS, *_REWARD, "groups", "policy_ratio", "sampling"),
        {
            "kl_high.per_token_warning": 0.3, "kl_high.per_token_error": 1, "kl_high.per_token_critical": 5,
            "zero_signal.warning_logs": 5, "entropy_collapse.warning_fraction": 0.3,
        },
    ),
    "dpo_safe": ((*_ALWAYS, "preference", "supervised", "frozen"), {"overfitting.rise": 0.03}),
    "sft_safe": ((*_ALWAYS, "supervised", "frozen"), {"overfitting.rise": 0.03, "loss_divergence.warning_growth": 1.3}),
}  # fmt: skip


def resolve_preset(preset: str | None) -> tuple[list[str], Mapping[str, Any]]:
    """The names of the rules and the changed thresholds; all rules and no changes for `None`.

    Raises:
        UserError: no such preset.
    """
    if preset is None:
        return list(RULES), {}
    if not isinstance(preset, str) or preset not in PRESETS:
        raise unknown_name("preset", str(preset), PRESETS)
    families, thresholds = PRESETS[preset]
    return [rule.name for family in families for rule in FAMILIES[family]], thresholds
