"""What must hold before the first update."""

from collections.abc import Mapping

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Row
from trl_ext.monitor.rules.base import Finding, Rule, Verdict
from trl_ext.monitor.rules.kl import kl_of
from trl_ext.monitor.statistics import Start


class FirstStepMismatch(Rule):
    """Policy and reference already differ at step 1, before anything was learnt.

    Sees: the log of step 1 alone (a later first log is a mean over updates): KL to the reference, the share of clipped
    tokens where a batch is used once, and DPO's implicit rewards, all of which are 0 for an untouched policy. PPO
    counts as untouched only when its `episode` says so in the second log, since some logs begin in the middle.
    Matters: the penalty pulls the policy to another model, or every log-probability carries noise.
    Source: 37 implementation details (the ratio is exactly 1 at first); a public GRPO log whose adapter was disabled
    for the reference. Default: above 0.1 nats a token (3 a sequence) a warning, above 0.3 (5 a sequence) an error:
    models in bf16 or 4 bits start at up to 0.09 (2.6) in healthy public logs; implicit rewards above 0.3 a warning.
    """

    name = "first_step_mismatch"
    at_start = True
    metrics = ("kl_per_sequence", "kl_per_token", "rewards/chosen", "clip_fraction")

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._waiting: tuple[Finding, float] | None = None  # for the second log of a PPO run
        self._first_step = Start(1)

    def check(self, row: Row) -> Finding | Verdict:
        if self._waiting is not None:
            (waiting, episode), self._waiting = self._waiting, None
            begins = (
                episode <= row.metrics.get("episode", 0.0) - episode
            )  # the first log covers no more than the second
            return waiting if begins else Verdict.HEALTHY
        self._first_step.push(row.step)
        if row.step > 1 or row.step != self._first_step.level:
            return Verdict.HEALTHY
        found = self._judge(row)
        if isinstance(found, Finding) and "episode" in row.metrics:
            self._waiting = found, row.metrics["episode"]
            return Verdict.NO_DATA
        return found

    def _judge(self, row: Row) -> Finding | Verdict:
        unit, kl = kl_of(row)
        size = max(abs(row.metrics.get("rewards/chosen", 0.0)), abs(row.metrics.get("rewards/rejected", 0.0)))
        if kl is not None and abs(kl) > self.limits[f"per_{unit}_warning"]:
            severe = abs(kl) > self.limits[f"per_{unit}_error"]
            metric, value, what = f"kl_per_{unit}", kl, f"KL to the reference is {kl:.3g} nats a {unit}"
        elif kl is None and size > self.limits["implicit_reward"]:
            severe, metric, value = False, "rewards/chosen", row.metrics.get("rewards/chosen", size)
            what = f"implicit rewards are as large as {size:.3g}"
        else:
            return Verdict.HEALTHY
        return Finding(
            Severity.ERROR if severe else Severity.WARNING, metric, value,
            f"{what} at step 1, where an untouched policy has 0",
            "1. Dropout is on in one of the two models: set disable_dropout=True (DPO), or attention_dropout=0 and the "
            "like in the model's config. 2. The reference is another model: pass the policy's starting point as "
            "ref_model; with PEFT the base model without an adapter that was trained before counts as one. 3. They run "
            "in another dtype or quantization.",
        )  # fmt: skip
