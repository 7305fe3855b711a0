"""Completions and how they end."""

from collections.abc import Mapping

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Row
from trl_ext.monitor.rules.base import Finding, Levels, Rule, Verdict
from trl_ext.monitor.rules.reward_series import RewardSeries, reward_series
from trl_ext.monitor.statistics import Constant, Recent, Share, Start, Streak

SEVERITIES = (Severity.WARNING, Severity.ERROR)


class AllTruncated(Rule):
    """Practically every completion runs into the length limit.

    Sees: `completions/clipped_ratio`, near 1 or risen from few to most in the mean of 16 logs; in logs of older
    trainers, a mean length that is exactly the same whole number in ten logs, and is the limit where that is known (an
    error after 25).
    Matters: a truncated answer is scored for what it lacks; often all score alike, and no end is ever learnt.
    Source: autocontext PR #1067, two public GRPO logs. Default: 95% for three logs, or as many as chance cannot explain
    where a log has few completions, is a warning; eight are an error, since some models begin there and learn to be
    brief; an error at once in a first log that says that no group has a spread. A mean above 70% is a warning in a run
    that began below 30%.
    """

    name = "all_truncated"
    patient = True
    metrics = ("truncated_fraction", "completion_length")
    explained_by = ("nonfinite_metric",)

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._full, self._same = Streak(), Constant()
        self._logs = Streak()
        self._usual = Share(at_least=4)  # a group has at least two completions, nearly always four or more
        self._start, self._recent = Start(8), Recent(16)

    def check(self, row: Row) -> Finding | Verdict:
        m = row.metrics
        share, length = m.get("truncated_fraction"), m.get("completion_length")
        if share is not None:
            before = self._full.count
            logs = self._full.push(share >= self.limits["share"])
            if self._start.level is None:
                self._start.push(share)
            self._recent.push(share)
            if logs == 0:
                self._usual.push(share, before)
                self._logs.count += 1
                return self._risen(share)
            first = self._logs.push(True) == logs  # nothing else has been seen yet
            no_spread = m.get("zero_std_fraction") == 1 or m.get("reward_std") == 0
            at_once = first and share == 1 and no_spread and m.get("grad_norm") == 0
            completions = self.facts.get("completions_per_log") or self._usual.parts
            unlikely = logs >= self.limits["logs"] and self._usual.chance(logs, completions) < self.limits["chance"]
            if not (at_once or unlikely):
                return Verdict.NO_DATA
            severity = Severity.ERROR if at_once or logs >= self.limits["error_logs"] else Severity.WARNING
            what, metric, value = f"{share:.0%} of the completions are cut off", "truncated_fraction", share
        elif length is not None:
            logs = self._same.push(length)
            at_limit = length == self.facts.get("max_completion_length", length)
            if logs < self.limits["same_length_logs"] or length != int(length) or not at_limit or length <= 1:
                return Verdict.HEALTHY if logs == 1 else Verdict.NO_DATA
            severity = Severity.ERROR if logs >= self.limits["same_length_error_logs"] else Severity.WARNING
            what, metric, value = f"every completion is exactly {length:g} tokens long", "completion_length", length
        else:
            return Verdict.NO_DATA
        at = f" at {length:g} tokens on average" if length is not None and share is not None else ""
        return _truncated(severity, metric, value, f"{what}{at} for {logs} logs in a row")

    def _risen(self, share: float) -> Finding | Verdict:
        start = self._start.level
        if start is None or start > self.limits["few"] or share <= self.limits["few"]:
            return Verdict.HEALTHY
        mean = self._recent.mean()
        if mean <= self.limits["most"] or len(self._recent) < self._recent.size:
            return Verdict.HEALTHY if mean < 0.5 else Verdict.NO_DATA
        what = f"{mean:.0%} of the completions of the last {self._recent.size} logs are cut off, {start:.0%} at first"
        return _truncated(Severity.WARNING, "truncated_fraction", share, what)


def _truncated(severity: Severity, metric: str, value: float, what: str) -> Finding:
    return Finding(
        severity, metric, value, f"{what}: they run into the length limit",
        "1. max_completion_length (response_length for PPO) is too small for this model: raise it. 2. The model "
        "never ends: check eos_token against the chat template, and generation_config.eos_token_id. 3. The prompt "
        "asks for more than fits. Meanwhile mask_truncated_completions=True keeps them out of the loss.",
    )  # fmt: skip


