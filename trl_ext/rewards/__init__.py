"""Reward functions, named in a configuration and callable by every TRL trainer."""

from trl_ext.rewards.checking import Batch, CheckedReward
from trl_ext.rewards.length import LengthReward
from trl_ext.rewards.loading import load_reward_funcs
from trl_ext.rewards.registry import REWARDS
from trl_ext.rewards.repetition import RepetitionReward
from trl_ext.rewards.sentiment import SentimentReward
from trl_ext.rewards.text import completion_text
from trl_ext.rewards.trying import check_reward_funcs

__all__ = [
    "REWARDS",
    "Batch",
    "CheckedReward",
    "LengthReward",
    "RepetitionReward",
    "SentimentReward",
    "as_reward_model",
    "check_reward_funcs",
    "completion_text",
    "load_reward_funcs",
]


def __getattr__(name: str) -> object:
    """`as_reward_model` needs torch, which naming rewards does not."""
    if name == "as_reward_model":
        from trl_ext.rewards.stock import as_reward_model

        return as_reward_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
