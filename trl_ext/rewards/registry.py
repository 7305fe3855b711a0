"""The reward functions that a configuration can name."""

from collections.abc import Callable
from typing import NamedTuple

from trl_ext.rewards import trl_functions
from trl_ext.rewards.ending import EndingReward
from trl_ext.rewards.format import RegexReward, TagsReward
from trl_ext.rewards.json_actions import JsonActionsReward
from trl_ext.rewards.json_format import JsonFieldsReward, JsonValidReward
from trl_ext.rewards.json_schema import JsonSchemaReward
from trl_ext.rewards.keywords import KeywordReward
from trl_ext.rewards.length import LengthReward
from trl_ext.rewards.repetition import LoopReward, RepetitionReward
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
    "keywords": Entry(KeywordReward, "sum of keyword weights: weights, case_sensitive, every_mention, clip"),
    "ending": Entry(EndingReward, "1 where the text ends as asked: endings, case_sensitive, match, otherwise, timeout"),
    "length": Entry(LengthReward, "1 inside a band of words or tokens, with soft edges: minimum, maximum, edge, unit"),
    "repetition": Entry(RepetitionReward, "share of distinct n-grams, 1 when none repeats: n"),
    "loops": Entry(LoopReward, "share of words outside of n-gram loops, 1 when there is none: repeats, longest"),
    "tags": Entry(TagsReward, "1 where each tag stands once and in order: tags, only_tags, partial"),
    "regex": Entry(
        RegexReward,
        "1 where a regular expression is found: pattern, full_match, match, otherwise, timeout, on_timeout",
    ),
    "json_valid": Entry(JsonValidReward, "1 where the text holds valid JSON: where"),
    "json_schema": Entry(JsonSchemaReward, "1 where the JSON agrees with a schema: schema, where, partial"),
    "json_fields": Entry(JsonFieldsReward, "share of required fields that the JSON has: fields, where"),
    "json_actions": Entry(JsonActionsReward, "share of turns that take a valid action: actions, where, arguments"),
    # TRL's own, under the names of its command line.
    "think_format_reward": Entry(trl_functions.think_format, "TRL: 1 for <think>...</think> and then an answer"),
    "accuracy_reward": Entry(trl_functions.accuracy, "TRL: 1 where the answer equals the column 'solution'"),
    "get_soft_overlong_punishment": Entry(
        trl_functions.soft_overlong,
        "TRL: 0 to -1 as tokens near the limit: max_completion_len, soft_punish_cache",
    ),
}