class EosMissing(Rule):
    """No completion of a PPO batch ends with EOS.

    Sees: `val/num_eos_tokens` of 0, three updates in a row.
    Matters: with missing_eos_penalty every score carries the penalty; without it, the policy is never taught to end.
    Source: a public PPO log (hongbomiao) and TRL's PPO docs, which call this number a debugging signal. Default: an
    error after three, where a batch holds dozens of completions.
    """

    name = "eos_missing"
    patient = True
    metrics = ("eos_count",)
    explained_by = ("nonfinite_metric", "all_truncated")

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._none = Streak()

    def check(self, row: Row) -> Finding | Verdict:
        count = row.metrics.get("eos_count")
        if count is None:
            return Verdict.NO_DATA
        if self._none.push(count == 0) < self.limits["logs"]:
            return Verdict.NO_DATA if self._none.count else Verdict.HEALTHY
        return Finding(
            Severity.ERROR, "eos_count", count,
            f"not one completion ended with EOS in {self._none.count} updates in a row",
            "1. response_length is too small. 2. stop_token or eos_token is not what the model was taught to write: "
            "compare with the chat template and the SFT data. 3. pad_token equals eos_token and SFT masked it, so that "
            "the model never learnt to end: use another pad_token there.",
            {"updates": self._none.count},
        )  # fmt: skip


class LengthCollapse(Rule):
    """Completions shrink to next to nothing.

    Sees: the mean length below 5 tokens for three logs, in a run whose completions were at least twice as long at
    first.
    Matters: the empty answer is a favourite way to avoid every penalty, that on the KL included.
    Source: DESIGN; hacked length penalties. Default: an error.
    """

    name = "length_collapse"
    patient = True
    metrics = ("completion_length",)
    explained_by = ("nonfinite_metric",)

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._start = Start(int(limits["start_logs"]))
        self._levels = Levels({Severity.ERROR: limits["logs"]})

    def check(self, row: Row) -> Finding | Verdict:
        length = row.metrics.get("completion_length")
        if length is None:
            return Verdict.NO_DATA
        if self._start.level is None:
            self._start.push(length)
        start = self._start.level
        if start is None:
            return Verdict.NO_DATA
        verdict = self._levels.push(length < self.limits["tokens"] and start >= 2 * self.limits["tokens"])
        if isinstance(verdict, Verdict):
            return verdict
        return Finding(
            verdict, "completion_length", length,
            f"completions are {length:.3g} tokens long, {start:.3g} at the start",
            "1. The reward punishes length, or pays for an empty answer: test it on one. 2. The summed KL penalty is "
            "cheapest for short text: lower kl_coef, or pay for content. 3. EOS is rewarded (missing_eos_penalty too "
            "large). Use min_new_tokens to hold it for now.",
            {"start": start},
        )  # fmt: skip


class LengthDrift(Rule):
    """Completions have become three times as long, or as short, as they were.

    Sees: the mean length of the last logs against that of the first ones.
    Matters: length is what a reward most easily pays for by mistake; and time and memory grow with it.
    Source: DESIGN; R1-style runs grow for good reasons, and a base model learns to stop. Default: a warning for ten
    logs when the reward did not gain from it, an `info` when it did.
    """

    name = "length_drift"
    patient = True
    metrics = ("completion_length",)
    statistical = True
    explained_by = ("nonfinite_metric", "length_collapse", "all_truncated", "reward_hacking_suspected")

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        size = int(limits["start_logs"])
        self._start, self._recent = Start(size), Recent(size)
        self._streak = Streak()

    def check(self, row: Row) -> Finding | Verdict:
        length = row.metrics.get("completion_length")
        if length is None:
            return Verdict.NO_DATA
        if self._start.level is None:
            self._start.push(length)
        self._recent.push(length)
        series = reward_series(self, row) if "reward" in row.metrics else None
        start = self._start.level
        if start is None or start <= 0:
            return Verdict.NO_DATA
        times = self._recent.mean() / start
        holds = times > self.limits["up"] or times < self.limits["down"]
        if self._streak.push(holds) < self.limits["logs"]:
            return Verdict.NO_DATA if holds else Verdict.HEALTHY
        severity = Severity.INFO if _gained(series) else Severity.WARNING
        return Finding(
            severity, "completion_length", length,
            f"completions went from {start:.3g} to {self._recent.mean():.3g} tokens ({times:.2g} times)"
            + ("" if severity is Severity.INFO else " and the reward gained nothing by it"),
            "Read some. 1. The reward pays for length (or for brevity): look at their correlation. 2. The model "
            "loops: see repetition. 3. If it is wanted, widen the band: thresholds={'length_drift.up': ...}.",
            {"start": start, "times": times},
        )  # fmt: skip


def _gained(series: RewardSeries | None) -> bool:
    """Whether the reward rose by more than the noise of one log."""
    return series is not None and series.start is not None and series.short - series.start > series.noise
