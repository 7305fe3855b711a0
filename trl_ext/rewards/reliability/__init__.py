"""Judges reward functions from what they gave to completions: is the number worth optimising?

`RewardReliability` observes, `report()` says; `callbacks.RewardReliabilityCallback` feeds it in a trainer, and
`trl-ext rewards check` from a file.
"""

from trl_ext.rewards.reliability.judge import RewardReliability
from trl_ext.rewards.reliability.report import PARTS, ReliabilityReport

__all__ = ["PARTS", "ReliabilityReport", "RewardReliability"]
