"""The rules by name. A new rule: its class in the file of its family, its numbers in `thresholds.py`, its name here."""

from trl_ext.monitor.rules.base import Finding, Levels, Rule, Verdict
from trl_ext.monitor.rules.early_divergence import EarlyDivergence
from trl_ext.monitor.rules.entropy import EntropyCollapse, EntropyExplosion
from trl_ext.monitor.rules.first_step import FirstStepMismatch
from trl_ext.monitor.rules.frozen import FrozenPolicy
from trl_ext.monitor.rules.gradients import GradNormSpike, GradNormTrend
from trl_ext.monitor.rules.groups import ZeroSignal
from trl_ext.monitor.rules.kl import KLHigh, KLNegative, KLRunaway, KLSpike
from trl_ext.monitor.rules.learning_rate import LRScheduleDrift, LRZeroEarly
from trl_ext.monitor.rules.lengths import AllTruncated, EosMissing, LengthCollapse, LengthDrift
from trl_ext.monitor.rules.loss_scale import LossScale
from trl_ext.monitor.rules.numerics import NonfiniteMetric
from trl_ext.monitor.rules.policy_ratio import ApproxKLSpike, ClipFractionHigh, RatioOutOfBand
from trl_ext.monitor.rules.preference import (
    IdenticalPairs,
    LabelsMasked,
    LikelihoodDisplacement,
    PreferenceChance,
    PreferenceMagnitude,
    PreferenceNoMovement,
)
from trl_ext.monitor.rules.resources import MemoryGrowth, StepTimeDrift
from trl_ext.monitor.rules.resume import ResumeDiscontinuity
from trl_ext.monitor.rules.reward import RewardDrop, RewardFlat, RewardFlatKLRising, RewardSaturated
from trl_ext.monitor.rules.reward_components import ComponentDominance, DeadRewardComponent
from trl_ext.monitor.rules.reward_failures import RewardFailures
from trl_ext.monitor.rules.reward_hacking import RewardHackingSuspected
from trl_ext.monitor.rules.reward_model import RewardModelScale
from trl_ext.monitor.rules.sampling import SamplingMismatch
from trl_ext.monitor.rules.setup import TokenizerSetup
from trl_ext.monitor.rules.supervised import LossDivergence, LossFlat, NoSupervisedTokens, Overfitting
from trl_ext.monitor.rules.value_function import ValueExplainedVariance, ValueLossDivergence, ValueLossWeight

FAMILIES: dict[str, tuple[type[Rule], ...]] = {
    "setup": (TokenizerSetup, FirstStepMismatch),
    "numerics": (NonfiniteMetric, LossScale),
    "supervised": (NoSupervisedTokens, EarlyDivergence, LossDivergence, Overfitting, LossFlat),
    "lengths": (AllTruncated, EosMissing, LengthCollapse),
    "groups": (ZeroSignal,),
    "kl": (KLRunaway, KLHigh, KLSpike, KLNegative),
    "policy_ratio": (ApproxKLSpike, RatioOutOfBand, ClipFractionHigh),
    "entropy": (EntropyCollapse, EntropyExplosion),
    "preference": (
        LabelsMasked,
        IdenticalPairs,
        PreferenceMagnitude,
        LikelihoodDisplacement,
        PreferenceNoMovement,
        RewardModelScale,
        PreferenceChance,
    ),
    "frozen": (FrozenPolicy,),
    "reward": (
        RewardFailures,
        RewardHackingSuspected,
        RewardDrop,
        RewardFlatKLRising,
        DeadRewardComponent,
        ComponentDominance,
        RewardSaturated,
        RewardFlat,
        LengthDrift,
    ),
    "value_function": (ValueLossWeight, ValueLossDivergence, ValueExplainedVariance),
    "gradients": (GradNormTrend, GradNormSpike),
    "learning_rate": (LRScheduleDrift, LRZeroEarly),
    "sampling": (SamplingMismatch,),
    "resume": (ResumeDiscontinuity,),
    "resources": (MemoryGrowth, StepTimeDrift),
}


def _causes_first() -> dict[str, type[Rule]]:
    """By name, each rule after those that may explain it, since a log is judged in this order."""
    rules = {rule.name: rule for family in FAMILIES.values() for rule in family}
    ordered: dict[str, type[Rule]] = {}

    def add(rule: type[Rule]) -> None:
        for cause in rule.explained_by:
            add(rules[cause])
        ordered.setdefault(rule.name, rule)

    for rule in rules.values():
        add(rule)
    return ordered


RULES = _causes_first()

__all__ = ["FAMILIES", "RULES", "Finding", "Levels", "Rule", "Verdict"]
