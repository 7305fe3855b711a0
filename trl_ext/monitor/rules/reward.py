"""What the reward does over a run."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Row
from trl_ext.monitor.rules.base import Finding, Levels, Rule, Verdict
from trl_ext.monitor.rules.kl import kl_of
from trl_ext.monitor.rules.reward_series import LONG, MIDDLE, SHORT, RewardSeries, reward_series
from trl_ext.monitor.statistics import Blocks, Largest, Recent, Start, Streak


class RewardDrop(Rule):
    """The reward has lost most of what it had gained, or more than that.

    Sees: the mean of the last sixteen logs against the highest such mean of the run, in units of the noise of one log
    and of the changes between such means, in which a reward that wobbles over many logs shows.
    Two conditions: the drop is far outside the noise, and it is at least half of the gain since the start, so that a
    run that gives a little back is left alone. A reward that has come back and falls as far again is told once.
    Matters: a policy rarely finds its way back; the checkpoint of the peak is the one to keep.
    Source: no published range, so a change point against the run's own noise. Default: 2.5 standard deviations of a log
    for means of sixteen (their own noise is a quarter of one), 3 for means of eight or 1.7 for means of 32, for three
    logs a warning; an error when the reward has fallen as far below its start, too.
    """

    name = "reward_drop"
    patient = True
    metrics = ("reward",)
    statistical = True
    explained_by = ("nonfinite_metric",)

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._peak, self._longer_peak = Largest(-math.inf), Largest(-math.inf)
        self._wobble = Largest()  # as it was at the peak or first known since, for the drop itself is none
        self._levels = Levels(dict.fromkeys((Severity.WARNING, Severity.ERROR), limits["logs"]))
        self._deepest, self._told, self._calm = Largest(), Largest(), Streak()  # drops

    def check(self, row: Row) -> Finding | Verdict:
        value = row.metrics.get("reward")
        if value is None:
            return Verdict.NO_DATA
        series = reward_series(self, row)
        start = series.start
        if start is None or len(series.latest) < MIDDLE:
            return Verdict.NO_DATA
        if series.middle > self._peak.value:
            self._peak.value, self._wobble.value = series.middle, series.wobble
        elif not self._wobble.value:
            self._wobble.value = series.wobble
        if series.long > self._longer_peak.value and len(series.latest) == LONG:
            self._longer_peak.value = series.long
        drop = self._largest_drop(series)
        if self._calm.push(drop is None) == self.close_after:
            self._told.value = self._deepest.value  # it has come back; what swings as far again is no news
        if drop is not None and drop.peak - drop.level <= self.limits["again"] * self._told.value:
            drop = None
        verdict = self._levels.push(drop is not None, drop is not None and drop.below_start)
        if drop is None or isinstance(verdict, Verdict):
            return verdict if isinstance(verdict, Verdict) else Verdict.NO_DATA
        self._deepest.push(drop.peak - drop.level)
        return Finding(
            verdict, "reward", value,
            f"reward fell to {drop.level:.3g} (mean of {drop.logs} logs) from {drop.peak:.3g}; it had begun at "
            f"{start:.3g}, and one log varies by {series.noise:.2g}",
            "Go back to the checkpoint of the peak. 1. learning_rate is too high for this late a stage: lower it, or "
            "let it decay. 2. The policy left the reference: look at the KL, raise kl_coef (PPO) or beta (GRPO, "
            "RLOO). 3. The data or the reward function changed on the way.",
            {"peak": drop.peak, "level": drop.level, "start": start, "noise": series.noise},
        )  # fmt: skip

    def _largest_drop(self, series: RewardSeries) -> "_Drop | None":
        """The shortest mean that has fallen far enough."""
        limits, noise, least = self.limits, series.noise, self.limits["wobbles"] * self._wobble.value
        peak, longer_peak = self._peak.value, self._longer_peak.value
        easiest = max(least, limits["longer_deviations"] * noise)
        if peak - min(series.short, series.middle) <= easiest and longer_peak - series.long <= easiest:
            return None  # nearly always
        for logs, level, highest, deviations in (
            (SHORT, series.short, peak, "shorter_deviations"), (MIDDLE, series.middle, peak, "deviations"),
            (LONG, series.long, longer_peak, "longer_deviations"),
        ):  # fmt: skip
            if highest - level > max(limits[deviations] * noise, least):
                drop = self._drop(series, logs, level, highest, least)
                if drop is not None:
                    return drop
        return None

    def _drop(self, series: RewardSeries, logs: int, level: float, peak: float, least: float) -> "_Drop | None":
        """What is beyond the noise counts when it is also a share of the gain, and more than rounding."""
        assert series.start is not None
        gain = peak - series.start
        if peak - level <= max(0.01 * abs(peak), self.limits["share"] * gain):
            return None
        deviations = self.limits["deviations" if least else "early_error"]
        below = series.start - level > max(deviations * series.noise, least, 0.5 * gain)
        return _Drop(level, peak, logs, below)


class _Drop(NamedTuple):
    level: float
    peak: float
    logs: int
    below_start: bool


class RewardFlatKLRising(Rule):
    """The KL is past its band and still grows, and the reward has gained nothing for it.

    Sees: the medians of the last few logs against those of the first few: KL above `kl_high`'s band and half as high
    again as at the start, reward no higher than at the start by more than half of its noise.
    Matters: distance from the reference is what a run pays with; here it buys nothing.
    Source: a public PPO log (hongbomiao) in which no completion ever ended and the KL went from 7 to 11. Default:
    medians of three logs, a warning.
    """

    name = "reward_flat_kl_rising"
    patient = True
    close_after = 20
    metrics = ("reward",)
    explained_by = ("nonfinite_metric",)

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        size = int(limits["logs"])
        self._rewards, self._kls = Recent(size), Recent(size)
        self._reward_start, self._kl_start = Start(size), Start(size)

    def check(self, row: Row) -> Finding | Verdict:
        unit, kl = kl_of(row)
        value = row.metrics.get("reward")
        if value is None or kl is None:
            return Verdict.NO_DATA
        series = reward_series(self, row)
        self._rewards.push(value)
        self._kls.push(kl)
        if self._kl_start.level is None:
            self._reward_start.push(value)
            self._kl_start.push(kl)
        reward_start, kl_start = self._reward_start.level, self._kl_start.level
        if kl < 0.5 * self.limits[f"per_{unit}"]:
            return Verdict.HEALTHY
        if reward_start is None or kl_start is None or len(series.latest) < 2 * self.limits["logs"]:
            return Verdict.NO_DATA
        level = self._kls.median()
        if level <= max(self.limits[f"per_{unit}"], self.limits["times"] * kl_start):
            return Verdict.NO_DATA
        reward = self._rewards.median()
        if reward - reward_start > 0.5 * series.noise:
            return Verdict.HEALTHY
        return Finding(
            Severity.WARNING, "reward", value,
            f"KL rose from {kl_start:.3g} to {level:.3g} nats a {unit}, but the reward did not: {reward_start:.3g} at "
            f"the start, {reward:.3g} now",
            "1. The reward does not tell good completions from bad ones here: look at rewards within one prompt. 2. No "
            "completion ends: check eos_token, stop_token and missing_eos_penalty. 3. learning_rate is so high that "
            "noise moves the policy.",
            {"kl_start": kl_start, "kl": level, "reward_start": reward_start, "reward_now": reward},
        )  # fmt: skip


class RewardSaturated(Rule):
    """All completions score alike now, and once did not: the reward has nothing left to teach.

    Sees: `reward_std` below a twentieth of its start for ten logs, with a reward that has risen.
    Matters: no gradient but noise from here on; further steps only drift.
    Source: a public GRPO log that solved its task and went on. Default: a warning, since the run did learn.
    """

    name = "reward_saturated"
    patient = True
    metrics = ("reward_std",)
    statistical = True
    explained_by = ("nonfinite_metric", "zero_signal", "all_truncated", "entropy_collapse")

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._start, self._reward_start = Start(int(limits["start_logs"])), Start(int(limits["start_logs"]))
        self._levels = Levels({Severity.WARNING: limits["logs"]})

    def check(self, row: Row) -> Finding | Verdict:
        std, value = row.metrics.get("reward_std"), row.metrics.get("reward")
        if std is None or value is None:
            return Verdict.NO_DATA
        if self._start.level is None:
            self._start.push(std)
            self._reward_start.push(value)
        start, reward_start = self._start.level, self._reward_start.level
        if start is None or reward_start is None or start <= 0:
            return Verdict.NO_DATA
        if std >= self.limits["share"] * start:
            self._levels.push(False)
            return Verdict.HEALTHY
        verdict = self._levels.push(value > reward_start + start / 2)
        if isinstance(verdict, Verdict):
            return verdict
        return Finding(
            verdict, "reward_std", std,
            f"rewards hardly differ any more: standard deviation {std:.2g}, {start:.2g} at the start, while the "
            f"reward went from {reward_start:.3g} to {value:.3g}",
            "The task is solved as far as this reward can tell: stop here (max_steps), or 1. give harder prompts "
            "(train_dataset), 2. a reward with finer steps (reward_funcs). Read completions first: a hacked reward "
            "saturates as well.",
            {"start": start},
        )  # fmt: skip


class RewardFlat(Rule):
    """Over a long stretch the reward shows no upward trend, although groups differ.

    Sees: the means of sixteen to thirty-two blocks of the whole run: Theil-Sen's line and the Mann-Kendall test. Judged
    each time a block is full, so that it costs next to nothing.
    Matters: nothing is being learnt; most often the fault lies before the trainer, in the reward or the prompts.
    Source: Mann 1945, Sen 1968. Default: at least 96 logs, and no rise at two standard deviations. An `info`, since
    many runs learn something that the mean of a batch does not show.
    """

    name = "reward_flat"
    patient = True
    metrics = ("reward",)
    statistical = True
    close_after = 1
    explained_by = ("nonfinite_metric", "zero_signal", "frozen_policy", "reward_drop", "dead_reward_component")

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._blocks = Blocks(32)
        self._judged = Largest()  # logs there were when it was last judged
        self._groups_differ = Streak()

    def check(self, row: Row) -> Finding | Verdict:
        value = row.metrics.get("reward")
        if value is None:
            return Verdict.NO_DATA
        self._blocks.push(value)
        if not self._groups_differ.count and row.metrics.get("reward_std", 1.0) > 0:
            self._groups_differ.push(True)
        logs = len(self._blocks)
        if logs < self.limits["logs"] or logs < self._judged.value + self.limits["every"]:
            return Verdict.NO_DATA
        self._judged.push(logs)
        gain, z = self._blocks.trend()
        if z > self.limits["min_z"] or not self._groups_differ.count:
            return Verdict.HEALTHY if z > self.limits["min_z"] + 1 else Verdict.NO_DATA
        return Finding(
            Severity.INFO, "reward", value,
            f"reward shows no upward trend over {logs} logs: {gain:+.2g} in all, {z:+.1f} standard deviations of the "
            f"Mann-Kendall test, around {self._blocks.means[-1]:.3g}",
            "1. Does the reward tell completions of one prompt apart (reward_std)? 2. learning_rate may be too low, or "
            "beta/kl_coef too high: is the KL above 0.01? 3. Prompts too hard or too easy: look at the share of groups "
            "without a spread (frac_reward_zero_std). 4. More completions a prompt: num_generations.",
            {"gain": gain, "z": z},
        )  # fmt: skip
