"""The learning rate, against what was asked for."""

import math
from collections.abc import Callable, Mapping

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Row
from trl_ext.monitor.rules.base import Finding, Levels, Rule, Verdict
from trl_ext.monitor.statistics import Largest, Streak

# What follows the warm-up, as a share of the peak, by the share of the remaining steps that is done.
DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda done: 1 - done,
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "constant": lambda done: 1.0,
    "constant_with_warmup": lambda done: 1.0,
}


def scheduled(kind: str, peak: float, warmup_steps: float, max_steps: float, step: float) -> float:
    """The learning rate of Transformers' schedule `kind` after `step` steps."""
    if step < warmup_steps and kind != "constant":
        return peak * step / warmup_steps
    done = (step - warmup_steps) / max(max_steps - warmup_steps, 1)
    return peak * DECAYS[kind](min(max(done, 0.0), 1.0))


class LRScheduleDrift(Rule):
    """The logged learning rate is not the one of the schedule that was asked for.

    Sees: `learning_rate` against the formula, with the options of the trainer as facts; quiet without them, and for
    schedules other than linear, cosine and constant. One step early or late is the same. In any log, a learning rate
    that leaps to 20 times the largest before (200 times: an error).
    Matters: a scheduler that is stepped once a process (or a mini-batch) decays many times too fast, one that is not
    restored starts over; both look like a reward that stops rising. A leap is a wrong option at a resume, or two
    schedulers.
    Source: Transformers' `get_scheduler`. Default: off by a tenth of the peak for three logs a warning, by half an
    error.
    """

    name = "lr_schedule_drift"
    patient = True
    metrics = ("learning_rate",)
    explained_by = ("nonfinite_metric",)

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._levels = Levels(dict.fromkeys((Severity.WARNING, Severity.ERROR), limits["logs"]))
        self._largest, self._logs, self._leaps = Largest(), Streak(), Streak()

    def check(self, row: Row) -> Finding | Verdict:
        value, kind = row.metrics.get("learning_rate"), self.facts.get("lr_scheduler_type")
        if value is None:
            return Verdict.NO_DATA
        largest = self._largest.value
        if value > largest:
            leaps = self._logs.count >= self.limits["leap_after"] and value > self.limits["leap"] * largest
            if leaps and self._leaps.push(True) <= self.limits["leap_logs"]:
                return self._leaped(value, largest)
            self._largest.value, self._leaps.count = value, 0
        if value > 0:
            self._logs.count += 1
        if kind not in DECAYS:
            return Verdict.HEALTHY
        peak, warmup, steps = (self.facts.get(fact) for fact in ("learning_rate", "warmup_steps", "max_steps"))
        if peak is None or warmup is None or steps is None:
            return Verdict.NO_DATA
        if peak <= 0 or steps <= 0:
            return Verdict.NO_DATA
        if abs(scheduled(kind, peak, warmup, steps, row.step) - value) <= self.limits["warning"] * peak:
            self._levels.push(False, False)  # nearly always
            return Verdict.HEALTHY
        around = [scheduled(kind, peak, warmup, steps, step) for step in (row.step - 1, row.step, row.step + 1)]
        off = max(min(around) - value, value - max(around), 0.0) / peak
        verdict = self._levels.push(off > self.limits["warning"], off > self.limits["error"])
        if isinstance(verdict, Verdict):
            return verdict
        return Finding(
            verdict, "learning_rate", value,
            f"learning rate is {value:.3g} at step {row.step}, but lr_scheduler_type={kind!r} with "
            f"learning_rate={peak:g}, {warmup:g} warm-up steps and {steps:g} steps in all gives {around[1]:.3g}",
            "1. The scheduler is stepped more often than the optimizer (once a process or a mini-batch): let "
            "Accelerate prepare it. 2. It was not restored on resume. 3. max_steps or num_train_epochs is not what "
            "you think. Own schedulers: rules without lr_schedule_drift.",
            {"scheduled": around[1]},
        )  # fmt: skip

    def _leaped(self, value: float, largest: float) -> Finding:
        far = value > self.limits["leap_error"] * largest
        return Finding(
            Severity.ERROR if far else Severity.WARNING, "learning_rate", value,
            f"learning rate is {value:.3g}, {value / largest:.3g} times the largest of the run so far ({largest:.3g})",
            "1. The run was resumed, or its YAML file edited, with another learning_rate. 2. Two schedulers step one "
            "optimizer. 3. A callback sets it. Go back to the checkpoint before the leap.",
            {"largest": largest},
        )  # fmt: skip


class LRZeroEarly(Rule):
    """The learning rate is 0 and the run goes on.

    Sees: `learning_rate` of exactly 0 in three logs in a row (warm-up and the end of a schedule show one each).
    Matters: every further step is paid for and changes nothing.
    Source: DESIGN. Default: a warning, an error after ten logs. Where it never was above 0 a warning after ten: some
    front ends log it so although they train.
    """

    name = "lr_zero_early"
    patient = True
    metrics = ("learning_rate",)
    explained_by = ("lr_schedule_drift",)

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._zero = Streak()
        self._peak = Largest()

    def check(self, row: Row) -> Finding | Verdict:
        value = row.metrics.get("learning_rate")
        if value is None:
            return Verdict.NO_DATA
        if value:
            if value > self._peak.value:
                self._peak.push(value)
            self._zero.count = 0
            return Verdict.HEALTHY
        logs = self._zero.push(True)
        if logs < self.limits["warning_logs"]:
            return Verdict.NO_DATA
        if not self._peak.value and logs < self.limits["error_logs"]:
            return Verdict.NO_DATA  # a long warm-up, rounded
        severity = Severity.ERROR if self._peak.value and logs >= self.limits["error_logs"] else Severity.WARNING
        before = f"after a peak of {self._peak.value:.3g}" if self._peak.value else "and never was more"
        return Finding(
            severity, "learning_rate", value, f"learning rate is exactly 0 for {logs} logs in a row, {before}",
            "1. The schedule ends before the run: it was built for fewer steps (max_steps, num_train_epochs, number of "
            "processes). 2. The learning rate was never set: check learning_rate in the YAML file (1e-5 without a dot "
            "is a string there). 3. warmup_steps exceeds the length of the run.",
        )  # fmt: skip
