"""Reward functions that fail on completions: `CheckedReward` gives these no reward and goes on."""

from collections.abc import Mapping
from functools import lru_cache

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Layout, Row
from trl_ext.monitor.rules.base import Finding, Levels, Rule, Verdict

_PREFIX = "reward_failures/"


class RewardFailures(Rule):
    """A reward function raises, takes too long, or returns what is no finite number.

    Sees: `reward_failures/<function>`, the share of completions without a usable reward.
    Matters: these completions teach nothing, or what `on_failure` says; where all fail the run trains on nothing.
    Source: constructed. Default: a few now and then are info; 2% for three logs a warning; half of them an error; all
    of them for three logs critical.
    """

    name = "reward_failures"
    metrics = ("reward_failures/*",)

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._levels = Levels(
            {
                Severity.INFO: 1,
                Severity.WARNING: limits["logs"],
                Severity.ERROR: 1,
                Severity.CRITICAL: limits["logs"],
            }
        )

    def check(self, row: Row) -> Finding | Verdict:
        metrics = row.metrics
        shares = {name: metrics[name] for name in _among(row.layout) if name in metrics}
        if not shares:
            return Verdict.NO_DATA
        name, share = max(shares.items(), key=lambda item: item[1])
        limits = self.limits
        verdict = self._levels.push(
            share > 0, share >= limits["warning"], share >= limits["error"], share >= limits["critical"]
        )
        if isinstance(verdict, Verdict):
            return verdict
        function = name.removeprefix(_PREFIX)
        return Finding(
            verdict, name, share,
            f"the reward function {function} failed on {share:.3g} of the completions (1 is all of them)",
            f"1. Look into reward_failures.jsonl: it has the completions and what went wrong. 2. Mend {function}, or "
            "have it return None for what it cannot score. 3. on_failure: raise (beside its name) ends the run at the "
            "first failure instead; a number is given as the reward.",
            {"function": function},
        )  # fmt: skip


@lru_cache(maxsize=256)
def _among(layout: Layout) -> tuple[str, ...]:
    return tuple(name for name in layout.names if name is not None and name.startswith(_PREFIX))
