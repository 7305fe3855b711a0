"""TRL's parser, tamed.

`TrlParser` takes YAML values as they are (a word where a number belongs fails far from its cause, or never), lists
unknown keys without saying which was meant, and leaves the rest to argparse's usage screen of some 200 options.
"""

import argparse
import dataclasses
import os
import sys
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from transformers import TrainingArguments
from trl import TrlParser

from ..errors import UserError, did_you_mean
from ..strict_yaml import StrictLoader
from .engines import check_engine, telling_engines
from .header import HEADER, check_header
from .mistakes import one_line
from .templates import template_of
from .values import describe, fit, is_union

_EPILOG = (
    "--template debug, small or full starts from a template (trl-ext config list); --config FILE.yaml reads options "
    "from a file."
)


def parse(dataclass_types: Sequence[type], args: Sequence[str] | None = None) -> tuple[Any, ...]:
    """One instance of each dataclass from `--template NAME`, `--config FILE.yaml` and the command line; the later wins.

    YAML values may be lists and mappings, also where the command line takes only words (`list[dict | str]`). A mapping
    `env` sets environment variables, as with `TrlParser`. What `to_yaml` wrote says of which class it is.

    Raises:
        UserError: an unknown option (naming the nearest), a wrong type, a file that is no YAML mapping or was written
            by another class, no such template, or processes, engine and quantization that do not go together (see
            `engines.py`).
    """
    words = list(sys.argv[1:] if args is None else args)
    parser = _Parser(dataclass_types, allow_abbrev=False, epilog=_EPILOG)
    path, template = _take(words, "--config", "FILE.yaml"), _take(words, "--template", "debug")
    for file in filter(None, (template and str(_template(template, dataclass_types)), path)):
        parser.set_defaults_with_config(**_checked(_read_yaml(file, dataclass_types), parser, dataclass_types, file))
    namespace, unknown = parser.parse_known_args(words)
    _refuse_unknown(unknown, parser)
    with telling_engines(getattr(namespace, "use_cpu", False)):
        options = parser.parse_args_into_dataclasses(args=words, look_for_args_file=False)
    check_engine(options)
    return options


class _Parser(TrlParser):
    """TRL's parser with two changes: an error is a `UserError`, and a list may hold words or mappings."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message.removeprefix("argument "))

    @staticmethod
    def _parse_dataclass_field(parser: argparse.ArgumentParser, field: dataclasses.Field) -> None:
        hint: Any = field.type
        members = typing.get_args(hint) if is_union(hint) else (hint,)
        if any(typing.get_origin(member) is list and is_union(typing.get_args(member)[0]) for member in members):
            field.type = list[str]  # argparse can make words only; `_checked` takes the mappings of the YAML
        TrlParser._parse_dataclass_field(parser, field)


def _take(words: list[str], option: str, example: str) -> str | None:
    """Removes `--config PATH` or `--config=PATH` from `words` and returns the path; likewise of another option."""
    places = [i for i, word in enumerate(words) if word == option or word.startswith(f"{option}=")]
    if not places:
        return None
    if len(places) > 1:
        raise UserError(f"{option} is given twice; put the options of both files into one")
    word = words.pop(places[0])
    if "=" in word:
        return word.partition("=")[2]
    if places[0] == len(words):
        what = "a file" if option == "--config" else "a name"
        raise UserError(f"{option} needs {what}: {option} {example}")
    return words.pop(places[0])


def _template(name: str, dataclass_types: Sequence[type]) -> Path:
    """Which template belongs to a recipe follows from the class of its training options."""
    training = [kind for kind in dataclass_types if issubclass(kind, TrainingArguments)]
    if not training:
        raise UserError("there are no templates for this script: give its options by --config FILE.yaml")
    return template_of(training[0], name)


def _read_yaml(path: str, dataclass_types: Sequence[type]) -> dict[str, Any]:
    """The options in a YAML file, without its `env`, which goes into the environment, and without who wrote it."""
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), StrictLoader)
    except OSError as error:
        raise UserError(f"cannot read the configuration file {path}: {error.strerror}") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise UserError(f"{path}, line {line}: not YAML: {error.problem}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a text file with YAML: {one_line(error)}") from error
    options = {} if content is None else content
    if not isinstance(options, dict):
        raise UserError(f"{path}: expected lines of the form `option: value`, got a {type(options).__name__}")
    environment = options.pop("env", None) or {}
    if not isinstance(environment, dict):
        raise UserError(f"{path}: env expects a mapping of names to values, got {environment!r}")
    os.environ.update({str(name): str(value) for name, value in environment.items()})
    check_header(options, dataclass_types, path)
    return {name: value for name, value in options.items() if name not in HEADER}


def _checked(options: dict[str, Any], parser: _Parser, dataclass_types: Sequence[type], path: str) -> dict[str, Any]:
    """The options with every value fitted to its field's type; an unknown name is refused."""
    hints = {name: hint for each in dataclass_types for name, hint in typing.get_type_hints(each).items()}
    fitted = {}
    for name, value in options.items():
        if name not in _names(parser):
            raise UserError(f"{path}: unknown option {str(name)!r}; {_nearest(str(name), parser)}")
        if name == "resume_from_checkpoint" and isinstance(value, bool):  # as `trainer.train` takes it
            value = str(value).lower() if value else None
        try:
            fitted[name] = fit(value, hints[name])
        except ValueError:
            quote = "; put a word such as no, yes, on or off in quotes" if isinstance(value, bool) else ""
            raise UserError(f"{path}: {name} expects {describe(hints[name])}, got {value!r}{quote}") from None
    return fitted


def _refuse_unknown(words: list[str], parser: _Parser) -> None:
    if not words:
        return
    if not words[0].startswith("--"):
        raise UserError(
            f"unexpected word {words[0]!r} on the command line; options have the form --name value; some lists, such "
            "as report_to, go into the YAML"
        )
    name = words[0].lstrip("-").partition("=")[0].replace("-", "_")
    raise UserError(f"unknown option --{name}; {_nearest(name, parser, '--')}")


def _nearest(name: str, parser: _Parser, mark: str = "") -> str:
    return did_you_mean(mark + name, [mark + each for each in _names(parser)], "--help lists the options")


def _names(parser: _Parser) -> list[str]:
    return [action.dest for action in parser._actions if action.dest != "help"]
