"""Values of options as YAML and JSON hold them: None, booleans, numbers, words, lists and mappings."""

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Any

import torch
from transformers.trainer_pt_utils import AcceleratorConfig


def plain(value: Any) -> Any:
    """`value` in plain form, or as it is. An enum becomes its value, a `torch.dtype` its name, a tuple a list.

    Raises:
        ValueError: an object that no file can hold.
    """
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, AcceleratorConfig):
        return plain(value.to_dict())
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, Mapping):
        return {_key(key): plain(each) for key, each in value.items()}
    raise ValueError(f"a {type(value).__name__}, which no file can hold")


def plain_options(config: Any) -> dict[str, Any]:
    """Every option of a dataclass in plain form; what has none is left out."""
    found = {}
    for field in dataclasses.fields(config):
        if field.init:
            try:
                found[field.name] = plain(getattr(config, field.name))
            except ValueError:
                continue
    return found


def plain_defaults(kind: type) -> dict[str, Any]:
    """The options of a dataclass that have a default, in plain form."""
    found = {}
    for field in dataclasses.fields(kind):
        if field.default is not dataclasses.MISSING:
            found[field.name] = plain(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = plain(field.default_factory())
    return found


def same(one: Any, other: Any) -> bool:
    """Equality that NaN takes part in, and in which True is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, bool) != isinstance(other, bool):
        return False
    return one == other or (one != one and other != other)


def _key(key: Any) -> Any:
    if key is None or type(key) in (bool, int, float, str):
        return key
    raise ValueError(f"a mapping with a {type(key).__name__} for a key, which no file can hold")
