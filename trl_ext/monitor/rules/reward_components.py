"""Several reward functions in one run."""

import math
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Layout, Row
from trl_ext.monitor.rules.base import Finding, Rule, Verdict
from trl_ext.monitor.rules.reward_series import reward_series
from trl_ext.monitor.statistics import Recent, Start, Statistic, Streak, finite

MOST_FUNCTIONS = 64  # that are followed: more are no reward functions but a mistake
PENALTIES = ("penalty", "punish", "overlong", "cost", "violation", "toxic", "repet")


class Functions(Statistic):
    """One statistic for each reward function."""

    def __init__(self, new: Any):
        self._new = new
        self.of: dict[str, Any] = {}

    def get(self, name: str) -> Any:
        if name not in self.of and len(self.of) < MOST_FUNCTIONS:
            self.of[name] = self._new()
        return self.of.get(name)

    def state_dict(self) -> dict[str, Any]:
        return {name: statistic.state_dict() for name, statistic in self.of.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.of = {name: self._new() for name in state}
        for name, statistic in self.of.items():
            statistic.load_state_dict(state[name])


@lru_cache(maxsize=256)
def _functions_among(layout: Layout) -> tuple[tuple[str, str], ...]:
    """Name of each reward function and of its mean; remembered, since a trainer logs the same few sets of names."""
    names = [name for name in layout.names if name is not None]
    return tuple((name[7:-5], name) for name in names if name.startswith("reward/") and name.endswith("/mean"))


def function_means(row: Row) -> dict[str, float]:
    """The mean of each reward function in this log, by its name."""
    metrics = row.metrics
    return {name: metrics[metric] for name, metric in _functions_among(row.layout) if metric in metrics}


class _Stillness(Statistic):
    """How often in a row the same number came, and how often at most before."""

    def __init__(self) -> None:
        self.value: float | None = None
        self.count = self.longest = 0

    def push(self, value: float) -> int:
        if value == self.value:
            self.count += 1
            return self.count
        if self.count > self.longest:
            self.longest = self.count
        self.value, self.count = finite(value), 1
        return 1

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "count": self.count, "longest": self.longest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value, self.count, self.longest = state["value"], int(state["count"]), int(state["longest"])


class DeadRewardComponent(Rule):
    """A reward function gives exactly the same mean in every log.

    Sees: the mean of each function, and the whole reward where no function is logged (PPO). Exactly equal, ten logs in
    a row and three times as often as ever before: a mean over many completions is never that by chance, and a sparse
    reward that rests at 0 now and then is not dead.
    Matters: it teaches nothing, whatever its weight.
    Source: unsloth#2291 and a public GRPO log (two functions at -0.5 and -0.2 in all 300 rows). Default: an `info`; a
    warning when it is 0 or less after 96 logs (no completion ever earned it: a format nobody satisfies, an answer that
    is never parsed) in a run that does not gain from its other functions either. Above zero, all completions may have
    it already, and a penalty that is 0 was never due.
    """

    name = "dead_reward_component"
    patient = True
    metrics = ("reward/*", "reward")
    close_after = 1
    explained_by = (
        "reward_failures",
        "nonfinite_metric",
    )

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._runs = Functions(_Stillness)

    def check(self, row: Row) -> Finding | Verdict:
        means = function_means(row)
        if not means and "reward" in row.metrics:
            means = {"": row.metrics["reward"]}
        if not means:
            return Verdict.NO_DATA
        dead, logs, runs, needed = {}, 0, self._runs, self.limits["logs"]
        for name, value in means.items():
            run = runs.of.get(name) or runs.get(name)
            if run is None:
                continue
            count = run.push(value)
            if count >= needed and count >= self.limits["times"] * run.longest:
                dead[name] = value
                logs = max(logs, count)
        if not dead:
            if "reward" in row.metrics:
                reward_series(self, row)  # learns, whoever asks
            return Verdict.HEALTHY
        gained = self._gained(row)
        serious = {name: value for name, value in dead.items() if _never_earned(name, value)}
        name, value = min((serious or dead).items(), key=lambda item: item[1])
        listed = ", ".join(f"{name or 'the reward'} = {value:.4g}" for name, value in (serious or dead).items())
        # where nothing but the whole reward is logged there is nothing else to learn from
        matters = bool(serious) and (not name or (logs >= self.limits["warning_logs"] and not gained))
        return Finding(
            Severity.WARNING if matters else Severity.INFO, f"reward/{name}/mean" if name else "reward", value,
            f"exactly the same mean for {logs} logs: {listed}",
            "1. Call the function (of reward_funcs) on a completion that should earn it, and on one that should not. "
            "2. It may see another format than it parses: chat messages instead of text, a missing tag, a column with "
            "another name. 3. If all completions satisfy it already, drop it: it costs time and teaches nothing.",
            {"functions": list(dead)},
        )  # fmt: skip

    def _gained(self, row: Row) -> bool:
        """Whether the run learns from its other functions."""
        if "reward" not in row.metrics:
            return False
        series = reward_series(self, row)
        # three standard errors of the difference of two means of sixteen
        return series.start is not None and series.middle - series.start > 3 * series.noise * math.sqrt(2 / 16)


def _never_earned(name: str, value: float) -> bool:
    return value < 0 or (value == 0 and not any(word in name.lower() for word in PENALTIES)) or not name


class ComponentDominance(Rule):
    """One reward function carries the whole reward, and what it pays for is length.

    Sees: two or more functions; one of them rises with nearly all of the total, another is dead at 0 or falls, and the
    completions have grown by half. That one function moves most is healthy as long as length stays.
    Matters: the cheapest way to more reward wins; the function that measures the task no longer counts.
    Source: a constructed public report (a length bonus from 0.1 to 1.0 with correctness 0). Default: ten logs, a
    warning.
    """

    name = "component_dominance"
    patient = True
    metrics = ("reward/*",)
    statistical = True
    explained_by = ("nonfinite_metric", "reward_hacking_suspected")

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._size = int(limits["start_logs"])
        self._starts = Functions(partial(Start, self._size))
        self._levels = Functions(partial(Recent, self._size))
        self._lengths = Recent(self._size)
        self._streak = Streak()

    def check(self, row: Row) -> Finding | Verdict:
        means = function_means(row)
        length = row.metrics.get("completion_length")
        if len(means) < 2 or length is None:
            return Verdict.NO_DATA
        return self._compare(means, length)

    def _compare(self, means: dict[str, float], length: float) -> Finding | Verdict:
        for name, value in {**means, "": length}.items():
            start = self._starts.of.get(name) or self._starts.get(name)
            if start is not None and start.level is None:
                start.push(value)
        length_start = self._starts.of[""].level
        self._lengths.push(length)
        if length_start is None or self._lengths.mean() <= self.limits["length_times"] * length_start:
            self._streak.count = 0
            return Verdict.HEALTHY
        for name, value in means.items():  # followed only while it matters
            if name in self._starts.of:
                self._levels.get(name).push(value)
        length_now = self._lengths.mean()
        gains = {}
        for name in means:
            if name in self._starts.of and (start := self._starts.of[name].level) is not None:
                gains[name] = (start, self._levels.of[name].mean())
        if len(gains) < 2:
            return Verdict.NO_DATA
        name, (before, now) = max(gains.items(), key=lambda item: item[1][1] - item[1][0])
        gain = now - before
        others = [(start, level) for other, (start, level) in gains.items() if other != name]
        idle = all(level - start <= 0.05 * gain for start, level in others)
        worthless = any(level == start == 0 or level < start - 0.1 * gain for start, level in others)
        holds = gain > 0.5 * abs(before) and idle and worthless
        if self._streak.push(holds) < self.limits["logs"]:
            return Verdict.HEALTHY if not holds else Verdict.NO_DATA
        return Finding(
            Severity.WARNING, f"reward/{name}/mean", now,
            f"{name} carries the whole rise of the reward ({before:.3g} to {now:.3g}) while no other function gains, "
            f"and completions went from {length_start:.3g} to {length_now:.3g} tokens",
            f"1. Lower the weight of {name} (reward_weights), or cap what it pays. 2. Find out why the others earn "
            "nothing: see dead_reward_component. 3. Read the completions that score best.",
            {"function": name, "length_start": length_start, "length": length_now},
        )  # fmt: skip
