"""From what a YAML file says about rewards to functions that a trainer takes."""

import difflib
import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from trl_ext.errors import UserError
from trl_ext.rewards.checking import DEFAULT_TIMEOUT, CheckedReward, callable_name
from trl_ext.rewards.failures import check_policy, check_timeout
from trl_ext.rewards.locating import locate
from trl_ext.rewards.options import LARGEST, is_number, shown
from trl_ext.rewards.registry import REWARDS
from trl_ext.strict_yaml import StrictLoader

Spec = str | Mapping[str, Any]
_SPEC_KEYS = ("name", "weight", "kwargs", "on_failure", "timeout")
_EXAMPLE = "reward_funcs: [{name: sentiment, weight: 1.0}]"
_GIVEN_BY_TRL = {"prompts", "completions", "completion_ids"}
_DEEPEST = 32  # rewards inside of rewards: more would come near the end of Python's stack when they are asked


class _NestedTooDeeplyError(UserError):
    """Said once, without the way there."""


class _Reward(NamedTuple):
    name: str
    weight: float
    kwargs: dict[str, Any]
    on_failure: str | float
    timeout: float | None


def load_reward_funcs(
    specs: Spec | Iterable[Spec],
    reward_weights: Sequence[float] | None = None,
    failures_dir: str | os.PathLike[str] | None = None,
) -> tuple[list[Callable], list[float]]:
    """Reward functions and their weights, in the order of `specs`.

    Args:
        specs: one or several of
            * a name of the registry (`trl-ext rewards list`): `sentiment`
            * a dotted path: `package.module.function` or `package.module:function`
            * a file: `rewards.py:my_reward`
            * a model for sequence classification: a folder, or a hub id `organization/model`
            * `{name: <one of these>, weight: 0.5, kwargs: {...}, on_failure: none, timeout: 300}`, also as a string
            What is named may be a reward function (kwargs are bound to it), a class, or a function that makes a reward
            function (both are called with the kwargs), or an `nn.Module`. `on_failure` and `timeout` are those of
            `CheckedReward`.
        reward_weights: TRL's option of that name, in place of the weights in `specs`.
        failures_dir: folder of `reward_failures.jsonl`; by default the callbacks of trl_ext set it.
    Returns:
        The functions, each a `CheckedReward` (an `nn.Module` as it is) with a `__name__` of its own, and the weights
        (1 by default).
    Raises:
        UserError: with the spec at fault and what to write instead.
    """
    if isinstance(specs, str | Mapping):
        specs = [specs]
    parsed = [_parse(spec) for spec in specs or []]
    if not parsed:
        raise UserError(f"No reward function is named: write {_EXAMPLE}")
    weights = _weights(parsed, reward_weights)
    functions = [_build(reward.name, reward.kwargs) for reward in parsed]
    return _checked(functions, parsed, weights, failures_dir), weights


def _parse(spec: Any) -> _Reward:
    if isinstance(spec, str):
        spec = _from_command_line(spec) if spec.lstrip().startswith("{") else {"name": spec}
    if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
        raise UserError(f"A reward needs a name, {spec!r} has none: write {_EXAMPLE}")
    name, weight, kwargs = spec["name"], spec.get("weight", 1.0), spec.get("kwargs") or {}
    for key in spec:
        if key not in _SPEC_KEYS:
            near = _nearest(str(key), _SPEC_KEYS)
            raise UserError(f"Reward '{name}' has the unknown key '{key}'{near}: keys are {', '.join(_SPEC_KEYS)}")
    if not is_number(weight):
        raise UserError(f"Reward '{name}' has the weight {shown(weight)}: write a number, e.g. weight: 0.5")
    if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
        raise UserError(f"Reward '{name}' has the kwargs {kwargs!r}: write a mapping, e.g. kwargs: {{n: 3}}")
    try:
        on_failure = check_policy(spec.get("on_failure"))
        timeout = check_timeout(spec.get("timeout", DEFAULT_TIMEOUT))
    except UserError as error:
        raise UserError(f"Reward '{name}': {error}") from error
    return _Reward(name, float(weight), dict(kwargs), on_failure, timeout)


def _from_command_line(spec: str) -> Any:
    """`--reward_funcs sentiment '{name: length, weight: 0.5}'`: a mapping as YAML writes it."""
    try:
        return yaml.load(spec, StrictLoader)
    except (yaml.YAMLError, RecursionError) as error:
        problem = getattr(error, "problem", None) or "not YAML"
        raise UserError(
            f"the reward {spec!r} cannot be read: {problem}; write '{{name: length, weight: 0.5}}'"
        ) from error


def _weights(parsed: list[_Reward], reward_weights: Sequence[float] | None) -> list[float]:
    if reward_weights is None:
        return [reward.weight for reward in parsed]
    names = ", ".join(reward.name for reward in parsed)
    if len(reward_weights) != len(parsed):
        raise UserError(
            f"reward_weights has {len(reward_weights)} numbers for {len(parsed)} reward functions ({names}): "
            "give one for each, or write weight beside each name in reward_funcs"
        )
    if any(reward.weight != 1.0 for reward in parsed):
        raise UserError("weights are given twice: keep those in reward_funcs, or reward_weights")
    for weight in reward_weights:
        if not is_number(weight):
            raise UserError(f"reward_weights has {shown(weight)}: write numbers, e.g. reward_weights: [1.0, 0.5]")
    return [float(weight) for weight in reward_weights]


