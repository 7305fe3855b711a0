"""Distance of the policy to its reference."""

from collections.abc import Mapping

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Row
from trl_ext.monitor.rules.base import Finding, Levels, Rule, Verdict

SEVERITIES = (Severity.WARNING, Severity.ERROR, Severity.CRITICAL)
UNITS = ("sequence", "token")
CALM_SHARE = 0.9  # of the band: below it an open alert may close


class KLHigh(Rule):
    """The KL to the reference stays above its band.

    Sees: the sequence sum where it is logged (PPO), else the mean per token (GRPO, RLOO), each against its own band. KL
    is in nats whatever the model, but its sum grows with the length; so a short completion's mean counts only if the
    sum it implies is high as well. KTO's `kl` is another quantity and is left alone.
    Matters: far from the reference the reward is judged on text it never saw, and fluency goes first.
    Source: TRL how_to_train and N implementation details (healthy 0 to 10 a sequence, target 6, worry persistently
    above 10). Default: several logs in a row, so that one spike never counts; above 10 only a warning, since small
    policies end a good run at up to 12; error and critical at 3 and 10 times the band: no published run came back.
    """

    name = "kl_high"

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._bands = {unit: [limits[f"per_{unit}_{severity}"] for severity in SEVERITIES] for unit in UNITS}
        self._levels = Levels(dict.fromkeys(SEVERITIES, limits["logs"]))

    def check(self, row: Row) -> Finding | Verdict:
        unit, value = "sequence", row.metrics.get("kl_per_sequence")
        if value is None:
            unit, value = "token", row.metrics.get("kl_per_token")
        if value is None:
            return Verdict.NO_DATA
        bands = self._bands[unit]
        length = row.metrics.get("completion_length", float("inf"))
        short = unit == "token" and value * length <= self._bands["sequence"][0]
        verdict = self._levels.push(*(value > band and not short for band in bands))
        if verdict is Verdict.HEALTHY and value > CALM_SHARE * bands[0] and not short:
            return Verdict.NO_DATA  # a KL that hovers at the band is one alert, not one for each crossing
        if isinstance(verdict, Verdict):
            return verdict
        band = bands[SEVERITIES.index(verdict)]
        return Finding(
            verdict, f"kl_per_{unit}", value,
            f"KL to the reference is {value:.3g} nats a {unit}, above {band:g} for {self.limits['logs']:g} logs in a "
            "row",
            "1. learning_rate is too high. 2. The penalty is too weak: raise kl_coef (PPO) or beta (GRPO, RLOO). 3. "
            "Too many passes over one batch: lower num_ppo_epochs or num_iterations. Long completions "
            f"may need a wider band: thresholds={{'kl_high.per_{unit}_{verdict}': ...}}.",
            {"band": band},
        )  # fmt: skip
