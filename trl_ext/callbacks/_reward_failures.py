"""What the monitor has to do with reward functions that fail: where that is kept, and how it gets into the log."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trl_ext.rewards.checking import CheckedReward


def checked_rewards(trainer: Any) -> list[CheckedReward]:
    """The checked reward functions of a trainer, stock PPO's reward module included."""
    functions = list(getattr(trainer, "reward_funcs", None) or ())
    functions += getattr(getattr(getattr(trainer, "reward_model", None), "backbone", None), "funcs", ())
    return [function for function in functions if isinstance(function, CheckedReward)]


def keep_failures(functions: Sequence[CheckedReward], folder: Path) -> None:
    for function in functions:
        function.keep_failures_in(folder)


def failed_shares(functions: Sequence[CheckedReward], logs: Any) -> dict[str, float]:
    """`reward_failures/<function>` where the trainer does not log it (stock PPO): the share since the last log."""
    shares = {}
    for function in functions:
        key = f"reward_failures/{function.__name__}"
        share = function.take_failed_share()
        if share is not None and key not in logs:
            shares[key] = share
    return shares
