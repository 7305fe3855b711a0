"""Configurations as files: written as they were given, read back equal.

    to_yaml(args, "run.yaml"); args = from_yaml(ReinforceLOOConfig, "run.yaml", learning_rate=1e-5)

Any dataclass of options will do, TRL's and Transformers' too. A file holds what differs from the defaults, and who
wrote it; a recipe takes it as it is: `--config run.yaml`.
"""

import dataclasses
import difflib
import json
import math
import os
import typing
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..errors import UserError
from ..strict_yaml import dump_yaml, read_yaml
from .given import given_options, recording
from .header import HEADER, check_header, header_of
from .mistakes import one_line
from .plain import plain, plain_defaults, plain_options, same
from .templates import read_template
from .values import describe, fit

Config = TypeVar("Config")
# Options whose values are secrets, and are left out
SECRETS = ("hub_token", "push_to_hub_token")
# What GRPO and RLOO compute of each other: what is not needed to make an equal object is not written
_OF_THE_MACHINE = ("output_dir", "use_cpu", "bf16", "fp16")  # without them an object of defaults may not be possible
_COMPUTED = (("generation_batch_size", "steps_per_generation"), ("generation_batch_size",), ("steps_per_generation",))


class SavedConfig:
    """For dataclasses of options: methods that write and read them, and a record of what was given."""

    def __init_subclass__(cls, **arguments: Any):
        super().__init_subclass__(**arguments)
        if "__post_init__" in cls.__dict__:
            cls.__post_init__ = recording(cls.__post_init__)  # type: ignore[attr-defined]

    def to_yaml(self, path: str | os.PathLike[str] | None = None, overwrite: bool = False) -> str:
        """See `trl_ext.configuration.saving.to_yaml`."""
        return to_yaml(self, path, overwrite)

    def to_json(self, path: str | os.PathLike[str] | None = None, overwrite: bool = False) -> str:
        """See `trl_ext.configuration.saving.to_json`."""
        return to_json(self, path, overwrite)

    def print_summary(
        self,
        model: Any = None,
        dataset_size: int | None = None,
        prompt_length: int | None = None,
        peft_config: Any = None,
        dtype: Any = None,
    ) -> None:
        """See `trl_ext.configuration.summary.print_summary`."""
        from .summary import print_summary

        print_summary(self, model, dataset_size, prompt_length, peft_config, dtype)

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str], **overrides: Any):
        """See `trl_ext.configuration.saving.from_yaml`."""
        return from_yaml(cls, path, **overrides)

    @classmethod
    def from_json(cls, path: str | os.PathLike[str], **overrides: Any):
        """See `trl_ext.configuration.saving.from_json`."""
        return from_json(cls, path, **overrides)

    @classmethod
    def from_template(cls, name: str, **overrides: Any):
        """See `trl_ext.configuration.saving.from_template`."""
        return from_template(cls, name, **overrides)


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
    return {name: value for name, value in given.items() if name not in defaults or not same(value, defaults[name])}


def to_yaml(config: Any, path: str | os.PathLike[str] | None = None, overwrite: bool = False) -> str:
    """The options of `config` as YAML; written to `path` where one is given, in one move.

    A file holds what differs from the defaults, and the class and versions that wrote it. Secrets (`hub_token`) are
    left out with a warning. A `torch.dtype` is written by its name, and a tuple as a list.

    Raises:
        UserError: `path` exists with other content and `overwrite` is not True; or a value that no file can hold.
    """
    return _write(dump_yaml(_content(config)), path, overwrite)


