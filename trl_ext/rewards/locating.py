"""Finds a user's own reward function by dotted path or by file."""

import difflib
import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from trl_ext.errors import UserError


def locate(path: str) -> Any:
    """What `package.module:name`, `package.module.name` or `directory/file.py:name` names.

    A file is run once and kept: naming two functions of it gives two functions of one module. Its functions pickle
    within this process; where another process must load them too, name them by a dotted path.

    Raises:
        UserError: no such file, module or name in it, or an error while it runs.
    """
    module_path, colon, name = path.rpartition(":")
    if not colon:
        if path.endswith(".py"):
            raise UserError(f"'{path}' names a file, but no function in it: write {path}:my_reward")
        module_path, _, name = path.rpartition(".")
    if not module_path or not name:
        raise UserError(f"'{path}' is no path of a reward: write package.module:function or rewards.py:function")
    if module_path.split(".")[0] in sys.stdlib_module_names:
        # what is no reward function is called with its kwargs to make one: os.system would run
        raise UserError(f"'{path}' is Python's own and no reward: name a function of a package of yours, or of a file")
    module = _from_file(module_path) if module_path.endswith(".py") else _from_package(module_path, path)
    if not hasattr(module, name):
        public = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        near = difflib.get_close_matches(name, public, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(public[:10]) or 'no function'}"
        raise UserError(f"'{module_path}' has no '{name}': {hint}")
    return getattr(module, name)


def _from_package(module_path: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(module_path)
    except ModuleNotFoundError as error:
        if f"{module_path}.".startswith(f"{error.name}."):
            raise UserError(
                f"Reward '{path}': there is no module '{error.name}' on the Python path; "
                "name a file as directory/file.py:function"
            ) from error
        raise _failed(module_path, error) from error
    except Exception as error:
        raise _failed(module_path, error) from error


def _from_file(file: str) -> ModuleType:
    location = Path(file).expanduser().resolve()
    if not location.is_file():
        raise UserError(f"There is no reward file '{file}' (looked in {Path.cwd()}): correct the path")
    # The directory is part of the name: two files called rewards.py are two modules.
    name = f"trl_ext_reward_file_{location.stem}_{hashlib.sha256(str(location).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, location)
    assert spec is not None and spec.loader is not None  # it ends in .py
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _failed(file, error) from error
    return module


def _failed(module: str, error: Exception) -> UserError:
    cause = " ".join(f"{type(error).__name__}: {error}".split())
    return UserError(f"'{module}' cannot be imported: {cause}")
