"""A loss on given text that breaks before the run has a history."""

from collections.abc import Mapping

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Row
from trl_ext.monitor.rules.base import Finding, Rule, Verdict
from trl_ext.monitor.rules.supervised import OTHER_LOSSES
from trl_ext.monitor.statistics import Start, Streak


class EarlyDivergence(Rule):
    """The first updates destroy the model.

    Sees, either: (1) SFT's loss 4 nats above the model's own entropy, and 2 above that of the first log: the model is
    sure, and wrong; (2) within the first 32 logs, a loss three times that of the first log and 2 nats above it.
    Matters: with a learning rate far too high the damage is done in two updates, and what follows looks like training.
    Source: runs of every trainer here with a thousandfold learning rate; nothing published. Default: four logs in a
    row, an error.
    """

    name = "early_divergence"
    patient = True
    metrics = ("loss",)
    useless_with = OTHER_LOSSES
    explained_by = ("nonfinite_metric", "loss_scale", "preference_magnitude")

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._first, self._count = Start(1), Streak()
        self._high, self._sure = Streak(), Streak()

    def check(self, row: Row) -> Finding | Verdict:
        m = row.metrics
        loss = m.get("loss")
        if loss is None:
            return Verdict.NO_DATA
        limits = self.limits
        logs = self._count.push(True)
        self._first.push(loss)
        first = self._first.level
        assert first is not None
        risen = loss > first + limits["nats"]
        high = risen and loss > limits["times"] * abs(first)
        high = self._high.push(high and (logs <= limits["first_logs"] or self._high.count > 0)) >= limits["logs"]
        entropy = m.get("entropy_per_token")
        above = loss - entropy if entropy is not None and "rewards/chosen" not in m and "accuracy" not in m else 0.0
        # what a mixture adds (an auxiliary loss, a sum over accumulation steps) is in the first log as well
        sure = self._sure.push(risen and above > limits["above_entropy"]) >= limits["logs"]
        if not (high or sure):
            return Verdict.NO_DATA if self._high.count or self._sure.count else Verdict.HEALTHY
        what = f"loss is {loss:.3g}, {first:.3g} in the first log" if high else f"loss is {loss:.3g}"
        if sure:
            what += f", while the model's own entropy is {entropy:.3g}: it is sure of tokens that are wrong"
        return Finding(
            Severity.ERROR, "loss", loss, what,
            "1. learning_rate is far too high: 1e-5 to 5e-5 is usual for full weights, 1e-4 to 2e-4 for LoRA; start "
            "again from the model, this one is broken. 2. No warm-up: set warmup_steps. 3. Weights and tokenizer do "
            "not belong together, or labels are shifted: decode one batch.",
            {"first": first} if entropy is None else {"first": first, "entropy": entropy},
        )  # fmt: skip