def to_json(config: Any, path: str | os.PathLike[str] | None = None, overwrite: bool = False) -> str:
    """As `to_yaml`, in strict JSON: an infinite number is written as a word, which is read as the number.

    Raises:
        UserError: as `to_yaml`; also a mapping with keys other than words, or an infinite number inside a value.
    """
    content = _content(config)
    for name, value in content.items():
        content[name] = _word_for_infinity(value)
        _refuse_what_json_lacks(name, content[name])
    return _write(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", path, overwrite)


def from_yaml(kind: type[Config], path: str | os.PathLike[str], **overrides: Any) -> Config:
    """A `kind` from a file of `to_yaml`, or any YAML of its options; `overrides` win over the file.

    Raises:
        UserError: the file was written by another class, names an unknown option or holds a value of a wrong type.
    """
    content = read_yaml(path)
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected lines of the form `option: value`, got a {type(content).__name__}")
    return _made(kind, content, overrides, os.fspath(path))


def from_json(kind: type[Config], path: str | os.PathLike[str], **overrides: Any) -> Config:
    """As `from_yaml`, from a file of `to_json`.

    Raises:
        UserError: as `from_yaml`; also what is no JSON, or names an option twice.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"), object_pairs_hook=_each_once)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {one_line(error, 120)}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a JSON object of options, got a {type(content).__name__}")
    return _made(kind, content, overrides, os.fspath(path))


def from_template(kind: type[Config], name: str, **overrides: Any) -> Config:
    """A `kind` from its template `debug`, `small` or `full`; what the template says of model, data and rewards is left
    to the recipe (`--template`), and `overrides` win.

    Raises:
        UserError: no such template.
    """
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    content = read_template(kind, name)
    ours = {key: value for key, value in content.items() if key in names}
    return _made(kind, ours, overrides, f"template {name}")


def check_options(kind: type, options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`options` fitted to the fields of `kind`.

    Raises:
        UserError: an unknown name, with the nearest one, or a value of a wrong type.
    """
    hints, fitted = typing.get_type_hints(kind), {}
    names = [field.name for field in dataclasses.fields(kind) if field.init]
    for name, value in options.items():
        if name not in names:
            near = difflib.get_close_matches(str(name), names, n=1)
            meant = f"did you mean {near[0]}?" if near else f"it is none of {kind.__name__}"
            raise UserError(f"{where}: unknown option {str(name)!r}; {meant}")
        try:
            fitted[name] = fit(value, hints[name])
        except (ValueError, OverflowError):
            raise UserError(f"{where}: {name} expects {describe(hints[name])}, got {value!r}") from None
    return fitted


def _made(kind: type[Config], content: dict[str, Any], overrides: Mapping[str, Any], where: str) -> Config:
    options = {name: value for name, value in content.items() if name not in HEADER}
    check_header(content, [kind], where)
    unknown = set(overrides) - {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if unknown:
        check_options(kind, dict.fromkeys(sorted(unknown)), kind.__name__)
    return kind(**{**check_options(kind, options, where), **overrides})


def _content(config: Any) -> dict[str, Any]:
    """What goes into the file: who wrote it, and the options; read back once, so that nothing is lost unseen."""
    options = options_given(config)
    for name in SECRETS:
        if options.pop(name, None) is not None:
            warnings.warn(f"{name} is a secret and is not written: give it again when reading.", stacklevel=4)
    fitted = check_options(type(config), options, f"this {type(config).__name__}")
    for name, value in options.items():
        if not same(plain(fitted[name]), value):
            raise UserError(f"{name}={value!r} would be read as {fitted[name]!r}: set it to that, or to another type")
    return {**header_of(type(config)), **options}


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
        try:
            again = plain_options(_quiet(type(config), check_options(type(config), shorter, "")))
        except (ValueError, TypeError):
            continue
        if all(same(value, again.get(name)) for name, value in now.items()):
            return shorter
    raise UserError(
        f"this {type(config).__name__} cannot be made again from its options, so it cannot be written: write it as it "
        "is made, before a trainer or a script changes it"
    )


def _quiet(kind: type, options: Mapping[str, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(**options)


def _write(text: str, path: str | os.PathLike[str] | None, overwrite: bool) -> str:
    if path is None:
        return text
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if path.exists() and not overwrite:
            if path.read_bytes() == text.encode():
                return text
            raise UserError(f"{path} exists and says something else: give another path, or overwrite=True")
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return text


def _word_for_infinity(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _refuse_what_json_lacks(name: str, value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{name} holds {value}, which JSON has no number for: use to_yaml")
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise UserError(f"{name} has keys that are no words, which JSON has not: use to_yaml")
        value = list(value.values())
    for each in value if isinstance(value, list) else ():
        _refuse_what_json_lacks(name, each)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is given twice")
    return found
