"""The seam of a run that was resumed."""

from collections.abc import Callable, Mapping
from math import log
from statistics import median
from typing import Any

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Row
from trl_ext.monitor.rules.base import Finding, Rule, Verdict
from trl_ext.monitor.rules.kl import kl_of
from trl_ext.monitor.statistics import MAD_TO_SIGMA, Recent, Statistic

# What must be the same for the data to come in the same order, and what to say of it.
DATA = {
    "seed": "seed", "data_seed": "data_seed", "dataset_rows": "the number of rows of the training set",
    "dataset_fingerprint": "the training set", "samples_per_step": "the samples a step (batch size, accumulation, "
    "processes)",
}  # fmt: skip


_LEVEL = 3  # logs whose median is the level
_NOTHING = 0.01  # of the level
_LEAST = 1e-9  # no level is below
_ENOUGH = 8  # logs that tell the noise


class ResumeDiscontinuity(Rule):
    """After a resume the run does not go on where it had stopped.

    Sees: (1) loss or KL of the first three logs after a resume against the last three before, as a ratio
    and in units of how much that ratio varied so far: a rise, and of the KL a fall as well, since weights that were
    not restored are those of the reference, whose KL is nothing; (2) the epoch, which must grow with the step as
    before; (3) what the checkpoint says of the data: another seed, set or batch size, or `ignore_data_skip`, and the
    order of the data is another one.
    Matters: optimizer or adapter were not restored, or a part of the data is seen twice and another never.
    Source: alpaca-lora#72 (loss 0.8 to 8.7); a public report of a sampler that starts over. Default: 6 standard
    deviations and twice the largest change so far, seen in two of three logs, since a batch may be an exception: an
    error. A KL three times the highest of the last three or a third of their median, or gone, 1 nat a sequence apart
    (0.1 a token), and once a log had none, a third is enough in the next that is below the last eight; a loss of 1.5
    times the highest (three times, with fewer than eight logs), which may also go beyond its noise by the difference.
    With fewer than three logs before the resume, or a loss that is not above 0, nothing is judged but a KL that is
    gone; of a run with a reward the KL alone, since the loss of a policy gradient has no level: without a KL nothing.
    Another order of the data is a warning.
    """

    name = "resume_discontinuity"
    patient = True
    metrics = ("loss", "kl_per_sequence", "kl_per_token", "epoch")

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._losses, self._kls = Recent(16), Recent(16)
        self._pace = _Pace()
        self._after = 0  # logs since the resume whose data is still judged
        self._left = {"loss": 0, "kl": 0}  # and whose values are; many a log has but one of them, or none
        self._seen = {"loss": 0, "kl": 0}  # how many of those have changed
        self._gone = False  # a KL was gone

    def resumed(self) -> None:
        self._after = int(self.limits["logs"])
        self._left = dict.fromkeys(self._left, self._after)
        self._seen = dict.fromkeys(self._seen, 0)
        self._gone = False

    def check(self, row: Row) -> Finding | Verdict:
        unit, kl = kl_of(row)
        # that of a policy gradient is no level
        loss = None if "reward" in row.metrics or len(self._kls) else row.metrics.get("loss")
        found = None
        for metric, value, before in (("loss", loss, self._losses), ("kl", kl, self._kls)):
            if value is None:
                continue
            judged = self._left[metric] > 0
            self._left[metric] -= judged
            if not judged or not self._is_changed(metric, value, before.values(), unit):
                before.push(value)
                self._gone = self._gone and metric != "kl"
                continue
            self._seen[metric] += 1
            if found is None and self._seen[metric] > 1:
                found = _jump("loss" if metric == "loss" else f"kl_per_{unit}", metric, value, _level(before.values()))
        if self._after > 0:
            self._after -= 1
            found = found or self._data_order(row)
        self._pace.push(row)
        return found or Verdict.HEALTHY

    def _is_changed(self, metric: str, value: float, before: list[float], unit: str) -> bool:
        if len(before) < 2 or (level := _level(before)) < _LEAST:
            return False
        times, limits = self.limits["times"], self.limits
        floor = limits["loss_floor"] if metric == "loss" else limits[f"per_{unit}_floor"]
        falls = metric == "kl" and not self.facts.get("reference_moves")  # which takes the KL with it
        if falls and level - value > floor and abs(value) <= _NOTHING * level:
            self._gone = True
            return True
        if len(before) < _LEVEL:
            return False
        highest = max(before[-_LEVEL:])  # what comes back from a low batch is no rise
        if value - highest > floor:
            rise = limits["loss_times"] if metric == "loss" and len(before) >= _ENOUGH else times
            ratio = _ratio(value, highest, level)
            # the noise of a loss is as large near 0, where ratios say nothing
            apart = metric == "loss" and value - highest > self._usual(_differences(before, max))
            return ratio > log(rise) and (apart or ratio > self._usual(_ratios(before, max, level)))
        if falls and level - value > floor:
            lower = self._gone and value < min(before[-_ENOUGH:])  # a run may have its dips
            usual = 0.0 if lower else self._usual([-ratio for ratio in _ratios(before, median, level)])
            return -_ratio(value, level, level) > max(log(times), usual)
        return False

    def _usual(self, ratios: list[float]) -> float:
        """How far the run goes by itself. Up and down by ratios of their own: a KL that grows may still not fall."""
        far = [ratio for ratio in ratios if ratio > 0]
        if not far:
            return 0.0
        return max(self.limits["min_z"] * MAD_TO_SIGMA * median(far), self.limits["largest"] * max(far))

    def _data_order(self, row: Row) -> Finding | None:
        now, before = self.facts.get("data") or {}, self.facts.get("data_before") or {}
        changed = []
        for key, what in DATA.items():
            old, new = before.get(key), now.get(key)
            if old is not None and new is not None and old != new:
                numbers = f" ({old} before, {new} now)" if isinstance(new, int) else ""
                changed.append(what + numbers)
        if now.get("ignore_data_skip"):
            changed.append("ignore_data_skip=True")
        off = self._pace.off(row)
        if off is not None and off > self.limits["epoch_share"]:
            changed.append(f"the epoch ({row.metrics['epoch']:.3g}) does not follow from the steps before")
        if not changed:
            return None
        return Finding(
            Severity.WARNING, "epoch", row.metrics.get("epoch", float("nan")),
            f"the data does not go on in its old order after the resume: {'; '.join(changed)}",
            "Some examples come twice and others never. Keep seed, data_seed, data and batch sizes of the first run, "
            "and ignore_data_skip=False; or start a new run from the weights.",
        )  # fmt: skip