def _build(name: str, kwargs: dict[str, Any], depth: int = 1) -> Callable:
    if depth > _DEEPEST:
        raise _NestedTooDeeplyError(f"rewards are nested too deeply in each other: at most {_DEEPEST} levels")
    if name in REWARDS:
        entry = REWARDS[name]
        return _make(name, entry.factory, _with_inner_rewards(name, kwargs, entry.rewards, depth))
    if _is_model(name):
        return _make(name, partial(REWARDS["reward_model"].factory, name), kwargs)
    if not any(mark in name for mark in ".:"):
        near = _nearest(name, REWARDS)
        raise UserError(
            f"There is no reward '{name}'{near}: name one of {', '.join(REWARDS)}, "
            "your own as package.module:function or rewards.py:function, or a model as organization/model or folder/"
        )
    target = locate(name)
    if not callable(target):
        raise UserError(f"Reward '{name}' is no function but {type(target).__name__}: name a function or a class")
    if inspect.isclass(target) or _makes_a_reward(target):
        reward = _make(name, target, kwargs)
    else:
        _refuse_unknown_kwargs(name, target, kwargs, _named(target).keys() - _GIVEN_BY_TRL)
        reward = partial(target, **kwargs) if kwargs else target
    if not callable(reward) or not _takes_anything(reward):
        raise UserError(
            f"Reward '{name}' cannot be called as TRL does, with dataset columns and more by name: "
            "write def reward(prompts, completions, **kwargs)"
        )
    return reward


def _is_model(name: str) -> bool:
    """A folder, or a hub id; no file of functions."""
    return Path(name).expanduser().is_dir() or ("/" in name and ".py" not in name and ":" not in name)


def _with_inner_rewards(name: str, kwargs: dict[str, Any], arguments: Iterable[str], depth: int) -> dict[str, Any]:
    """`kwargs` with the rewards that are written in them made into functions. These raise: what becomes of a failure
    is said of the whole."""
    made = dict(kwargs)
    for argument in arguments:
        if argument not in kwargs:
            continue
        inner = kwargs[argument]
        specs = inner if isinstance(inner, list | tuple) else [inner]
        try:
            parsed = [_parse(spec) for spec in specs]
            for reward in parsed:
                if reward.weight != 1.0:
                    raise UserError(f"'{reward.name}' has a weight; write weights: [...] beside rewards: [...] instead")
                if (reward.on_failure, reward.timeout) != ("none", DEFAULT_TIMEOUT):
                    raise UserError(f"'{reward.name}' has on_failure or timeout; write it beside the outer name")
            functions = [_build(reward.name, reward.kwargs, depth + 1) for reward in parsed]
        except _NestedTooDeeplyError:
            raise
        except UserError as error:
            raise UserError(f"Reward '{name}', {argument}: {error}") from error
        raising = [reward._replace(on_failure="raise") for reward in parsed]
        checked = _checked(functions, raising, [1.0] * len(raising), None)
        made[argument] = checked if isinstance(inner, list | tuple) else checked[0]
    return made


def _make(name: str, factory: Callable, kwargs: dict[str, Any]) -> Callable:
    _refuse_unknown_kwargs(name, factory, kwargs, _named(factory))
    missing = [key for key, p in _named(factory).items() if p.default is p.empty and key not in kwargs]
    if missing:
        raise UserError(f"Reward '{name}' needs {', '.join(missing)}: write them under kwargs")
    try:
        return factory(**kwargs)
    except UserError as error:
        says_so = str(error).startswith(name)
        raise UserError(str(error) if says_so else f"Reward '{name}': {error}") from error
    except Exception as error:
        raise UserError(f"Reward '{name}' does not take these kwargs: {type(error).__name__}: {error}") from error


def _refuse_unknown_kwargs(name: str, func: Callable, kwargs: dict[str, Any], known: Collection[str]) -> None:
    """`**kwargs`, which TRL asks of every reward function, would swallow a misspelt name."""
    for key in kwargs:
        if key not in known:
            takes = ", ".join(sorted(known)) or "none"
            near = _nearest(key, known)
            raise UserError(f"Reward '{name}' has no argument '{key}'{near}: its arguments are {takes}")


def _named(func: Callable) -> dict[str, inspect.Parameter]:
    """The arguments that can be given by name."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {key: p for key, p in inspect.signature(func).parameters.items() if p.kind in named}


def _makes_a_reward(func: Callable) -> bool:
    """TRL passes prompts, completions and more by name: a function that can take none of them is a factory."""
    return not _takes_anything(func) and _GIVEN_BY_TRL.isdisjoint(_named(func))


def _takes_anything(func: Callable) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(func).parameters.values())


def _checked(
    functions: list[Callable],
    parsed: list[_Reward],
    weights: list[float],
    failures_dir: str | os.PathLike[str] | None,
) -> list[Callable]:
    """Names are made distinct: TRL logs by name, and would average two functions of one name. What is too large is so
    with the weight."""
    taken: set[str] = set()
    checked: list[Callable] = []
    for func, reward, weight in zip(functions, parsed, weights, strict=True):
        largest = LARGEST / max(abs(weight), 1.0)
        if isinstance(reward.on_failure, float) and abs(reward.on_failure) > largest:
            raise UserError(
                f"Reward '{reward.name}' gives {reward.on_failure:g} on_failure, times the weight {weight:g}: "
                "the largest is 1e15"
            )
        base = name = callable_name(func)
        count = 1
        while name in taken:
            count += 1
            name = f"{base}_{count}"
        taken.add(name)
        checked.append(CheckedReward(func, name, reward.on_failure, reward.timeout, failures_dir, largest))
    return checked


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean '{near[0]}'?)" if near else ""
