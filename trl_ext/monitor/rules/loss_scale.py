"""A loss that is a multiple of what it should be."""

import math
from collections.abc import Mapping

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Row
from trl_ext.monitor.rules.base import Finding, Rule, Verdict
from trl_ext.monitor.rules.supervised import OTHER_LOSSES
from trl_ext.monitor.statistics import Start

LN2 = math.log(2)


# accumulation steps in use; IPO starts at 25 = 36 ln 2 where beta is 0.1
STEPS = frozenset({2**n for n in range(1, 9)} | {3 * 2**n for n in range(7)} | {5 * 2**n for n in range(6)})


class LossScale(Rule):
    """The first loss is a multiple of the loss of an untouched model.

    Sees: the first log alone. Sigmoid DPO starts at ln 2, so k times that, with margins near 0, is a sum over k
    accumulation steps. A model that knows nothing has ln(vocabulary) in SFT; far above that no text can lie.
    Matters: gradients are k times too large, which the learning rate was not chosen for.
    Source: Transformers PR #35207 (22.6 where 2 to 3 is usual). Default: within 2% of k ln 2 for k of 2 to 256 (1, 3 or
    5 times a power of two); above 14 nats (ln of a vocabulary of 1.2 million; ln of the true one times 1.2 where it is
    known). An error; a warning where a grad_norm below 50 says that gradients are as usual (a new head can start that
    high).
    """

    name = "loss_scale"
    metrics = ("loss",)
    useless_with = OTHER_LOSSES
    at_start = True
    explained_by = ("nonfinite_metric",)

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._first_step = Start(1)

    def check(self, row: Row) -> Finding | Verdict:
        loss = row.metrics.get("loss")
        if loss is None:
            return Verdict.NO_DATA
        self._first_step.push(row.step)
        if row.step != self._first_step.level:
            return Verdict.HEALTHY
        steps = self.facts.get("gradient_accumulation_steps", 1)
        if "rewards/chosen" in row.metrics:
            return self._preference(row, loss, steps)
        vocabulary = self.facts.get("vocab_size")
        limit = self.limits["vocabulary_times"] * math.log(vocabulary) if vocabulary else self.limits["nats"]
        if loss <= limit or "accuracy" in row.metrics:  # a reward model's loss has no vocabulary
            return Verdict.HEALTHY
        what = f"the first loss is {loss:.3g} nats; a model that knows nothing has {limit:.3g} at most"
        steep = row.metrics.get("grad_norm", math.inf) > self.limits["grad_norm"]
        return _finding(loss, what, steps, Severity.ERROR if steep else Severity.WARNING)

    def _preference(self, row: Row, loss: float, steps: int) -> Finding | Verdict:
        k = round(loss / LN2)
        sigmoid = self.facts.get("loss_type", "sigmoid") in ("sigmoid", ["sigmoid"])
        untouched = abs(row.metrics.get("rewards/margins", 0.0)) < self.limits["margin"]
        if not (sigmoid and untouched and k in STEPS and abs(loss / (k * LN2) - 1) < self.limits["share"]):
            return Verdict.HEALTHY
        return _finding(loss, f"the first loss is {loss:.4g}, {k} times ln 2, which sigmoid DPO starts at", steps)


def _finding(loss: float, what: str, steps: int, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(
        severity, "loss", loss, f"{what}: it is summed over accumulation steps instead of averaged",
        f"1. gradient_accumulation_steps (here {steps}): an older Transformers (4.46 to 4.47) with a model or "
        "compute_loss that ignores num_items_in_batch: upgrade. 2. The head is wrong for this tokenizer: was the "
        "model loaded whole, without 'newly initialized' warnings? 3. Only the log is wrong if the loss falls to its "
        "usual level at once.",
    )  # fmt: skip
