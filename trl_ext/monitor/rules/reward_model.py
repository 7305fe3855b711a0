"""The scale of what a reward model says, where it is trained."""

from collections.abc import Mapping

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Row
from trl_ext.monitor.rules.base import Finding, Rule, Verdict
from trl_ext.monitor.rules.preference import LN2
from trl_ext.monitor.statistics import Recent, Start


class RewardModelScale(Rule):
    """A reward model's scores leave the scale on which they can be told apart.

    Sees, any of: (1) over five logs scores with a median size above 10, three times that of the first log, and a mean
    loss above ln 2, the loss of a coin; (2) over eight logs a mean score that is 20 away from that of the first log and
    five times the margin between chosen and rejected; (3) over five logs scores with a median size above 100.
    Matters: (1) the updates are too large. (2) The loss sees differences alone, so that a common offset is free: bf16
    has steps of 0.25 at 50, and PPO gets scores that are all alike.
    Source: arXiv 2312.09244 and TRL's `center_rewards_coefficient` for the offset; runs with a thousandfold learning
    rate; trl#937 for (3). Default: (1) a warning, an error when the mean loss is above 4 ln 2; (2) and (3) a warning.
    """

    name = "reward_model_scale"
    metrics = ("mean_reward",)
    explained_by = ("nonfinite_metric",)

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._first_size, self._first_mean = Start(1), Start(1)
        self._losses, self._sizes = Recent(int(limits["logs"])), Recent(int(limits["logs"]))
        self._offsets, self._margins = Recent(int(limits["offset_logs"])), Recent(int(limits["offset_logs"]))

    def check(self, row: Row) -> Finding | Verdict:
        m = row.metrics
        if not {"mean_reward", "min_reward", "max_reward", "margin", "loss"} <= m.keys():
            return Verdict.NO_DATA
        mean, size = m["mean_reward"], max(abs(m["min_reward"]), abs(m["max_reward"]))
        self._first_mean.push(mean)
        self._first_size.push(size)
        first_mean, first_size = self._first_mean.level, self._first_size.level
        assert first_mean is not None and first_size is not None
        self._losses.push(m["loss"])
        self._sizes.push(size)
        self._offsets.push(abs(mean - first_mean))
        self._margins.push(abs(m["margin"]))
        limits = self.limits
        loss, size = self._losses.mean(), self._sizes.median()
        full = len(self._sizes) == self._sizes.size
        if full and loss > LN2 and size > max(limits["size"], limits["times"] * first_size):
            severity = Severity.ERROR if loss > limits["error_loss"] * LN2 else Severity.WARNING
            what = (
                f"scores are as large as {size:.3g}, and the loss is worse than a coin's: {loss:.3g} on average over "
                f"{len(self._losses)} logs (ln 2 = 0.693)"
            )
            return _finding(severity, mean, what)
        if full and size > limits["largest"]:
            return _finding(Severity.WARNING, mean, f"scores are as large as {size:.3g} (median of five logs)")
        offset, margin = self._offsets.median(), self._margins.median()
        if len(self._offsets) == self._offsets.size and offset > max(limits["offset"], limits["margin_times"] * margin):
            what = f"scores have a mean of {mean:.3g}, {first_mean:.3g} in the first log, and a margin of {margin:.3g}"
            return _finding(Severity.WARNING, mean, what + " only")
        return Verdict.HEALTHY


def _finding(severity: Severity, mean: float, what: str) -> Finding:
    return Finding(
        severity, "mean_reward", mean, what,
        "1. learning_rate is too high: 1e-6 to 2e-5 is usual for full weights, 1e-4 for LoRA with the head in "
        "modules_to_save. 2. Nothing holds the common offset: set center_rewards_coefficient=0.01. 3. The head's "
        "weights were newly initialized and start large.",
    )  # fmt: skip
