"""The rules by name. A new rule: its class in the file of its family, its numbers in `thresholds.py`, its name here."""

from trl_ext.monitor.rules.base import Finding, Levels, Rule, Verdict
from trl_ext.monitor.rules.entropy import EntropyCollapse
from trl_ext.monitor.rules.kl import KLHigh
from trl_ext.monitor.rules.numerics import NonfiniteMetric
from trl_ext.monitor.rules.policy_ratio import RatioOutOfBand
from trl_ext.monitor.rules.value_function import ValueLossDivergence

RULES: dict[str, type[Rule]] = {
    rule.name: rule for rule in (NonfiniteMetric, KLHigh, EntropyCollapse, ValueLossDivergence, RatioOutOfBand)
}

__all__ = ["RULES", "Finding", "Levels", "Rule", "Verdict"]
