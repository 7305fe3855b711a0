"""Entropy of the policy."""

from collections.abc import Mapping

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Row
from trl_ext.monitor.rules.base import Finding, Levels, Rule, Verdict
from trl_ext.monitor.statistics import Start

SEVERITIES = (Severity.WARNING, Severity.ERROR)


class EntropyCollapse(Rule):
    """The entropy per token stays below a fifth of its start, in a run that optimises a reward.

    Sees: `entropy` or `policy/entropy_avg`, never `objective/entropy`, which padding made negative before trl#6121.
    Only logs with a reward: in SFT a falling entropy is the goal. The start is the median of the first few logs.
    Matters: without exploration all completions of a group are alike, and nothing more is learnt.
    Source: arXiv 2505.22617. Default: 20% of the start is a warning, 5% an error; a ratio, so no unit or vocabulary
    enters; five logs in a row, since the entropy of a small batch varies by a factor of two and more.
    """

    name = "entropy_collapse"
    patient = True
    metrics = ("entropy_per_token",)
    explained_by = ("nonfinite_metric",)
    statistical = True

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._start = Start(int(limits["start_logs"]))
        self._fractions = [limits[f"{severity}_fraction"] for severity in SEVERITIES]
        self._levels = Levels(dict.fromkeys(SEVERITIES, limits["logs"]))

    def check(self, row: Row) -> Finding | Verdict:
        value = row.metrics.get("entropy_per_token")
        if value is None or "reward" not in row.metrics:
            return Verdict.NO_DATA
        if self._start.level is None:
            self._start.push(value)
        start = self._start.level
        if start is None or start <= 0:
            return Verdict.NO_DATA
        fraction = value / start
        warning, error = self._fractions
        verdict = self._levels.push(fraction < warning, fraction < error)
        if isinstance(verdict, Verdict):
            return verdict
        return Finding(
            verdict, "entropy_per_token", value,
            f"entropy is {value:.3g} nats a token, {fraction:.0%} of its start ({start:.3g}), below "
            f"{self._fractions[SEVERITIES.index(verdict)]:.0%} for {self.limits['logs']:g} logs in a row",
            "1. The reward pays for one kind of text: read completions and reward function. 2. learning_rate is "
            "too high or the KL penalty too weak: raise kl_coef (PPO) or beta (GRPO, RLOO). 3. It explores too little: "
            "set entropy_coef (GRPO), raise epsilon_high or temperature.",
            {"start": start, "fraction": fraction},
        )  # fmt: skip


class EntropyExplosion(Rule):
    """The entropy per token stays far above its start, in a run that optimises a reward.

    Sees: as `entropy_collapse`. Both a factor of the start and a level in nats: a policy at 0.03 nats may triple that
    and still be nearly deterministic.
    Matters: the policy turns into noise; it usually ends in gibberish that no reward function was written for.
    Source: rllm#116 (healthy below 1 nat with clip-higher, 2 and rising is trouble). Default: twice the start and above
    1 nat for ten logs in a row a warning, three times and above 2 for five logs an error.
    """

    name = "entropy_explosion"
    patient = True
    metrics = ("entropy_per_token",)
    statistical = True
    explained_by = ("nonfinite_metric",)

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._start = Start(int(limits["start_logs"]))
        self._levels = Levels({severity: limits[f"{severity}_logs"] for severity in SEVERITIES})

    def check(self, row: Row) -> Finding | Verdict:
        value = row.metrics.get("entropy_per_token")
        if value is None or "reward" not in row.metrics:
            return Verdict.NO_DATA
        if self._start.level is None:
            self._start.push(value)
        start = self._start.level
        if start is None or start <= 0:
            return Verdict.NO_DATA
        limits = self.limits
        if value <= limits["warning_nats"]:
            self._levels.push(False, False)
            return Verdict.HEALTHY
        verdict = self._levels.push(
            value > limits["warning_times"] * start and value > limits["warning_nats"],
            value > limits["error_times"] * start and value > limits["error_nats"],
        )
        if isinstance(verdict, Verdict):
            return verdict
        return Finding(
            verdict, "entropy_per_token", value,
            f"entropy is {value:.3g} nats a token, {value / start:.2g} times its start ({start:.3g}), for "
            f"{limits[f'{verdict}_logs']:g} logs in a row",
            "1. learning_rate is too high: lower it. 2. The entropy bonus is too strong: lower entropy_coef, or "
            "epsilon_high. 3. Nothing holds the policy: raise kl_coef (PPO) or beta (GRPO, RLOO). 4. Importance ratios "
            "are off: see sampling_mismatch.",
            {"start": start},
        )  # fmt: skip
