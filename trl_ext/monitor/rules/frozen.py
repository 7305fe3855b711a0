"""Training that changes nothing."""

from collections.abc import Mapping

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Row
from trl_ext.monitor.rules.base import Finding, Rule, Verdict
from trl_ext.monitor.rules.kl import kl_of
from trl_ext.monitor.rules.supervised import evaluation_losses
from trl_ext.monitor.statistics import Constant, First, Largest, Start, Streak

_TRAINING = frozenset({"grad_norm", "kl_per_token", "kl_per_sequence", "rewards/margins", "approx_kl"})


class FrozenPolicy(Rule):
    """The weights do not move although there is something to learn.

    Sees, any of: (1) grad_norm exactly 0 while the groups' rewards differ; (2) the KL to the reference exactly 0 log
    after log, although there are gradients and a learning rate; (3) DPO's margins exactly 0; (4) an evaluation loss
    that is the same to the last digit three times; (5) PPO's approximate KL of an update gone, where updates had one.
    Matters: the GPUs work, the curves are drawn, and nothing is learnt.
    Source: ms-swift#5890 (two logs); a public DPO log with 400 identical rows. Default: two logs in a row for (1),
    twenty where there have been gradients before or a loss (a task nearly solved has such stretches); ten for (3),
    three without gradients; ten for (2), since with bf16 weights and a tiny learning rate a few updates can vanish in
    rounding. (2) is an `info` where the KL is a mean per token and beta is not known: with beta=0 some front ends log
    0.
    """

    name = "frozen_policy"
    patient = True
    metrics = (*sorted(_TRAINING), "eval/*")
    explained_by = (
        "nonfinite_metric",
        "zero_signal",
        "all_truncated",
        "preference_labels_masked",
        "preference_identical",
        "no_supervised_tokens",
    )

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._no_gradient, self._no_distance, self._no_margin = Streak(), Streak(), Streak()
        self._evaluation = Constant()
        self._set = First()
        self._gradients = Largest()
        self._updates, self._peak, self._no_update = Start(8), Largest(), Streak()

    def check(self, row: Row) -> Finding | Verdict:
        m = row.metrics
        if evaluations := evaluation_losses(row.layout):
            return self._evaluated(m.get(evaluations[0]), evaluations[0])
        if m.get("learning_rate", 1.0) == 0 or _TRAINING.isdisjoint(m):
            return Verdict.NO_DATA
        if "approx_kl" in m and (logs := self._without_update(m)):
            if logs < self.limits["update_logs"]:
                return Verdict.NO_DATA
            what = (
                f"the approximate KL of an update is {m['approx_kl']:.1g} for {logs} logs, {self._updates.level:.2g} at"
            )
            return _finding("approx_kl", m["approx_kl"], what + " first, at a learning rate as before")
        unit, kl = kl_of(row)
        if m.get("grad_norm", 0.0) > 0 and "rewards/margins" not in m and (kl is None or abs(kl) > 1e-4):
            self._gradients.value = 1.0  # nearly always: something moves
            self._no_gradient.count = self._no_distance.count = 0
            still = self._no_margin.count or self._evaluation.count >= self.limits["evaluations"]
            return Verdict.NO_DATA if still else Verdict.HEALTHY
        limits = self.limits
        spread = m.get("reward_std", 0.0) > 0 and m.get("zero_std_fraction", 0.0) < 1
        if "grad_norm" in m:
            self._gradients.push(abs(m["grad_norm"]))
            quiet = m.get("loss", 0.0) == 0 or kl == 0
            needed = limits["gradient_logs" if quiet and self._gradients.value == 0 else "gradient_logs_later"]
            what = "rewards within the groups differ"
            if "reward" not in m:  # with a loss on given text every batch has a gradient
                spread, what = m.get("loss", 0.0) > limits["loss"], "there is a loss"
            if self._no_gradient.push(m["grad_norm"] == 0 and spread) >= needed:
                return _finding("grad_norm", 0.0, f"grad_norm is exactly 0 although {what}")
        if kl is not None and "reward" in m:
            logs = self._no_distance.push(abs(kl) <= limits[f"kl_per_{unit}"] and m.get("grad_norm", 1.0) > 0)
            if logs >= limits["kl_logs"]:
                # where the coefficient is 0 some front ends log a KL of 0 that nobody computed
                known = unit == "sequence" or self.facts.get("beta", 0) > 0
                what = f"the KL to the reference is {kl:.1g} in {logs} logs in a row, in spite of gradients"
                return _finding(f"kl_per_{unit}", kl, what, Severity.ERROR if known else Severity.INFO)
        if "rewards/margins" in m:
            still = m["rewards/margins"] == 0 and m.get("rewards/chosen", 0.0) == 0
            needed = limits["margin_logs" if m.get("grad_norm") == 0 else "margin_logs_rounded"]
            if self._no_margin.push(still) >= needed:
                return _finding("rewards/margins", 0.0, "the implicit rewards and their margin are exactly 0")
        moving = self._no_gradient.count == self._no_distance.count == self._no_margin.count == 0
        return Verdict.HEALTHY if moving else Verdict.NO_DATA

    def _without_update(self, m: Mapping[str, float]) -> int:
        """How many logs in a row have had no update, at a learning rate that is no tail of a schedule."""
        size, rate = abs(m["approx_kl"]), m.get("learning_rate", 0.0)
        self._peak.push(rate)
        usual = self._updates.level
        if usual is None:
            self._updates.push(size)
            return 0
        if usual < self.limits["smallest_update"]:  # a batch is used once: the ratio is 1 before the only step
            return 0
        gone = size <= self.limits["update_share"] * usual
        if gone and size > 0 and (not rate or rate < self.limits["rate_share"] * self._peak.value):
            return self._no_update.count  # the tail of a schedule, perhaps
        return self._no_update.push(gone)

    def _evaluated(self, loss: float | None, name: str) -> Finding | Verdict:
        """Only the first evaluation set is followed; where several are logged, each has a log of its own."""
        self._set.push(name)
        if loss is None or name != self._set.first or abs(loss) < self.limits["loss"]:
            return Verdict.NO_DATA  # as a group's policy loss is: 0 before rounding
        times = self._evaluation.push(loss)
        if times < self.limits["evaluations"]:
            return Verdict.NO_DATA
        return _finding(name, loss, f"the evaluation loss is {loss:.6g} to the last digit, {times} times")


def _finding(metric: str, value: float, what: str, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(
        severity, metric, value, f"nothing is being trained: {what}",
        "1. The optimizer does not hold the model's parameters: it was built before PEFT, or for another copy (look at "
        "sum(p.requires_grad for p in model.parameters())). 2. All parameters are frozen, or gradients are cut by a "
        "no_grad or a detached loss. 3. learning_rate is so small that bf16 weights round it away: raise it, or keep "
        "fp32 weights. 4. Under DeepSpeed or FSDP: gradients are not reduced into the parameters that are stepped.",
    )  # fmt: skip
