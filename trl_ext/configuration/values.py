"""A value as YAML gives it, fitted to the type a dataclass field declares."""

import types
import typing
from enum import Enum
from typing import Any

_BOOLEANS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


def is_union(hint: Any) -> bool:
    """Whether a type hint is `X | Y` or `Union[X, Y]`."""
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def fit(value: Any, hint: Any) -> Any:
    """`value` as a field of type `hint` takes it.

    YAML reads `1e-5` as a word and `5` as a number, whatever the field: a word becomes the number it spells, a number
    becomes a word where a word belongs, and a single value becomes a list of one. Types not known here pass.

    Raises:
        ValueError: it does not fit.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if is_union(hint):
        return _fit_any(value, arguments)
    if origin is typing.Literal:
        return _require(value, value in arguments)
    if list in (hint, origin):
        return [
            fit(each, arguments[0] if arguments else Any) for each in (value if isinstance(value, list) else [value])
        ]
    if dict in (hint, origin):
        return _require(value, isinstance(value, dict))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _require(value, value in [member.value for member in hint])
    if hint is type(None):
        return _require(value, value is None)
    return _fit_scalar(value, hint) if hint in (bool, int, float, str) else value


def describe(hint: Any) -> str:
    """A type hint in words, for an error message."""
    arguments = typing.get_args(hint)
    if is_union(hint):
        return " or ".join(describe(each) for each in arguments if each is not type(None))
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(str(each) for each in arguments)
    if typing.get_origin(hint) is list:
        return f"a list (each entry {describe(arguments[0])})"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "one of " + ", ".join(str(member.value) for member in hint)
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a word", dict: "a mapping"}
    return names.get(typing.get_origin(hint) or hint, str(hint))


def _fit_any(value: Any, hints: tuple[Any, ...]) -> Any:
    if type(value) in hints:
        return value
    for hint in hints:
        try:
            return fit(value, hint)
        except ValueError:
            continue
    raise ValueError(value)


def _fit_scalar(value: Any, kind: type) -> Any:
    if type(value) is kind:
        return value
    _require(value, isinstance(value, str | int | float))
    if kind is bool:
        _require(value, str(value).lower() in _BOOLEANS)
        return _BOOLEANS[str(value).lower()]
    _require(value, not isinstance(value, bool))
    fitted = kind(value)
    return _require(fitted, isinstance(value, str) or kind is str or fitted == value)


def _require(value: Any, fits: bool) -> Any:
    if not fits:
        raise ValueError(value)
    return value
