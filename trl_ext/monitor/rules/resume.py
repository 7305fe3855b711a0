"""The seam of a run that was resumed."""

from collections.abc import Mapping
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


class ResumeDiscontinuity(Rule):
    """After a resume the run does not go on where it had stopped.

    Sees: (1) loss or KL of the first three logs after a resume against the last before, in units of their noise: a
    rise, and of the KL a fall as well, since weights that were not restored are those of the reference; (2)
    the epoch, which must grow with the step as before; (3) what the checkpoint says of the data: another seed, set or
    batch size, or `ignore_data_skip`, and the order of the data is another one.
    Matters: optimizer or adapter were not restored, or a part of the data is seen twice and another never.
    Source: alpaca-lora#72 (loss 0.8 to 8.7); a public report of a sampler that starts over. Default: three times the
    level or a third of it, and 6 standard deviations, an error, a KL only from 1 nat a sequence apart (0.1 a token),
    since that of a young run moves by itself; another order of the data a warning.
    """

    name = "resume_discontinuity"
    patient = True
    metrics = ("loss", "kl_per_sequence", "kl_per_token", "epoch")

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._losses, self._kls = Recent(16), Recent(16)
        self._pace = _Pace()
        self._after = 0  # logs since the resume that are still judged

    def resumed(self) -> None:
        self._after = int(self.limits["logs"])

    def check(self, row: Row) -> Finding | Verdict:
        found = None
        if self._after > 0:
            self._after -= 1
            found = self._jump(row) or self._data_order(row)
        kl = kl_of(row)[1]
        loss = row.metrics.get("loss")
        if found is None or found.severity < Severity.ERROR:
            if loss is not None and "reward" not in row.metrics:
                self._losses.push(loss)
            if kl is not None:
                self._kls.push(kl)
        self._pace.push(row)
        return found or Verdict.HEALTHY

    def _jump(self, row: Row) -> Finding | None:
        unit, kl = kl_of(row)
        kl_floor = self.limits[f"per_{unit}_floor"]
        loss = None if "reward" in row.metrics else row.metrics.get("loss")
        for metric, value, before, floor in (("loss", loss, self._losses, 0.0), ("kl", kl, self._kls, kl_floor)):
            if value is None or not len(before):
                continue
            level = before.median()
            noise = MAD_TO_SIGMA * median(abs(other - level) for other in before.values())
            far = abs(value - level) > max(self.limits["min_z"] * max(noise, 0.05 * abs(level), 1e-3), floor)
            rose = value > self.limits["times"] * max(level, 0.0)
            fell = metric == "kl" and value * self.limits["times"] < min(before.values())
            if far and (rose or (fell and not self.facts.get("reference_moves"))):  # which takes the KL with it
                return Finding(
                    Severity.ERROR, "loss" if metric == "loss" else f"kl_per_{unit}", value,
                    f"after the resume {metric} is {value:.3g}, {level:.3g} before it",
                    "1. Weights were not restored: an adapter loaded into a fresh base, or a checkpoint without it "
                    "(compare its size with earlier ones). 2. The optimizer state is missing or of another world "
                    "size. 3. Pass the checkpoint to trainer.train(resume_from_checkpoint=...), not only to the model.",
                    {"before": level},
                )  # fmt: skip
        return None

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
