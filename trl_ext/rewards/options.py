"""Options of reward functions, checked where a reward is made: a mistake is one line with what to write instead."""

import math
from collections.abc import Collection, Mapping
from numbers import Real
from typing import Any

from trl_ext.errors import UserError

_SHOWN = 60  # characters of a value that a message repeats
LONGEST = 1e7  # seconds of a time limit, 115 days: clocks of threads and signals end somewhere beyond
LARGEST = 1e15  # magnitude of a reward: squares of more, added up for a spread, are infinite in float32


def shown(value: Any) -> str:
    """`repr` in one line of at most 60 characters."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of somebody's own class, or a whole number of thousands of digits
        return f"a {type(value).__name__} that cannot be printed"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def is_number(value: Any) -> bool:
    """Whether it is a number of at most 1e15; a truth value is none."""
    return isinstance(value, Real) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST  # type: ignore[operator]


def is_seconds(value: Any) -> bool:
    """Whether it is a time limit, above 0 and at most 1e7."""
    return is_number(value) and 0 < value <= LONGEST


def bound_of(value: Any) -> str:
    """For a message about what is no number here but looks like one."""
    is_real = isinstance(value, Real) and not isinstance(value, bool)
    return "; the largest is 1e15" if is_real and abs(value) > LARGEST and value not in (math.inf, -math.inf) else ""


def check_number(reward: str, option: str, value: Any) -> float:
    if not is_number(value):
        raise UserError(f"{reward} needs a number for {option}, e.g. 1.0, not {shown(value)}{bound_of(value)}")
    return float(value)


def check_seconds(reward: str, option: str, value: Any) -> float:
    """A time limit above 0."""
    if not is_seconds(value):
        raise UserError(f"{reward} needs {option} in seconds above 0, e.g. 1.0, not {shown(value)}")
    return float(value)


def check_count(reward: str, option: str, value: Any, minimum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise UserError(f"{reward} needs a whole number of at least {minimum} for {option}, not {shown(value)}")
    return value


def check_flag(reward: str, option: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"{reward} needs true or false for {option}, not {shown(value)}")
    return value


def check_choice(reward: str, option: str, value: Any, choices: Collection[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise UserError(f"{reward} has for {option} the choices {', '.join(choices)}, not {shown(value)}")
    return value


def check_texts(reward: str, option: str, value: Any, example: str) -> list[str]:
    """A list of texts of which none is blank and none is given twice; `example` shows one as YAML writes it."""
    if not isinstance(value, list | tuple) or not value:
        raise UserError(f"{reward} needs a list for {option}, e.g. {example}, not {shown(value)}")
    for index, text in enumerate(value):
        if not isinstance(text, str) or not text.strip():
            raise UserError(f"{reward} needs texts in {option}, not {shown(text)}: quote what YAML reads otherwise")
        if text in value[:index]:
            raise UserError(f"{reward} has {shown(text)} twice in {option}: leave one out")
    return list(value)


def check_mapping(reward: str, option: str, value: Any, example: str) -> dict[str, Any]:
    """A mapping whose keys are texts, none of them blank."""
    if not isinstance(value, Mapping) or not value:
        raise UserError(f"{reward} needs a mapping for {option}, e.g. {example}, not {shown(value)}")
    for key in value:
        if not isinstance(key, str) or not key.strip():
            raise UserError(f"{reward} has in {option} the key {shown(key)}, no text: quote what YAML reads otherwise")
    return dict(value)
