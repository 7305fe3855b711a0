"""`python -m trl_ext.pipeline.checking FILE.json`: whether recipes take the options of their stages, before any runs.

In a process of its own, since reading options imports TRL, and may set environment variables.
"""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trl_ext.errors import UserError
from trl_ext.pipeline.definition import Pipeline, Stage
from trl_ext.strict_yaml import dump_yaml


def check_stages(pipeline: Pipeline, stages: Sequence[Stage]) -> None:
    """Takes some seconds. A recipe that does not read its options by `trl_ext.configuration.parse` is not looked at.

    Raises:
        UserError: an option that a recipe refuses, or a file that is no configuration of Accelerate, with the stage.
    """
    asked: list[dict[str, Any]] = [
        {
            "name": stage.name,
            "recipe": stage.recipe,
            "options": dump_yaml(stage.options),
            "engine": stage.accelerate_config or pipeline.accelerate_config,
        }
        for stage in stages
        if _may_parse(stage.recipe) or stage.accelerate_config or pipeline.accelerate_config
    ]
    if not asked:
        return
    words = [sys.executable, "-W", "ignore", "-m", "trl_ext.pipeline.checking"]
    done = subprocess.run(words, input=json.dumps(asked), capture_output=True, text=True)
    refused = [line.removeprefix(_MARK) for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if refused:
        raise UserError(refused[0])


def _may_parse(recipe: str) -> bool:
    return "trl_ext" in Path(recipe).read_text(encoding="utf-8", errors="replace")


_MARK = "refused: "


class _Read(Exception):  # noqa: N818 - no error: the options were read
    pass


def _main() -> None:
    import tempfile

    for stage in json.load(sys.stdin):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"{stage['name']}.yaml")
            path.write_text(stage["options"], encoding="utf-8")
            why = _engine(stage["engine"]) or _options(stage["recipe"], path)
        if why is not None:
            print(f"{_MARK}stage {stage['name']}: {why}", flush=True)
            return


def _engine(path: str | None) -> str | None:
    if path is None:
        return None
    from accelerate.commands.config.config_args import load_config_from_file

    try:
        load_config_from_file(path)
    except Exception as error:
        return f"{path} is no configuration of Accelerate: {' '.join(str(error).split())[:200]}"
    return None


def _options(recipe: str, path: Path) -> str | None:
    if not _may_parse(recipe):
        return None
    from trl_ext.configuration.parser import parse

    name = Path(recipe).stem
    spec = importlib.util.spec_from_file_location(name, recipe)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a dataclass looks itself up there
    sys.path.insert(0, str(Path(recipe).parent))
    try:
        spec.loader.exec_module(module)
        if getattr(module, "parse", None) is not parse or not hasattr(module, "main"):
            return None

        def read(*arguments: Any) -> None:
            try:
                parse(*arguments)
            except UserError as error:
                raise _RefusedError(str(error)) from error
            raise _Read

        module.parse = read
        module.main(["--config", str(path)])
    except _Read:
        return None
    except _RefusedError as error:
        return str(error).replace(f"{path}: ", "options: ")
    finally:
        sys.path.pop(0)
    return None


class _RefusedError(Exception):
    pass


if __name__ == "__main__":
    _main()
