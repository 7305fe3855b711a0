"""Every number a rule compares with: name, default, unit and where it comes from. The one place."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trl_ext.errors import UserError
from trl_ext.monitor.names import unknown_name


@dataclass(frozen=True)
class Threshold:
    """`name` is `<rule>.<limit>`."""

    name: str
    default: float
    unit: str
    source: str


_IN_A_ROW = "one odd batch is not a trend; the streak at which the healthy logs of the benchmark stay silent"
_KL = "TRL how_to_train (0.11), N implementation details of RLHF with PPO: healthy 0 to 10, target 6"
_KL_TOKEN = "healthy public GRPO logs stay below 0.1, one whose gradients exploded was at 2 to 3"
_ENTROPY = "arXiv 2505.22617: little is learnt below a fifth of the initial entropy"
_VALUE = "no published range, so factors of the run's own calmest stretch"
_RATIO = "N implementation details: reference run 0.74 to 1.23 for single tokens, so more than a mean should move"

THRESHOLDS: tuple[Threshold, ...] = (
    Threshold("nonfinite_metric.grad_norm_logs", 1, "logs in a row", "without a loss scaler one NaN step ends a run; "
              "with fp16 the callback sets 3, since the scaler skips single overflows"),
    Threshold("kl_high.per_sequence_warning", 10, "nats a sequence", _KL),
    Threshold("kl_high.per_sequence_error", 30, "nats a sequence", "three times the band: no published run came back"),
    Threshold("kl_high.per_sequence_critical", 100, "nats a sequence", "ten times the band: another language"),
    Threshold("kl_high.per_token_warning", 0.5, "nats a token", _KL_TOKEN),
    Threshold("kl_high.per_token_error", 2, "nats a token", _KL_TOKEN),
    Threshold("kl_high.per_token_critical", 10, "nats a token", "as far as a random policy is from a language model"),
    Threshold("kl_high.logs", 3, "logs in a row", _IN_A_ROW),
    Threshold("entropy_collapse.warning_fraction", 0.2, "of the start", _ENTROPY),
    Threshold("entropy_collapse.error_fraction", 0.05, "of the start", "the policy repeats itself"),
    Threshold("entropy_collapse.start_logs", 3, "logs", "few: a collapse may begin at once; a late start hides it"),
    Threshold("entropy_collapse.logs", 5, "logs in a row", _IN_A_ROW),
    Threshold("value_loss_divergence.warning_growth", 10, "times the calmest level", _VALUE),
    Threshold("value_loss_divergence.error_growth", 100, "times the calmest level", _VALUE),
    Threshold("value_loss_divergence.min_z", 4, "robust standard deviations of the log", "6e-5 two-sided for noise"),
    Threshold("value_loss_divergence.start_logs", 5, "logs", "the critic starts from a random head and needs a moment"),
    Threshold("value_loss_divergence.logs", 3, "logs in a row", _IN_A_ROW),
    Threshold("ratio_out_of_band.warning_low", 0.8, "mean ratio", _RATIO),
    Threshold("ratio_out_of_band.warning_high", 1.25, "mean ratio", _RATIO),
    Threshold("ratio_out_of_band.error_low", 0.5, "mean ratio", "TRL PPO docs: 2 and 0.1 are wrong"),
    Threshold("ratio_out_of_band.error_high", 2, "mean ratio", "TRL PPO docs: 2 and 0.1 are wrong"),
    Threshold("ratio_out_of_band.critical_low", 0.1, "mean ratio", "TRL PPO docs: 2 and 0.1 are wrong"),
    Threshold("ratio_out_of_band.critical_high", 10, "mean ratio", "trl#1031: TRL itself skipped such a batch"),
    Threshold("ratio_out_of_band.logs", 2, "logs in a row", _IN_A_ROW),
)  # fmt: skip


def resolve_thresholds(overrides: Mapping[str, Any] | None = None) -> dict[str, dict[str, float]]:
    """The limits of each rule: the defaults, changed by `overrides`.

    Args:
        overrides: `{"kl_high.logs": 5}` or, as YAML reads better, `{"kl_high": {"logs": 5}}`.
    Raises:
        UserError: no such threshold, or its value is not a finite number.
    """
    flat = {threshold.name: threshold.default for threshold in THRESHOLDS}
    counts = {threshold.name for threshold in THRESHOLDS if threshold.unit.startswith("logs")}
    for name, value in _flatten(overrides or {}):
        if name not in flat:
            raise unknown_name("threshold", name, flat)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise UserError(f"threshold {name!r} must be a finite number, not {value!r} (default {flat[name]:g})")
        if name in counts and (value < 1 or value != int(value)):
            raise UserError(f"threshold {name!r} counts logs: a whole number of at least 1, not {value!r}")
        flat[name] = value
    limits: dict[str, dict[str, float]] = {}
    for name, value in flat.items():
        rule, limit = name.split(".", 1)
        limits.setdefault(rule, {})[limit] = value
    return limits


def _flatten(overrides: Mapping[str, Any]) -> list[tuple[str, Any]]:
    if not isinstance(overrides, Mapping):
        raise UserError(f"thresholds must be a mapping such as {{'kl_high.logs': 5}}, not {overrides!r}")
    flat: list[tuple[str, Any]] = []
    for name, value in overrides.items():
        if isinstance(value, Mapping):
            flat += [(f"{name}.{limit}", inner) for limit, inner in value.items()]
        else:
            flat.append((str(name), value))
    return flat
