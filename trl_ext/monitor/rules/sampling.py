"""Another engine samples than the one that trains (vLLM)."""

from collections.abc import Mapping

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Row
from trl_ext.monitor.rules.base import Finding, Levels, Rule, Verdict
from trl_ext.monitor.statistics import Recent, Start, Streak


class SamplingMismatch(Rule):
    """The sampling engine and the trainer disagree on the probabilities of the samples.

    Sees: the mean importance-sampling ratio, about 1 when both agree; and the mean difference of log-probabilities,
    against its own start.
    Matters: the samples are no longer those of the policy; corrections throw most of them away.
    Source: trl#4772, trl PR #5815. Default: below 0.8 twice in a row a warning, below 0.5 an error at once; a
    difference of five times its start and above 0.05 nats for ten logs a warning.
    """

    name = "sampling_mismatch"
    patient = True
    metrics = ("importance_ratio_mean", "sampling_logp_difference")
    explained_by = ("nonfinite_metric",)

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._levels = Levels({Severity.WARNING: limits["logs"], Severity.ERROR: 1})
        self._start, self._recent = Start(8), Recent(8)
        self._grown = Streak()

    def check(self, row: Row) -> Finding | Verdict:
        ratio, difference = row.metrics.get("importance_ratio_mean"), row.metrics.get("sampling_logp_difference")
        verdict = Verdict.NO_DATA
        if ratio is not None:
            level_of = self._levels.push(ratio < self.limits["warning"], ratio < self.limits["error"])
            if isinstance(level_of, Severity):
                what = f"mean importance-sampling ratio is {ratio:.3g}, not about 1"
                return _finding(level_of, "importance_ratio_mean", ratio, what)
            verdict = level_of
        if difference is None:
            return verdict
        if self._start.level is None:
            self._start.push(difference)
        self._recent.push(difference)
        if difference <= self.limits["difference"]:
            self._grown.count = 0
            return verdict
        start, level = self._start.level, self._recent.median()
        grown = start is not None and level > max(self.limits["times"] * start, self.limits["difference"])
        if self._grown.push(grown) < self.limits["difference_logs"]:
            return Verdict.NO_DATA if grown else verdict
        what = f"log-probabilities of sampler and trainer differ by {level:.3g} nats a token, {start:.3g} at the start"
        return _finding(Severity.WARNING, "sampling_logp_difference", difference, what)


def _finding(severity: Severity, metric: str, value: float, what: str) -> Finding:
    return Finding(
        severity, metric, value, f"{what}: the samples are not those of the policy that is trained",
        "1. vLLM holds old weights: is sync_weights done after every update? 2. Other precision there: the same dtype "
        "in both (fp16 instead of bf16 often closes it), no quantized KV cache. 3. Other sampling: temperature, "
        "top_p, top_k, repetition_penalty must be the same. 4. Keep vllm_importance_sampling_correction=True "
        "meanwhile.",
    )  # fmt: skip
