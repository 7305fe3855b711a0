"""Numbers that are none."""

import math
from collections.abc import Mapping
from typing import Any

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Layout, Row
from trl_ext.monitor.rules.base import Finding, Rule, Verdict
from trl_ext.monitor.statistics import Names, Streak

# The most telling first: a NaN reward explains a NaN gradient, not the other way round. Left out because healthy runs
# have them: ratio_variance (of a single number on stock PPO), standard deviations over one completion, the explained
# variance of constant returns.
WATCHED = (
    "reward", "reward_with_kl", "kl_penalty", "mean_reward", "rewards/chosen", "rewards/rejected", "rewards/margins",
    "logps/chosen", "logps/rejected", "kl_per_sequence", "kl_per_token", "kl_kto", "entropy_per_token",
    "entropy_per_sequence", "ratio_mean", "approx_kl", "value_loss", "policy_loss", "loss", "grad_norm",
)  # fmt: skip
_WATCHED = frozenset(WATCHED)


class NonfiniteMetric(Rule):
    """A metric that must be a number is NaN, infinite, or `None` after it had been one; the reward need not have been.

    Sees: rewards, log-probabilities, KL, entropy, ratio, losses and grad_norm. TRL >= 1.0 logs `None` when every value
    was NaN, and `logging_nan_inf_filter` hides a NaN loss (0.0 on the first step), so the loss alone proves nothing.
    One reward function without a number is healthy (TRL: it does not apply to this batch) as long as another has one.
    Matters: the next update writes NaN into every weight, and PPO's next `generate` raises.
    Source: TRL_FACTS; trl#1199, trl#1447, open-r1#704. Default: at once, `critical`. A grad_norm alone, beside a loss
    that is a number and not 0, is a warning at first and critical in the next log (`grad_norm_logs`): that step is done
    either way, and where a loss scaler is at work it was skipped; with fp16 the first few are not mentioned at all.
    """

    name = "nonfinite_metric"
    metrics = (*WATCHED, "reward/*")

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._seen = Names()
        self._grad_norm_streak = Streak()
        self._layout: Layout | None = None  # whose names have been seen

    def check(self, row: Row) -> Finding | Verdict:
        bad = self._bad(row) if row.nonfinite or row.absent else {}
        if row.layout is not self._layout:
            self._seen.names.update(row.metrics)
            self._layout = row.layout if not (row.nonfinite or row.absent) else None
        streak = self._grad_norm_streak.push("grad_norm" in bad)
        if not bad:
            return Verdict.NO_DATA if _WATCHED.isdisjoint(row.metrics) else Verdict.HEALTHY
        scaled = bool(self.facts.get("fp16"))
        few = streak < self.limits["grad_norm_logs_fp16" if scaled else "grad_norm_logs"]
        alone = few and set(bad) == {"grad_norm"} and row.metrics.get("loss", 0) != 0
        if alone and scaled:
            return Verdict.NO_DATA
        (metric, value), *others = bad.items()
        # the reader knows the keys of the log; W&B and TensorBoard have `train/` in front
        logged = {name: key.removeprefix("train/") for name, key in zip(row.layout.names, row.layout.keys, strict=True)
                  if isinstance(key, str)}  # fmt: skip
        also = f" (also {', '.join(logged.get(name, name) for name, _ in others)})" if others else ""
        return Finding(
            Severity.WARNING if alone else Severity.CRITICAL, metric, math.nan if value is None else value,
            f"{logged.get(metric, metric)} is {_word(value)}{also}{_masked_loss(row, bad)}", _advice(set(bad)),
            {"metrics": list(bad)},
        )  # fmt: skip

    def _bad(self, row: Row) -> dict[str, float | None]:
        """What is no number, the most telling first."""
        # functions ran and gave no number: a fault from the first log on
        scoreless = any(map(_is_function, row.absent))
        expected = self._seen.names | {"reward"} if scoreless else self._seen.names
        lost: dict[str, float | None] = {name: None for name in row.absent if name in expected}
        lost.update(row.nonfinite)
        bad = {name: lost[name] for name in WATCHED if name in lost}
        functions = {name: value for name, value in lost.items() if _is_function(name)}
        return bad if any(map(_is_function, row.metrics)) else {**functions, **bad}


def _is_function(name: str) -> bool:
    """Whether it is the mean of one reward function."""
    return name.startswith("reward/") and name.endswith("/mean")


def _word(value: float | None) -> str:
    return "None, as TRL writes when every value was NaN" if value is None else str(value)


def _masked_loss(row: Row, bad: Mapping[str, Any]) -> str:
    if "loss" in bad or "loss" not in row.metrics:
        return ""
    return f"; loss shows {row.metrics['loss']:g}, but logging_nan_inf_filter would hide a NaN there"


def _advice(bad: set[str]) -> str:
    if any(name.startswith(("reward/", "reward_")) or name in ("reward", "mean_reward") for name in bad):
        cause = "a reward function or reward_model returned NaN or None for a whole batch: test it on these completions"
    elif bad == {"grad_norm"}:
        cause = "the backward pass overflowed: use bf16=True instead of fp16, lower learning_rate or max_grad_norm"
    elif "rewards/chosen" not in bad and {"rewards/rejected", "logps/rejected"} & bad:
        cause = "only the rejected side: an empty or fully truncated completion there; filter them or raise max_length"
    else:
        cause = "overflow: load the models in bf16 or float32 rather than float16 and lower learning_rate"
    return f"1. {cause}. 2. The weights may hold NaN already: resume_from_checkpoint an earlier checkpoint."
