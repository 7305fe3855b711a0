"""The reward functions that a configuration can name."""

from collections.abc import Callable
from typing import NamedTuple

from trl_ext.rewards import trl_functions
from trl_ext.rewards.combinators import Clip, Gate, Schedule, WeightedSum
from trl_ext.rewards.ending import EndingReward
from trl_ext.rewards.format import RegexReward, TagsReward
from trl_ext.rewards.json_actions import JsonActionsReward
from trl_ext.rewards.json_format import JsonFieldsReward, JsonValidReward
from trl_ext.rewards.json_schema import JsonSchemaReward
from trl_ext.rewards.keywords import KeywordReward
from trl_ext.rewards.language import ScriptReward
from trl_ext.rewards.length import LengthReward
from trl_ext.rewards.numeric import NumericReward
from trl_ext.rewards.remote import RemoteReward
from trl_ext.rewards.repetition import LoopReward, RepetitionReward
from trl_ext.rewards.rescaling import Rescale
from trl_ext.rewards.reward_model import RewardModelReward
from trl_ext.rewards.safety import BlockListReward
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
    "keywords": Entry(KeywordReward, "sum of the weights of the keywords in the text"),
    "ending": Entry(EndingReward, "1 where the text ends as asked"),
    "length": Entry(LengthReward, "1 inside a band of words or tokens, with soft edges"),
    "repetition": Entry(RepetitionReward, "share of distinct n-grams, 1 when none repeats"),
    "loops": Entry(LoopReward, "share of words outside of n-gram loops, 1 when there is none"),
    "tags": Entry(TagsReward, "1 where each tag stands once and in order"),
    "regex": Entry(RegexReward, "1 where a regular expression is found"),
    "json_valid": Entry(JsonValidReward, "1 where the text holds valid JSON"),
    "json_schema": Entry(JsonSchemaReward, "1 where the JSON agrees with a schema"),
    "json_fields": Entry(JsonFieldsReward, "share of the required fields that the JSON has"),
    "json_actions": Entry(JsonActionsReward, "share of turns that take a valid action"),
    "numeric": Entry(NumericReward, "1 where the final number equals that in a dataset column"),
    "script": Entry(ScriptReward, "share of letters in the scripts asked for"),
    "block_list": Entry(BlockListReward, "1 without blocked words and phrases, else 0"),
    "reward_model": Entry(RewardModelReward, "what a sequence classifier gives to prompt and completion"),
    "remote": Entry(RemoteReward, "what an HTTP endpoint answers"),
    # Made of other rewards.
    "weighted_sum": Entry(WeightedSum, "sum of weight * reward", ("rewards",)),
    "clip": Entry(Clip, "a reward between bounds", ("reward",)),
    "rescale": Entry(Rescale, "(reward - mean) / std, by running moments", ("reward",)),
    "gate": Entry(Gate, "a reward only where a condition is at least a threshold", ("reward", "condition")),
    "schedule": Entry(Schedule, "a reward with a weight that changes over the steps", ("reward",)),
    # TRL's own, under the names of its command line.
    "think_format_reward": Entry(trl_functions.think_format, "TRL: 1 for `<think>...</think>` and then an answer"),
    "accuracy_reward": Entry(trl_functions.accuracy, "TRL: 1 where the answer equals the column 'solution'"),
    "get_soft_overlong_punishment": Entry(trl_functions.soft_overlong, "TRL: 0 to -1 as tokens near the limit"),
}
