"""How far one update moves the policy."""

from collections.abc import Mapping

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Row
from trl_ext.monitor.rules.base import Finding, Levels, Rule, Verdict

SEVERITIES = (Severity.WARNING, Severity.ERROR, Severity.CRITICAL)


class RatioOutOfBand(Rule):
    """The mean of new over old policy probability leaves its band.

    Sees: `val/ratio`. Its expectation over the old policy's samples is 1 whatever the update, so a mean far from 1 is
    not a large step but a wrong one.
    Matters: samples count many times or not at all; where they leave the clip range there is no gradient.
    Source: 37 and N implementation details, TRL PPO docs (2 and 0.1 are wrong), trl#1031 (above 10 the batch was
    skipped). Default: outside 0.8 to 1.25 a warning and outside 0.5 to 2 an error, two logs in a row, since one small
    batch can stray; outside 0.1 to 10 critical at once.
    """

    name = "ratio_out_of_band"

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._bands = [(limits[f"{severity}_low"], limits[f"{severity}_high"]) for severity in SEVERITIES]
        logs = limits["logs"]
        self._levels = Levels({Severity.WARNING: logs, Severity.ERROR: logs, Severity.CRITICAL: 1})

    def check(self, row: Row) -> Finding | Verdict:
        value = row.metrics.get("ratio_mean")
        if value is None:
            return Verdict.NO_DATA
        verdict = self._levels.push(*(not low <= value <= high for low, high in self._bands))
        if isinstance(verdict, Verdict):
            return verdict
        low, high = self._bands[SEVERITIES.index(verdict)]
        return Finding(
            verdict, "ratio_mean", value,
            f"mean probability ratio is {value:.3g}, outside {low:g} to {high:g}",
            "1. learning_rate is too high. 2. Too many passes over a batch: lower num_ppo_epochs or num_mini_batches. "
            "3. The old log-probabilities come from another model state: dropout on, or another temperature or dtype.",
            {"low": low, "high": high},
        )  # fmt: skip
