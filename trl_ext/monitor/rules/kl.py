"""Distance of the policy to its reference."""

from collections.abc import Mapping

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Row
from trl_ext.monitor.rules.base import Finding, Levels, Rule, Verdict
from trl_ext.monitor.statistics import Recent, Streak, Window

SEVERITIES = (Severity.WARNING, Severity.ERROR, Severity.CRITICAL)
UNITS = ("sequence", "token")
METRICS = ("kl_per_sequence", "kl_per_token")
CALM_SHARE = 0.9  # of the band: below it an open alert may close


def kl_of(row: Row) -> tuple[str, float | None]:
    """The unit, and the KL in it: the sum over a sequence where it is logged, else the mean per token."""
    if (value := row.metrics.get("kl_per_sequence")) is not None:
        return "sequence", value
    return "token", row.metrics.get("kl_per_token")


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
    close_after = 10
    metrics = METRICS

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._bands = {unit: [limits[f"per_{unit}_{severity}"] for severity in SEVERITIES] for unit in UNITS}
        self._levels = Levels(dict.fromkeys(SEVERITIES, limits["logs"]))

    def check(self, row: Row) -> Finding | Verdict:
        unit, value = kl_of(row)
        if value is None:
            return Verdict.NO_DATA
        bands = self._bands[unit]
        if value <= CALM_SHARE * bands[0]:
            self._levels.push(False, False, False)
            return Verdict.HEALTHY
        length = row.metrics.get("completion_length", float("inf"))
        short = unit == "token" and value * length <= self._bands["sequence"][0]
        verdict = self._levels.push(*(value > band and not short for band in bands))
        if verdict is Verdict.HEALTHY and not short:
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


class KLSpike(Rule):
    """The KL of one log stands far above all that came before it.

    Sees: one value against the median of the window, on the scale of its own noise, and only above `kl_high`'s band: a
    jump from 0.0001 to 0.01 is far and harmless. Works from the second log on: a spike there has no noise to be
    compared with, so that it has to be many times the level as well.
    Matters: one batch on which the policy is lost; the gradient of its penalty can throw the policy further.
    Source: TRL_FACTS, a public GRPO log (4.2 nats a token between 0.0002 and 0.007) that came back by itself: a warning
    that closes again, and never a stop. Default: 5 times the median and 8 robust standard deviations above it.
    """

    name = "kl_spike"
    patient = True
    metrics = METRICS
    close_after = 1
    explained_by = ("nonfinite_metric", "kl_high")

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._history = Window(window)
        self._floors = {unit: limits[f"per_{unit}_floor"] for unit in UNITS}

    def check(self, row: Row) -> Finding | Verdict:
        unit, value = kl_of(row)
        if value is None:
            return Verdict.NO_DATA
        if value <= self._floors[unit] or not len(self._history):
            self._history.push(value)
            return Verdict.HEALTHY
        usual = self._history.median()
        far = value > self.limits["times"] * usual
        z = self._history.robust_z(value) if far else 0.0
        self._history.push(value)
        if z < self.limits["min_z"]:
            return Verdict.HEALTHY
        return Finding(
            Severity.WARNING, f"kl_per_{unit}", value,
            f"KL to the reference jumped to {value:.3g} nats a {unit}, from {usual:.3g} (median of "
            f"{len(self._history) - 1} logs)",
            "Look at the completions of this very step. 1. One odd batch (truncated or empty completions): nothing to "
            "do if it is gone in the next log. 2. learning_rate is too high: lower it, or max_grad_norm. 3. The "
            "penalty is too weak to bring it back: raise kl_coef (PPO) or beta (GRPO, RLOO).",
            {"median": usual},
        )  # fmt: skip


class KLRunaway(Rule):
    """The KL grows faster and faster.

    Sees: the medians of the last three stretches of eight logs: each rise is larger than the one before and than the
    noise, the level has doubled, and it is past `kl_high`'s band (below that healthy runs accelerate, too: they start
    from zero).
    Matters: the penalty no longer holds the policy; it will not come back by itself.
    Source: trl#6350 finds that acceleration alone gives no early warning at a usable rate of false alarms, hence the
    level and the doubling. Default: an error, as it is said of a KL that is already worth a look.
    """

    name = "kl_runaway"
    patient = True
    metrics = METRICS
    statistical = True
    explained_by = ("nonfinite_metric", "kl_high")

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._recent = Recent(3 * int(limits["stretch"]))
        self._streak = Streak()
        self._floors = {unit: limits[f"per_{unit}_floor"] for unit in UNITS}

    def check(self, row: Row) -> Finding | Verdict:
        unit, value = kl_of(row)
        if value is None:
            return Verdict.NO_DATA
        self._recent.push(value)
        if value < self._floors[unit]:
            self._streak.count = 0
            return Verdict.HEALTHY
        if len(self._recent) < self._recent.size:
            self._streak.push(False)
            return Verdict.HEALTHY
        first, second, third = self._recent.stretches(3)
        limits = self.limits
        clear = second - first > limits["noise"] * abs(second)
        faster = clear and third - second > limits["acceleration"] * (second - first)
        if self._streak.push(faster and third > limits["times"] * max(first, 0.0)) < limits["logs"]:
            return Verdict.HEALTHY
        return Finding(
            Severity.ERROR, f"kl_per_{unit}", value,
            f"KL to the reference runs away: medians of {first:.3g}, {second:.3g}, {third:.3g} nats a {unit} over the "
            f"last three stretches of {self.limits['stretch']:g} logs, each rise larger than the last",
            "1. The penalty is too weak: raise kl_coef (PPO) or beta (GRPO, RLOO; 0 is GRPO's default). 2. "
            "learning_rate is too high. 3. The reward can be hacked far from the reference: read the latest "
            "completions.",
            {"stretches": [first, second, third]},
        )  # fmt: skip


class KLNegative(Rule):
    """The KL to the reference is negative, which a KL cannot be.

    Sees: the estimate of a batch, whose noise may dip below zero while policy and reference are still close; so small
    and isolated ones are an `info`.
    Matters: the completions were not drawn from the policy that scores them: generation with other settings than
    training (top_k, top_p, temperature), a reference that is not where the policy started, or padding counted in.
    Source: TRL how_to_train ("persistently negative"), TRL_FACTS. Default: three in a row, or one below -1 nat a
    sequence: warning; below -5: error; below -50: critical. A tenth of each for a mean per token, where k3 is used.
    """

    name = "kl_negative"
    metrics = METRICS
    close_after = 1

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._streak = Streak()

    def check(self, row: Row) -> Finding | Verdict:
        unit, value = kl_of(row)
        if value is None:
            return Verdict.NO_DATA
        if value >= 0:
            self._streak.count = 0
            return Verdict.HEALTHY
        below = -value if unit == "sequence" else -value / self.limits["token_share"]
        streak = self._streak.push(below > self.limits["info"])
        if streak == 0:
            return Verdict.HEALTHY
        levels = [s for s in SEVERITIES if below > self.limits[s]]
        severity = levels[-1] if levels else Severity.WARNING if streak >= self.limits["logs"] else Severity.INFO
        return Finding(
            severity, f"kl_per_{unit}", value,
            f"KL to the reference is {value:.3g} nats a {unit}, {streak} {'log' if streak == 1 else 'logs'} in a row; "
            "a KL is never negative, but its estimate can be",
            "An isolated small one is noise. 1. Generation differs from training: set top_k=0, top_p=1 and the same "
            "temperature. 2. ref_model is not the model that the policy started from. 3. Padding is counted: check "
            "pad_token and attention masks.",
            {"logs_in_a_row": streak},
        )  # fmt: skip
