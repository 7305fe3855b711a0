"""From what a YAML file says about rewards to functions that a trainer takes."""

import difflib
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from numbers import Real
from typing import Any

from trl_ext.errors import UserError
from trl_ext.rewards.checking import CheckedReward, callable_name
from trl_ext.rewards.locating import locate
from trl_ext.rewards.registry import REWARDS

_SPEC_KEYS = ("name", "weight", "kwargs")
_EXAMPLE = "reward_funcs: [{name: sentiment, weight: 1.0}]"
_GIVEN_BY_TRL = {"prompts", "completions", "completion_ids"}


def load_reward_funcs(specs: str | Mapping | Iterable[str | Mapping]) -> tuple[list[Callable], list[float]]:
    """Reward functions and their weights, in the order of `specs`.

    Args:
        specs: one or several of
            * a name of the registry: `sentiment`
            * a dotted path: `package.module.function` or `package.module:function`
            * a file: `rewards.py:my_reward`
            * `{name: <one of these>, weight: 0.5, kwargs: {...}}`
            What is named may be a reward function (kwargs are bound to it), a class, or a function that makes a reward
            function (both are called with the kwargs), or an `nn.Module`.
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
    functions = [_build(name, kwargs) for name, _, kwargs in parsed]
    return _checked(functions), [weight for _, weight, _ in parsed]


def _parse(spec: Any) -> tuple[str, float, dict[str, Any]]:
    if isinstance(spec, str):
        spec = {"name": spec}
    if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
        raise UserError(f"A reward needs a name, {spec!r} has none: write {_EXAMPLE}")
    name, weight, kwargs = spec["name"], spec.get("weight", 1.0), spec.get("kwargs") or {}
    for key in spec:
        if key not in _SPEC_KEYS:
            near = _nearest(str(key), _SPEC_KEYS)
            raise UserError(f"Reward '{name}' has the unknown key '{key}'{near}: keys are {', '.join(_SPEC_KEYS)}")
    if not isinstance(weight, Real) or isinstance(weight, bool) or not math.isfinite(weight):
        raise UserError(f"Reward '{name}' has the weight {weight!r}: write a number, e.g. weight: 0.5")
    if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
        raise UserError(f"Reward '{name}' has the kwargs {kwargs!r}: write a mapping, e.g. kwargs: {{n: 3}}")
    return name, float(weight), dict(kwargs)


def _build(name: str, kwargs: dict[str, Any]) -> Callable:
    if name in REWARDS:
        return _make(name, REWARDS[name].factory, kwargs)
    if not any(mark in name for mark in ".:"):
        near = _nearest(name, REWARDS)
        raise UserError(
            f"There is no reward '{name}'{near}: name one of {', '.join(REWARDS)}, "
            "or your own as package.module:function or rewards.py:function"
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


def _make(name: str, factory: Callable, kwargs: dict[str, Any]) -> Callable:
    _refuse_unknown_kwargs(name, factory, kwargs, _named(factory))
    missing = [key for key, p in _named(factory).items() if p.default is p.empty and key not in kwargs]
    if missing:
        raise UserError(f"Reward '{name}' needs {', '.join(missing)}: write them under kwargs")
    try:
        return factory(**kwargs)
    except UserError:
        raise
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


def _checked(functions: list[Callable]) -> list[Callable]:
    """Names are made distinct: TRL logs by name, and would average two functions of one name."""
    taken: set[str] = set()
    checked: list[Callable] = []
    for func in functions:
        base = name = callable_name(func)
        count = 1
        while name in taken:
            count += 1
            name = f"{base}_{count}"
        taken.add(name)
        checked.append(CheckedReward(func, name))
    return checked


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean '{near[0]}'?)" if near else ""
