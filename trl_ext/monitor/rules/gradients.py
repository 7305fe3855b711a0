"""The norm of the gradient, against the run itself: no published range exists."""

import math
from collections.abc import Mapping

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Row
from trl_ext.monitor.rules.base import Finding, Levels, Rule, Verdict
from trl_ext.monitor.rules.kl import kl_of
from trl_ext.monitor.statistics import MAD_TO_SIGMA, LowestLevel, Recent, Streak, Window

SMALLEST_SCALE = 0.1  # of the log: a run whose norms hardly differ is not alarmed by a tenth

JUDGED_EVERY = 4  # logs: a level of sixteen is no other after one
EASIER = 3.0  # by which the limits are lower when the KL says that the run is in trouble


def beyond_band(row: Row, limits: Mapping[str, float]) -> bool:
    """Whether the KL to the reference is past `kl_high`'s band."""
    unit, kl = kl_of(row)
    return kl is not None and kl > limits[f"per_{unit}"]


class GradNormSpike(Rule):
    """The gradient of a log is far outside what the run has shown, several times within a short while.

    Sees: the logarithm of grad_norm (heavy-tailed in every run) against the median and scale of its window. One spike
    is weather, so only the third within a window's eighth counts, or the fourth of a hundred times the median within a
    half; a single one of a thousand times the median counts too.
    Matters: clipping (max_grad_norm) hides the size but keeps the direction, which is that of a few odd samples.
    Source: public logs; a healthy DPO run has single values of 25 times its median. Default: 30 times the median and 6
    robust standard deviations: warning. With a KL past its band a third of that, and once, is enough.
    """

    name = "grad_norm_spike"
    patient = True
    metrics = ("grad_norm",)
    statistical = True
    explained_by = (
        "nonfinite_metric",
        "grad_norm_trend",
        "loss_divergence",
        "early_divergence",
        "all_truncated",
        "zero_signal",
    )

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._logs = Window(window)
        self._span = max(8, window // 8)
        self._longer_span = window // 2
        self._hits, self._large = Recent(self._span), Recent(int(limits["large_hits"]))  # counts of logs
        self._logs_seen = Streak()
        self._least = math.log(limits["times"] / EASIER)

    def check(self, row: Row) -> Finding | Verdict:
        value = row.metrics.get("grad_norm")
        if value is None or value <= 0 or row.metrics.get("zero_std_fraction") == 1:
            return Verdict.NO_DATA  # a batch without signal has no gradient to compare
        log = math.log(value)
        self._logs_seen.count += 1
        usual = self._logs.median() if len(self._logs) else log
        easier = z = 1.0
        if log - usual > self._least and len(self._logs) >= self.limits["history"]:
            easier = EASIER if beyond_band(row, self.limits) else 1.0
            if log - usual > math.log(self.limits["times"] / easier):
                z = (log - usual) / max(MAD_TO_SIGMA * self._logs.mad(), SMALLEST_SCALE)
        self._logs.push(log)
        if z <= self.limits["min_z"] / easier:
            return Verdict.NO_DATA if self._within(self._hits, self._span) else Verdict.HEALTHY
        self._hits.push(self._logs_seen.count)
        hits, span = self._within(self._hits, self._span), self._span
        if log - usual > math.log(self.limits["large_times"]):
            self._large.push(self._logs_seen.count)
        large = self._within(self._large, self._longer_span)
        if large >= self.limits["large_hits"] and hits < self.limits["hits"]:
            hits, span = large, self._longer_span
        elif log - usual <= math.log(self.limits["times_at_once"]) and hits < self.limits["hits"] / easier:
            return Verdict.NO_DATA
        return Finding(
            Severity.WARNING, "grad_norm", value,
            f"grad_norm is {value:.3g}, {math.exp(log - usual):.3g} times its median ({math.exp(usual):.3g}); "
            f"{hits} such spikes in the last {span} logs",
            "1. Odd samples: look at the batch of this step (empty, very long or duplicated text). 2. learning_rate "
            "is too high, or the warm-up too short (warmup_steps). 3. Lower max_grad_norm to bound the damage.",
            {"median": math.exp(usual)},
        )  # fmt: skip

    def _within(self, hits: Recent, span: int) -> int:
        if not len(hits):
            return 0
        return sum(count > self._logs_seen.count - span for count in hits.values())


class GradNormTrend(Rule):
    """The level of the gradient has grown many times, and stays there.

    Sees: the median of the last logs against the lowest median of the run, on a logarithmic scale.
    Matters: a slow growth while the reward still rises is how many runs begin to diverge.
    Source: a public GRPO log (0.4 to 21 before it broke). Default: 20 times the calmest level for eight logs a warning,
    200 times an error (a third of the warning's when the KL is past its band); never against a level that was
    practically 0, which a batch without signal has.
    """

    name = "grad_norm_trend"
    patient = True
    metrics = ("grad_norm",)
    statistical = True
    explained_by = ("nonfinite_metric", "loss_divergence", "early_divergence", "all_truncated", "zero_signal")

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._recent = Window(int(limits["stretch"]))
        self._calm = LowestLevel()
        self._levels = Levels(dict.fromkeys((Severity.WARNING, Severity.ERROR), limits["logs"] / JUDGED_EVERY))
        self._count = Streak()

    def check(self, row: Row) -> Finding | Verdict:
        value = row.metrics.get("grad_norm")
        if value is None or value <= self.limits["smallest"] or row.metrics.get("zero_std_fraction") == 1:
            return Verdict.NO_DATA
        self._recent.push(math.log(value))
        logs = self._count.push(True)
        if len(self._recent) < self._recent.size or logs % JUDGED_EVERY:
            return Verdict.NO_DATA
        level = self._recent.median()
        if logs <= self._recent.size + self.limits["start_logs"]:
            self._calm.push(self._recent)  # the calmest stretch of the beginning: later ones may be a solved task
        assert self._calm.location is not None
        growth = math.exp(level - self._calm.location)
        easier = EASIER if beyond_band(row, self.limits) else 1.0
        far = level - self._calm.location > self.limits["min_z"] * max(MAD_TO_SIGMA * self._calm.scale, SMALLEST_SCALE)
        verdict = self._levels.push(
            far and growth > self.limits["warning"] / easier, far and growth > self.limits["error"]
        )
        if isinstance(verdict, Verdict):
            return verdict
        return Finding(
            verdict, "grad_norm", value,
            f"grad_norm has grown to {math.exp(level):.3g} (median of {len(self._recent)} logs), {growth:.3g} times "
            f"its level at the start ({math.exp(self._calm.location):.3g})",
            "1. learning_rate is too high for where the run is now: lower it, or let it decay. 2. The policy has left "
            "the reference: look at the KL. 3. Lower max_grad_norm; go back to a checkpoint from before the growth.",
            {"growth": growth},
        )  # fmt: skip
