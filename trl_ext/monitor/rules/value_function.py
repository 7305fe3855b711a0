"""The critic."""

import math
from collections.abc import Mapping

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Row
from trl_ext.monitor.rules.base import Finding, Levels, Rule, Verdict
from trl_ext.monitor.statistics import MAD_TO_SIGMA, Largest, LowestLevel, Start, Window


class ValueLossDivergence(Rule):
    """The value loss stays many times above its calmest stretch, and far outside its own noise.

    Sees: `loss/value_avg` on a logarithmic scale, against the lowest median its window has had (a rolling median would
    follow a slow rise). That level is never taken below a tenth of the start or of the largest reward variance seen:
    a critic of a reward that was dead until now has not diverged when the reward comes alive.
    Matters: advantages are rewards minus values, so a lost critic turns the policy gradient into noise.
    Source: no published range, hence growth against the run itself. Default: 10 times and 4 robust standard deviations
    is a warning, 100 times an error, three logs in a row. With an explained variance above 0 the critic still
    explains the returns, so it stays a warning.
    """

    name = "value_loss_divergence"
    patient = True
    metrics = ("value_loss",)
    explained_by = ("nonfinite_metric",)
    statistical = True

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._start = Start(int(limits["start_logs"]))
        self._logs = Window(window)
        self._calm = LowestLevel()
        self._reward_std = Largest()
        self._levels = Levels(dict.fromkeys((Severity.WARNING, Severity.ERROR), limits["logs"]))

    def check(self, row: Row) -> Finding | Verdict:
        value = row.metrics.get("value_loss")
        self._reward_std.push(abs(row.metrics.get("reward_std", 0.0)))
        if value is None or value <= 0:  # exactly 0 has no logarithm, and is no divergence
            return Verdict.NO_DATA
        self._start.push(value)
        self._logs.push(math.log(value))
        start = self._start.level
        if start is None:
            return Verdict.NO_DATA
        self._calm.push(self._logs)
        assert self._calm.location is not None
        floor = max(self.limits["start_share"] * start, self.limits["reward_share"] * self._reward_std.value**2)
        calm = max(math.exp(self._calm.location), floor)
        growth = value / calm
        z = (math.log(value) - math.log(calm)) / max(MAD_TO_SIGMA * self._calm.scale, self.limits["smallest_noise"])
        unlikely = z >= self.limits["min_z"]
        lost = row.metrics.get("explained_variance", -1.0) <= 0
        verdict = self._levels.push(
            unlikely and growth >= self.limits["warning_growth"],
            unlikely and growth >= self.limits["error_growth"] and lost,
        )
        if isinstance(verdict, Verdict):
            return verdict
        return self._finding(verdict, value, calm, growth)

    def _finding(self, severity: Severity, value: float, calm: float, growth: float) -> Finding:
        pace = math.exp(self._logs.slope()) - 1
        return Finding(
            severity, "value_loss", value,
            f"value loss is {value:.3g}, {growth:.3g} times its calmest level ({calm:.3g}), lately {pace:+.0%} a log",
            "1. learning_rate or vf_coef is too high for the value model. 2. The returns grow: look at the scale of "
            "the reward and at the KL. 3. Clip or scale: lower cliprange_value, set whiten_rewards=True.",
            {"calm_level": calm, "growth": growth, "change_per_log": pace},
        )  # fmt: skip


class ValueExplainedVariance(Rule):
    """The critic explains less than a constant would, for long.

    Sees: `value/explained_variance` (1 is perfect, 0 a constant, below 0 worse than that).
    Matters: its advantages add noise to those of the returns themselves.
    Source: 37 implementation details. Default: twenty logs in a row below -0.1 a warning (an untrained head begins
    there and needs a while), below -2 an error.
    """

    name = "value_explained_variance"
    patient = True
    metrics = ("explained_variance",)
    statistical = True
    explained_by = ("nonfinite_metric", "value_loss_divergence")

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._levels = Levels(dict.fromkeys((Severity.WARNING, Severity.ERROR), limits["logs"]))

    def check(self, row: Row) -> Finding | Verdict:
        value = row.metrics.get("explained_variance")
        if value is None:
            return Verdict.NO_DATA
        verdict = self._levels.push(value < self.limits["warning"], value < self.limits["error"])
        if isinstance(verdict, Verdict):
            return verdict
        return Finding(
            verdict, "explained_variance", value,
            f"the value function explains {value:.2g} of the variance of the returns, below {self.limits[verdict]:g} "
            f"for {self.limits['logs']:g} logs in a row: worse than a constant",
            "1. It learns too slowly: raise vf_coef, or the learning rate of the value model. 2. Rewards change scale: "
            "set whiten_rewards=True. 3. Give it its own model (value_model), or start it from the reward model.",
        )  # fmt: skip


class ValueLossWeight(Rule):
    """The value loss weighs so much that it drowns the policy's.

    Sees: the option `vf_coef`, known as a fact, in a run that logs a value loss.
    Matters: gradients of both are clipped together (max_grad_norm), so the policy's share of a step shrinks as the
    weight grows; with a shared backbone the value function alone decides where it goes. The curves look calm meanwhile.
    Source: TRL's default is 0.1, other PPOs have 0.5 to 1. Default: above 5 a warning, at the first log.
    """

    name = "value_loss_weight"
    at_start = True
    metrics = ("value_loss",)

    def check(self, row: Row) -> Finding | Verdict:
        weight = self.facts.get("vf_coef")
        if not isinstance(weight, int | float):
            return Verdict.NO_DATA
        if weight <= self.limits["warning"]:
            return Verdict.HEALTHY
        return Finding(
            Severity.WARNING, "value_loss", row.metrics.get("value_loss", math.nan),
            f"vf_coef is {weight:g}, {weight / 0.1:.0f} times TRL's default: the value loss drowns the policy's",
            "Set vf_coef to 0.1 (TRL's default) or at most 1. If the value function learns too slowly, raise its "
            "learning rate, or give it more passes (num_ppo_epochs), rather than its weight.",
            {"vf_coef": weight},
        )  # fmt: skip
