"""Configurations as files: written as they were given, read back equal.

    to_yaml(args, "run.yaml"); args = from_yaml(ReinforceLOOConfig, "run.yaml", learning_rate=1e-5)

Any dataclass of options will do, TRL's and Transformers' too. A file holds what differs from the defaults, and who
wrote it; a recipe takes it as it is: `--config run.yaml`.
"""

import dataclasses
import json
import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..errors import UserError
from ..strict_yaml import dump_yaml, read_yaml
from .header import HEADER, check_header, header_of
from .mistakes import one_line
from .options import check_options, options_given
from .plain import plain, same
from .templates import read_template

Config = TypeVar("Config")
# Options whose values are secrets, and are left out
SECRETS = ("hub_token", "push_to_hub_token")


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


def _made(kind: type[Config], content: dict[str, Any], overrides: Mapping[str, Any], where: str) -> Config:
    options = {name: value for name, value in content.items() if name not in HEADER}
    check_header(content, [kind], where)
    unknown = set(overrides) - {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if unknown:
        check_options(kind, dict.fromkeys(sorted(unknown)), kind.__name__)
    fitted = {**check_options(kind, options, where), **overrides}
    try:
        return kind(**fitted)
    except UserError:
        raise
    except (ValueError, ImportError) as error:  # what they are together, or this machine, does not allow
        raise UserError(f"{where}: {one_line(error)}") from error


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
    return {**header_of(type(config)), **{name: plain(fitted[name]) for name in options}}


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
    except UnicodeEncodeError as error:
        raise UserError(f"cannot write {path}: an option holds half of a surrogate pair, which is no text") from error
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
