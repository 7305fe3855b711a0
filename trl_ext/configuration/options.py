"""The options of a configuration that differ from the defaults, and options fitted to their fields."""

import dataclasses
import typing
import warnings
from collections.abc import Collection, Mapping
from typing import Any

from ..errors import UserError, did_you_mean
from .given import computed_options, given_options, names_set_since
from .plain import plain, plain_defaults, plain_options, same
from .values import describe, fit

_OF_THE_MACHINE = ("output_dir", "use_cpu", "bf16", "fp16")  # without them an object of defaults may not be possible
# What GRPO and RLOO compute of each other: what is not needed to make an equal object is not written
_COMPUTED = (("generation_batch_size", "steps_per_generation"), ("generation_batch_size",), ("steps_per_generation",))


def options_given(config: Any) -> dict[str, Any]:
    """The options that differ from the defaults, by name in plain form: as they were given or set since.

    Objects of our classes know what they were given. Of others it is worked out: what differs from an object made with
    defaults, without what can be computed from the rest.

    Raises:
        UserError: a value that no file can hold.
    """
    given = given_options(config)
    defaults = plain_defaults(type(config))
    if given is None:
        given, defaults = _worked_out(config, defaults), {}
    written = plain_options(config)
    for field in dataclasses.fields(config):
        if field.init and field.name not in written:
            try:
                plain(getattr(config, field.name))
            except ValueError as error:
                raise UserError(
                    f"{field.name} holds {error}: set {field.name} to None before writing, and again after reading"
                ) from None
    options = {name: value for name, value in given.items() if name not in defaults or not same(value, defaults[name])}
    # What is computed of what was set has stayed as it was; what a trainer computed is nothing that is made again
    if names_set_since(config) and not _makes_equal(config, options, computed_options(config)):
        options = _worked_out(config, plain_defaults(type(config)))
    return options


def _makes_equal(config: Any, options: Mapping[str, Any], apart_from: Collection[str] = ()) -> bool:
    """Whether an object made of the options has what `config` has."""
    now = plain_options(config)
    try:
        again = plain_options(_quiet(type(config), check_options(type(config), options, "")))
    except (UserError, ValueError, TypeError, AttributeError, ImportError):
        return False
    return all(same(value, again.get(name)) for name, value in now.items() if name not in apart_from)


def check_options(kind: type, options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`options` fitted to the fields of `kind`.

    Raises:
        UserError: an unknown name, with the nearest one, or a value of a wrong type.
    """
    hints, fitted = typing.get_type_hints(kind), {}
    names = [field.name for field in dataclasses.fields(kind) if field.init]
    for name, value in options.items():
        if name not in names:
            meant = did_you_mean(name, names, f"it is none of {kind.__name__}")
            raise UserError(f"{where}: unknown option {str(name)!r}; {meant}")
        try:
            fitted[name] = fit(value, hints[name])
        except (ValueError, OverflowError):
            raise UserError(f"{where}: {name} expects {describe(hints[name])}, got {value!r}") from None
    return fitted


def _worked_out(config: Any, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The options that make an object equal to `config`, as few as are found."""
    now = plain_options(config)
    needed = {
        name: getattr(config, name)
        for name in now
        if name not in defaults or (name in _OF_THE_MACHINE and not same(now[name], defaults[name]))
    }
    usual = plain_options(_quiet(type(config), needed))
    differ = {name: value for name, value in now.items() if name in needed or not same(value, usual.get(name))}
    for computed in (*_COMPUTED, ()):
        shorter = {name: value for name, value in differ.items() if name not in computed}
        if _makes_equal(config, shorter):
            return shorter
    since = ", ".join(names_set_since(config))
    raise UserError(
        f"this {type(config).__name__} cannot be made again from its options, so it cannot be written: "
        + (f"give {since} when it is made, since other options are computed of it" if since else
           "write it as it is made, before a trainer or a script changes it")
    )  # fmt: skip


def _quiet(kind: type, options: Mapping[str, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(**options)
