"""A reward that rises for the wrong reason."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from functools import lru_cache, partial
from itertools import pairwise

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Layout, Row
from trl_ext.monitor.rules.base import Finding, Levels, Rule, Verdict
from trl_ext.monitor.rules.kl import kl_of
from trl_ext.monitor.rules.reward_components import Functions
from trl_ext.monitor.rules.reward_series import RewardSeries, reward_series
from trl_ext.monitor.statistics import Largest, Recent, Start, Streak

# names by which people mark a measure of the truth that is not trained on
HELD_BACK = re.compile(r"(?:^|[/_])(?:gold|truth|true|strict|oracle|held_?(?:out|back)|holdout)(?:[/_]|$)")
PROXY = re.compile(r"(?:^|[/_])proxy(?:[/_]|$)")  # and the measure that is, where no `reward` is logged
LOGS = 24  # whose reward and length are compared
CORRELATED_EVERY = 8  # logs: it takes 50 microseconds, and one log in 32 hardly moves it


class RewardHackingSuspected(Rule):
    """The reward rises while something says that the completions do not get better.

    Sees, any of: (1) a measure that is not trained on falls while the reward rises: a reward function of weight 0, or a
    metric named gold, true, strict, oracle, held_out; (2) reward and length move as one: their changes from log to log
    are correlated at 0.8 or more while the length has grown by a third; (3) the KL is past its band and the length has
    doubled or halved while the reward rose.
    Matters: the run looks better the worse it gets.
    Source: arXiv 2210.10760 (over-optimisation); a public run whose strict accuracy went from 0.90 to 0.22 while the
    reward model's score doubled. Default: (1) an error, as it is measured; (2) and (3) warnings, since honest answers
    may need more words. Audits by acceleration or advantage drift gave no usable rate of false alarms (trl#6350).
    """

    name = "reward_hacking_suspected"
    patient = True
    explained_by = ("nonfinite_metric",)

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._gold = Functions(partial(Start, 1))
        self._gold_streaks = Functions(Streak)
        self._length_start, self._lengths = Start(int(limits["start_logs"])), Recent(LOGS)
        self._rewards = Recent(LOGS)  # of logs that have a length as well
        self._levels = Levels({Severity.WARNING: limits["logs"]})
        self._reward_first = Start(1)
        self._judged, self._correlation = Streak(), Largest()
        self._layout: Layout | None = None
        self._names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  # of that layout

    def check(self, row: Row) -> Finding | Verdict:
        reward, held_back = self._read(row)
        if reward is None:
            return Verdict.NO_DATA
        if self._reward_first.level is None:
            self._reward_first.push(reward)
        if held_back:
            found = self._held_back(row, reward, held_back)
            if found is not None:
                return found
        length = row.metrics.get("completion_length")
        if length is None or "reward" not in row.metrics:
            return Verdict.HEALTHY if held_back else Verdict.NO_DATA
        if self._length_start.level is None:
            self._length_start.push(length)
        self._lengths.push(length)
        self._rewards.push(reward)
        series, length_start = reward_series(self, row), self._length_start.level
        if series.start is None or length_start is None or len(self._lengths) < LOGS // 2:
            return Verdict.HEALTHY
        return self._length_paid(row, reward, series, length_start)

    def _read(self, row: Row) -> tuple[float | None, list[str]]:
        """The reward that is trained on, and the names of the measures that are not."""
        metrics = row.metrics
        if row.layout is not self._layout:
            self._layout, self._names = row.layout, _named(row.layout)
        proxies, named = self._names
        reward = metrics.get("reward")
        if reward is None:
            reward = next((metrics[name] for name in proxies if name in metrics), None)
        facts = self.facts.get("held_back_rewards")
        if not named and not facts:
            return reward, []
        held_back = [*named, *(f"reward/{name}/mean" for name in facts or ())]
        return reward, [name for name in held_back if name in metrics]

    def _held_back(self, row: Row, reward: float, held_back: list[str]) -> Finding | None:
        first_reward = self._reward_first.level
        assert first_reward is not None
        for name in held_back:
            value = row.metrics[name]
            start, streak = self._gold.get(name), self._gold_streaks.get(name)
            if start is None or streak is None:
                continue
            start.push(value)
            first = start.level
            drop = (first - value) / max(abs(first), 1e-9)
            rises = reward > first_reward + self.limits["rise"] * abs(first_reward)
            count = streak.push(rises and drop > self.limits["drop"])
            if count >= self.limits["logs"] or (count and drop > self.limits["drop_at_once"]):
                return Finding(
                    Severity.ERROR, name, value,
                    f"{name}, which is not trained on, fell from {first:.3g} to {value:.3g} while the reward rose from "
                    f"{first_reward:.3g} to {reward:.3g}",
                    "The reward is being hacked. 1. Stop, and go back to the checkpoint where both were high. 2. Raise "
                    "kl_coef (PPO) or beta (GRPO, RLOO). 3. Mend the reward for what the best-scoring completions do.",
                    {"first": first, "reward_first": first_reward},
                )  # fmt: skip
        return None

    def _length_paid(self, row: Row, reward: float, series: RewardSeries, length_start: float) -> Finding | Verdict:
        reward_start, length = series.start or 0.0, self._lengths.mean()
        times = max(length, 1e-9) / max(length_start, 1e-9)
        moved = max(times, 1 / times)
        level = self._rewards.mean() if moved >= self.limits["length_moved"] else reward_start
        rise = level - reward_start
        if not (rise > 0.5 * abs(reward_start) or rise > series.noise) or rise == 0:
            self._levels.push(False)
            return Verdict.HEALTHY
        unit, kl = kl_of(row)
        far = kl is not None and kl > self.limits[f"per_{unit}"] and moved > self.limits["length_times"]
        if self._judged.push(True) % CORRELATED_EVERY == 1:
            self._correlation.value = change_correlation(self._rewards.values(), self._lengths.values())
        r = self._correlation.value
        as_one = times > 1 and r > self.limits["correlation"]  # brevity may pay because cut-off answers are wrong
        verdict = self._levels.push(far or as_one)
        if isinstance(verdict, Verdict):
            return verdict
        why = f"their changes from log to log are correlated at {r:.2f}" if as_one else f"KL is {kl:.3g} nats a {unit}"
        return Finding(
            verdict, "reward", reward,
            f"the reward ({reward_start:.3g} to {level:.3g}) seems to pay for length ({length_start:.3g} to "
            f"{length:.3g} tokens): {why}",
            "Read the best-scoring completions. 1. Take length out of the reward: normalise it, or add a length "
            "penalty. 2. Raise kl_coef (PPO) or beta (GRPO, RLOO). 3. Log a measure that is not trained on: a reward "
            "function of weight 0 is judged here.",
            {"correlation": r, "length_start": length_start, "length": length},
        )  # fmt: skip


@lru_cache(maxsize=256)
def _named(layout: Layout) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Metrics that are named a proxy, and those that are named the truth; remembered for each set of names."""
    # what RewardReliabilityCallback logs it has judged itself, with the scatter of single completions at hand
    names = [name for name in layout.names if name is not None and not name.startswith("reward_reliability/")]
    means = [name for name in names if not name.endswith("/std")]
    proxies = tuple(name for name in means if PROXY.search(name.lower()))
    return proxies, tuple(name for name in means if HELD_BACK.search(name.lower()))


def change_correlation(x: list[float], y: list[float]) -> float:
    """Spearman's correlation of the changes from each number to the next, so that one jump of both counts as one of
    many; 0 when one of the two never changes."""
    dx, dy = (_ranks([b - a for a, b in pairwise(values)]) for values in (x, y))
    middle = (len(dx) - 1) / 2
    sxy = sum((a - middle) * (b - middle) for a, b in zip(dx, dy, strict=True))
    sxx, syy = sum((a - middle) ** 2 for a in dx), sum((b - middle) ** 2 for b in dy)
    return sxy / (sxx * syy) ** 0.5 if sxx > 0 and syy > 0 else 0.0


def _ranks(values: list[float]) -> list[float]:
    """From 0; equal values share the mean of their ranks."""
    ordered = sorted(values)
    return [(bisect_left(ordered, value) + bisect_right(ordered, value) - 1) / 2 for value in values]
