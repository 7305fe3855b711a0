"""The rewards of a run in a YAML file: that of a recipe, or one of rewards alone."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from trl_ext.errors import UserError
from trl_ext.strict_yaml import read_yaml


class RewardConfig(NamedTuple):
    """Attributes:
    reward_funcs: as `load_reward_funcs` takes them.
    reward_weights: TRL's option, `None` where the weights are in `reward_funcs`.
    gold_reward, probe_set: of `RewardReliabilityCallback`.
    model: the policy, whose tokenizer counts tokens; `None` where the file names none.
    """

    reward_funcs: list[Any]
    reward_weights: list[float] | None = None
    gold_reward: Any = None
    probe_set: str | None = None
    model: str | None = None


def read_reward_config(path: str | os.PathLike[str]) -> RewardConfig:
    """What a file says about rewards: a mapping with `reward_funcs` (other options are left alone), or a list of
    rewards.

    Raises:
        UserError: a file that cannot be read, or that has no `reward_funcs`.
    """
    content = read_yaml(path)
    if isinstance(content, list):
        content = {"reward_funcs": content}
    specs = content.get("reward_funcs") if isinstance(content, Mapping) else None
    if isinstance(specs, str | Mapping):
        specs = [specs]
    if not isinstance(specs, list) or not specs:
        raise UserError(
            f"{os.fspath(path)} has no reward_funcs: write reward_funcs: [{{name: sentiment, weight: 1.0}}]"
        )
    weights = content.get("reward_weights")
    if weights is not None and not isinstance(weights, list):
        raise UserError(f"{os.fspath(path)}: reward_weights must be a list of numbers, not {weights!r}")
    model = content.get("model_name_or_path")
    return RewardConfig(specs, weights, content.get("gold_reward"), content.get("probe_set"), model)
