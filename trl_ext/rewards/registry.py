"""The reward functions that a configuration can name."""

from collections.abc import Callable
from typing import NamedTuple

from trl_ext.rewards import trl_functions
from trl_ext.rewards.length import LengthReward
from trl_ext.rewards.repetition import RepetitionReward
from trl_ext.rewards.sentiment import SentimentReward


class Entry(NamedTuple):
    """`factory(**kwargs)` makes the reward function.

    Attributes:
        rewards: those of its arguments that hold other rewards, each written as one in `reward_funcs`, or a list of
            them.
    """

    factory: Callable[..., Callable]
    description: str
    rewards: tuple[str, ...] = ()


REWARDS: dict[str, Entry] = {
    "sentiment": Entry(SentimentReward, "VADER's compound sentiment, -1 very negative to 1 very positive"),
    "length": Entry(LengthReward, "1 inside a band of words or tokens, with soft edges: minimum, maximum, edge, unit"),
    "repetition": Entry(RepetitionReward, "share of distinct n-grams, 1 when none repeats: n"),
    # TRL's own, under the names of its command line.
    "think_format_reward": Entry(trl_functions.think_format, "TRL: 1 for <think>...</think> and then an answer"),
    "accuracy_reward": Entry(trl_functions.accuracy, "TRL: 1 where the answer equals the column 'solution'"),
    "get_soft_overlong_punishment": Entry(
        trl_functions.soft_overlong,
        "TRL: 0 to -1 as tokens near the limit: max_completion_len, soft_punish_cache",
    ),
}
