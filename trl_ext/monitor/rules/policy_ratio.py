"""How far one update moves the policy."""

from collections.abc import Mapping

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Row
from trl_ext.monitor.rules.base import Finding, Levels, Rule, Verdict
from trl_ext.monitor.statistics import Streak

SEVERITIES = (Severity.WARNING, Severity.ERROR, Severity.CRITICAL)


class RatioOutOfBand(Rule):
    """The mean of new over old policy probability leaves its band.

    Sees: `val/ratio`. Its expectation over the old policy's samples is 1 whatever the update, so a mean far from 1 is
    not a large step but a wrong one.
    Matters: samples count many times or not at all; where they leave the clip range there is no gradient.
    Source: 37 and N implementation details, TRL PPO docs (2 and 0.1 are wrong), trl#1031 (above 10 the batch was
    skipped). Default: outside 0.8 to 1.25 a warning and outside 0.5 to 2 an error, two logs in a row, since one small
    batch can stray; outside 0.1 to 10 critical at once.
    """

    name = "ratio_out_of_band"
    metrics = ("ratio_mean",)
    explained_by = ("nonfinite_metric",)

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._bands = [(limits[f"{severity}_low"], limits[f"{severity}_high"]) for severity in SEVERITIES]
        logs = limits["logs"]
        self._levels = Levels({Severity.WARNING: logs, Severity.ERROR: logs, Severity.CRITICAL: 1})

    def check(self, row: Row) -> Finding | Verdict:
        value = row.metrics.get("ratio_mean")
        if value is None:
            return Verdict.NO_DATA
        verdict = self._levels.push(*(not low <= value <= high for low, high in self._bands))
        if isinstance(verdict, Verdict):
            return verdict
        low, high = self._bands[SEVERITIES.index(verdict)]
        return Finding(
            verdict, "ratio_mean", value,
            f"mean probability ratio is {value:.3g}, outside {low:g} to {high:g}",
            "1. learning_rate is too high. 2. Too many passes over a batch: lower num_ppo_epochs or num_mini_batches. "
            "3. The old log-probabilities come from another model state: dropout on, or another temperature or dtype.",
            {"low": low, "high": high},
        )  # fmt: skip


class ApproxKLSpike(Rule):
    """One update moves the policy too far.

    Sees: `policy/approxkl_avg`, the KL between the policy before and after an update, in nats a token.
    Matters: PPO's clipping no longer holds, the old samples say little of the new policy.
    Source: TRL_FACTS: healthy below 0.1; 0.2 preceded instability (trl#238); RL4LMs stops at 0.5. Default: one log
    above 0.2, or three in a row above 0.1, is a warning; five in a row above 0.2, or one above 1, an error. It closes
    below 0.05, so that a run that hovers about a limit is one alert.
    """

    name = "approx_kl_spike"
    metrics = ("approx_kl",)
    close_after = 1
    explained_by = ("nonfinite_metric",)

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._above, self._far = Streak(), Streak()

    def check(self, row: Row) -> Finding | Verdict:
        value = row.metrics.get("approx_kl")
        if value is None:
            return Verdict.NO_DATA
        limits = self.limits
        above, far = self._above.push(value > limits["warning"]), self._far.push(value > limits["error"])
        if value > limits["error_at_once"] or far >= limits["error_logs"]:
            severity = Severity.ERROR
        elif far or above >= limits["warning_logs"]:
            severity = Severity.WARNING
        else:
            return Verdict.HEALTHY if value < limits["warning"] / 2 else Verdict.NO_DATA
        return Finding(
            severity, "approx_kl", value,
            f"one update moved the policy by {value:.3g} nats a token (healthy: below {limits['warning']:g})",
            "1. learning_rate is too high. 2. Too many passes over a batch: lower num_ppo_epochs, or raise "
            "num_mini_batches. 3. Advantages are too large: set whiten_rewards=True, or scale the reward.",
        )  # fmt: skip


class ClipFractionHigh(Rule):
    """A large share of the tokens is clipped, update after update.

    Sees: `policy/clipfrac_avg`, `clip_ratio/region_mean`, or `clip_ratio` of older GRPO.
    Matters: clipped tokens give no gradient, so most of a batch teaches nothing.
    Source: N implementation details: 0.005 is healthy, 0.02 "aggressive". Default: above 0.3 five logs in a row a
    warning, above 0.6 an error.
    """

    name = "clip_fraction_high"
    patient = True
    metrics = ("clip_fraction",)
    explained_by = ("nonfinite_metric", "approx_kl_spike", "ratio_out_of_band")

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._levels = Levels(dict.fromkeys((Severity.WARNING, Severity.ERROR), limits["logs"]))

    def check(self, row: Row) -> Finding | Verdict:
        value = row.metrics.get("clip_fraction")
        if value is None:
            return Verdict.NO_DATA
        verdict = self._levels.push(value > self.limits["warning"], value > self.limits["error"])
        if isinstance(verdict, Verdict):
            return verdict
        return Finding(
            verdict, "clip_fraction", value,
            f"{value:.0%} of the tokens are clipped, above {self.limits[verdict]:.0%} for {self.limits['logs']:g} "
            "logs in a row",
            "1. learning_rate is too high. 2. Too many passes over a batch: lower num_ppo_epochs or num_iterations. 3. "
            "The old log-probabilities are not those of the sampling policy: dropout, another dtype or temperature.",
        )  # fmt: skip
