"""`python -m trl_ext.pipeline.checking`: whether recipes take the options of the stages on its input, before any runs.

In a process of its own, since reading options imports TRL, and may set environment variables.
"""

import ast
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trl_ext.errors import UserError
from trl_ext.pipeline.definition import Pipeline, Stage
from trl_ext.strict_yaml import dump_yaml

_MARK = "refused: "
_LONGEST = 300  # seconds; what takes longer is left to the run itself


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
            "parses": _may_parse(stage.recipe),
        }
        for stage in stages
    ]
    asked = [each for each in asked if each["parses"] or each["engine"]]
    if not asked:
        return
    words = [sys.executable, "-W", "ignore", "-m", "trl_ext.pipeline.checking"]
    try:
        done = subprocess.run(words, input=json.dumps(asked), capture_output=True, text=True, timeout=_LONGEST)
    except subprocess.TimeoutExpired:
        return
    refused = [line.removeprefix(_MARK) for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if refused:
        raise UserError(refused[0])


def _may_parse(recipe: str) -> bool:
    """Whether it is made as the recipes here are: `main`, under `cli_errors`, calls `parse`; loading it does nothing.
    Other scripts are not run to look at their options."""
    try:
        body = ast.parse(Path(recipe).read_text(encoding="utf-8")).body
    except (SyntaxError, ValueError, OSError):
        return False
    harmless = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.If, ast.Expr)
    guarded = [ast.unparse(each.test) for each in body if isinstance(each, ast.If)]
    texts = [each.value for each in body if isinstance(each, ast.Expr)]
    mains = [each for each in body if isinstance(each, ast.FunctionDef) and each.name == "main"]
    imported = [name.name for each in body if isinstance(each, ast.ImportFrom) for name in each.names]
    return (
        all(isinstance(each, harmless) for each in body)
        and not any(
            isinstance(node, ast.Call)
            for each in body
            if isinstance(each, ast.Assign | ast.AnnAssign)
            for node in ast.walk(each)
        )
        and all(test == "__name__ == '__main__'" for test in guarded)
        and all(isinstance(text, ast.Constant) for text in texts)
        and any("cli_errors()" in map(ast.unparse, main.decorator_list) for main in mains)
        and "parse" in imported
    )


class _Read(BaseException):
    pass


def _main() -> None:
    environment = dict(os.environ)
    for stage in json.load(sys.stdin):
        os.environ.clear()  # `env` of the stage before
        os.environ.update(environment)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"{stage['name']}.yaml")
            path.write_text(stage["options"], encoding="utf-8")
            why = _engine(stage["engine"]) or (_options(stage["recipe"], path) if stage["parses"] else None)
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
    from trl_ext.configuration import parser

    parse = parser.parse
    parser.check_engine = lambda options: None  # no launcher has started this process

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
    except (Exception, SystemExit):  # whatever it is, the run itself will say it
        return None
    finally:
        sys.path.pop(0)
    return None


class _RefusedError(BaseException):
    pass


if __name__ == "__main__":
    _main()
