"""What a pipeline is, read from its YAML file and checked before anything runs."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from trl_ext.errors import UserError, did_you_mean
from trl_ext.strict_yaml import read_yaml, refuse_unknown_keys

_EXAMPLE = "stages: [{name: sft, options: {learning_rate: 1.0e-4}}]"
_PLACE = re.compile(r"\{([A-Za-z_][\w-]*)\}")
_NAME = re.compile(r"[A-Za-z_][\w-]*")
_FILES = ("recipe", "config", "accelerate_config")


@dataclass(frozen=True)
class Stage:
    """One recipe.

    Attributes:
        name: also of its folder, `<output_dir>/<name>`.
        recipe: path of the script.
        options: those of its YAML file and of the pipeline, which win; `{other}` is the folder of that stage already.
        needs: earlier stages that the options name.
        accelerate_config: what `accelerate launch` is given; None: of the pipeline.
    """

    name: str
    recipe: str
    options: dict[str, Any]
    needs: tuple[str, ...] = ()
    accelerate_config: str | None = None


@dataclass(frozen=True)
class Pipeline:
    """Attributes:
    output_dir: folder of the stages' folders.
    accelerate_config: of all stages that name none; None: each recipe runs in one process of this python.
    """

    output_dir: str
    stages: list[Stage]
    accelerate_config: str | None = None


@dataclass(frozen=True)
class _Written:
    """A stage as it is written in the file."""

    name: str
    recipe: str | None = None
    config: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    accelerate_config: str | None = None


def read_pipeline(path: str | os.PathLike[str], output_dir: str | None = None) -> Pipeline:
    """The pipeline in a YAML file. Paths in it are relative to the file, but `output_dir` to the present folder.

    Args:
        output_dir: in place of the file's.
    Raises:
        UserError: one line that names the key and what to write.
    """
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected output_dir and {_EXAMPLE}")
    refuse_unknown_keys(content, ("output_dir", "stages", "accelerate_config"), str(path))
    output_dir = output_dir or content.get("output_dir")
    if not isinstance(output_dir, str) or not output_dir:
        raise UserError(f"{path}: output_dir is missing: write output_dir: runs/pipeline")
    written = content.get("stages")
    if not isinstance(written, list) or not written:
        raise UserError(f"{path}: stages is missing: write {_EXAMPLE}")
    base = Path(path).parent
    stages: list[Stage] = []
    names = [_stage(each, f"{path}: stage {number}") for number, each in enumerate(written, 1)]
    for stage in names:
        if [each.name for each in names].count(stage.name) > 1:
            raise UserError(f"{path}: two stages are called {stage.name!r}: give each a name of its own")
        stages.append(_found(stage, base, output_dir, [each.name for each in stages], f"{path}: stage {stage.name}"))
    config = content.get("accelerate_config")
    return Pipeline(output_dir, stages, config and _file(base, config, f"{path}: accelerate_config"))


def _stage(written: Any, where: str) -> _Written:
    if isinstance(written, str):
        written = {"name": written}
    if not isinstance(written, dict):
        raise UserError(f"{where}: expected a name or a mapping, got {written!r}")
    refuse_unknown_keys(written, [each.name for each in fields(_Written)], where)
    name = written.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UserError(f"{where}: a name of letters, digits, _ and - is missing, got {name!r}")
    for key in _FILES:
        if not isinstance(written.get(key), str | None):
            raise UserError(f"{where}: {key} expects a path, got {written[key]!r}")
    if not isinstance(written.get("options") or {}, dict):
        raise UserError(f"{where}: options expects a mapping, got {written['options']!r}")
    return _Written(**{**written, "options": written.get("options") or {}})


def _found(stage: _Written, base: Path, output_dir: str, earlier: list[str], where: str) -> Stage:
    """With its files, and its options as the recipe will read them."""
    recipe = stage.recipe or stage.name
    script = _file(base, recipe if recipe.endswith(".py") else f"{recipe}.py", f"{where}: recipe")
    usual = Path(script).with_suffix(".yaml")
    config = _file(base, stage.config, f"{where}: config") if stage.config else str(usual) if usual.is_file() else None
    options = (read_yaml(config) or {}) if config else {}
    if not isinstance(options, dict):
        raise UserError(f"{config}: expected lines of the form `option: value`, got a {type(options).__name__}")
    if "output_dir" in stage.options:
        raise UserError(f"{where}: output_dir is {output_dir}/{stage.name}: take it out of options")
    needs: list[str] = []
    options |= stage.options
    for name, value in options.items():
        if not isinstance(name, str):
            raise UserError(f"{where}: options: {name} is a {type(name).__name__}: put it in quotes")
        _plain(value, earlier, f"{where}: options: {name}")
    named = _put_in(options, output_dir, earlier, needs, where)
    engine = stage.accelerate_config and _file(base, stage.accelerate_config, f"{where}: accelerate_config")
    options = {**named, "output_dir": str(Path(output_dir, stage.name))}
    return Stage(stage.name, script, options, tuple(dict.fromkeys(needs)), engine)


def _plain(value: Any, stages: list[str], where: str) -> None:
    """YAML reads an unquoted date as one, and `{sft}` without quotes as a mapping."""
    if isinstance(value, dict):
        unquoted = [key for key, each in value.items() if each is None and key in stages]
        if len(value) == len(unquoted) == 1:
            raise UserError(f"{where} is a mapping without values: for the folder of a stage write '{{{unquoted[0]}}}'")
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _plain(each, stages, where)
    for key in value if isinstance(value, dict) else ():
        if not isinstance(key, str | int | float | None):
            raise UserError(f"{where}: {key} is a {type(key).__name__}: put it in quotes")
    if not isinstance(value, str | int | float | dict | list | None):
        raise UserError(f"{where}: {value} is a {type(value).__name__}: put it in quotes")


def _put_in(value: Any, output_dir: str, earlier: list[str], needs: list[str], where: str) -> Any:
    """`{name}` in every text is the folder of that earlier stage; what it names is added to `needs`."""
    if isinstance(value, Mapping):
        return {key: _put_in(each, output_dir, earlier, needs, where) for key, each in value.items()}
    if isinstance(value, list):
        return [_put_in(each, output_dir, earlier, needs, where) for each in value]
    if not isinstance(value, str):
        return value
    whole = _PLACE.fullmatch(value)
    if whole and whole[1] not in earlier:  # in the middle of a text braces may be meant
        meant = did_you_mean(whole[1], earlier, f"there are: {', '.join(earlier) or 'none'}")
        raise UserError(f"{where}: {value} is no stage before this one; {meant}")
    needs += [name for name in _PLACE.findall(value) if name in earlier]
    return _PLACE.sub(lambda m: str(Path(output_dir, m[1])) if m[1] in earlier else m[0], value)


def _file(base: Path, name: Any, where: str) -> str:
    path = base / str(name)
    if not isinstance(name, str) or not path.is_file():
        raise UserError(f"{where}: there is no file {path}")
    return str(path)