def _jump(name: str, metric: str, value: float, level: float) -> Finding:
    return Finding(
        Severity.ERROR, name, value,
        f"after the resume {metric} is {value:.3g}, {level:.3g} before it",
        "1. Weights were not restored: an adapter loaded into a fresh base, or a checkpoint without it "
        "(compare its size with earlier ones). 2. The optimizer state is missing or of another world "
        "size. 3. Pass the checkpoint to trainer.train(resume_from_checkpoint=...), not only to the model.",
        {"before": level},
    )  # fmt: skip


def _level(values: list[float]) -> float:
    return median(values[-_LEVEL:])


def _ratio(value: float, level: float, scale: float) -> float:
    """The logarithm of `value / level`, where less than a hundredth of `scale` counts as that."""
    least = _NOTHING * scale
    return log(max(value, least) / max(level, least))


def _ratios(values: list[float], level: Callable[[list[float]], float], scale: float) -> list[float]:
    """Of each of `values` to the level of those before it."""
    return [_ratio(value, before, scale) for value, before in _levels(values, level)]


def _differences(values: list[float], level: Callable[[list[float]], float]) -> list[float]:
    return [value - before for value, before in _levels(values, level)]


def _levels(values: list[float], level: Callable[[list[float]], float]) -> list[tuple[float, float]]:
    """Each of `values` with the level of those before it."""
    return [(values[i], level(values[max(i - _LEVEL, 0) : i])) for i in range(1, len(values))]


class _Pace(Statistic):
    """Epochs a step, from the last log of training."""

    def __init__(self) -> None:
        self.epoch: float | None = None
        self.step = 0

    def push(self, row: Row) -> None:
        if "epoch" in row.metrics and row.step > 0:
            self.epoch, self.step = row.metrics["epoch"], row.step

    def off(self, row: Row) -> float | None:
        """How far the epoch of `row` is from its pace, as a share of the epoch expected."""
        if self.epoch is None or "epoch" not in row.metrics or self.epoch <= 0 or row.step <= self.step:
            return None
        expected = self.epoch / self.step * row.step
        return abs(row.metrics["epoch"] - expected) / expected

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.step = state["epoch"], int(state["step"])
