"""Completions of one prompt, compared with each other."""

import math
from collections.abc import Mapping

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Row
from trl_ext.monitor.rules.base import Finding, Rule, Verdict
from trl_ext.monitor.statistics import Recent, Share, Streak


class ZeroSignal(Rule):
    """All completions of a prompt get the same reward, so that no advantage is left.

    Sees: `frac_reward_zero_std`; where it is not logged (GRPO up to 0.17), a `reward_std` of exactly 0.
    Matters: such a group gives no gradient at all.
    Source: TRL_FACTS, DESIGN. Default: 95% of the groups for three logs in a row is an error, or for as many as chance
    cannot explain: with one or two groups a log, an easy prompt or two fill it now and then. Fewer than 24 groups in
    all are a warning. Half of the groups on
    average over twenty logs is a warning.
    """

    name = "zero_signal"
    patient = True
    metrics = ("zero_std_fraction", "reward_std")
    explained_by = ("nonfinite_metric", "all_truncated")

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._all = Streak()
        self._recent = Recent(int(limits["warning_logs"]))
        self._usual = Share(at_least=1)

    def check(self, row: Row) -> Finding | Verdict:
        fraction, metric = row.metrics.get("zero_std_fraction"), "zero_std_fraction"
        std = row.metrics.get("reward_std")
        if fraction is None and std is None:
            return Verdict.NO_DATA
        if fraction is None or std == 0:  # RLOO's fraction counts the KL penalty as a part of the reward
            fraction, metric = float(std == 0), "reward_std"
        before = self._all.count
        streak = self._all.push(fraction >= self.limits["error"])
        self._recent.push(fraction)
        if streak == 0:
            self._usual.push(fraction, before)
        level = self._recent.mean()
        if streak == 0 and level < self.limits["warning"]:
            return Verdict.HEALTHY if level < 0.8 * self.limits["warning"] else Verdict.NO_DATA
        full = len(self._recent) == self._recent.size
        groups = self.facts.get("groups_per_log") or self._usual.parts
        if streak >= self.limits["error_logs"] and self._usual.chance(streak, groups) < self.limits["chance"]:
            many = streak * groups >= self.limits["error_groups"]
            severity, share = Severity.ERROR if many else Severity.WARNING, fraction
        elif full and level >= self.limits["warning"] + 1.5 / math.sqrt(len(self._recent) * groups):
            severity, share = Severity.WARNING, level  # by three standard deviations of a coin thrown for each group
        else:
            return Verdict.HEALTHY if level < self.limits["warning"] else Verdict.NO_DATA
        return Finding(
            severity, metric, row.metrics[metric],
            f"in {share:.0%} of the groups all completions get the same reward: no gradient comes from them",
            "1. Prompts are too hard or too easy: is the reward at its lowest or highest value? Filter them by pass "
            "rate. 2. The reward function gives one answer whatever it sees: test it by hand. 3. Too few or too "
            "similar completions: raise num_generations or temperature.",
            {"share": share},
        )  # fmt: skip
