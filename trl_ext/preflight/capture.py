"""The trainer that a script builds, taken at the moment in which it would begin to train."""

import functools
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import Trainer

from trl_ext.configuration.mistakes import TRACEBACK, one_line
from trl_ext.errors import UserError


class _Captured(BaseException):
    """No `Exception`, so that a script that catches those lets it pass."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer


def trainer_of_script(path: str | Path, words: Sequence[str] = ()) -> Any:
    """Runs a script until it calls `trainer.train()` or `trainer.evaluate()`, and returns that trainer.

    What the script does before that is done: models are loaded, folders made. Of TRL 1.12 our PPO is taken, since the
    stock one has none of what preflight looks at.

    Args:
        path: of the script, one of the recipes or any other that builds a trainer of TRL.
        words: its command line.
    Raises:
        UserError: no such script, what the script itself raises as one, or it ends without training.
    """
    if not Path(path).is_file():
        raise UserError(f"no script {str(path)!r}")
    traced = os.environ.get(TRACEBACK) == "1"
    with _at_train(), _as_command(str(path), words), _environment({TRACEBACK: "1", "TRL_EXT_PPO": "trl_ext"}):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except _Captured as captured:
            return captured.trainer
        except SystemExit as end:
            raise UserError(f"{path} ended with status {end.code} before it trained") from end
        except UserError:
            raise
        except Exception as error:
            if traced:
                traceback.print_exc()
            what = f"{path} failed before it trained: {type(error).__name__}: {one_line(error)}"
            raise UserError(what if traced else f"{what} ({TRACEBACK}=1 shows where)") from error
    raise UserError(f"{path} ended without a call of trainer.train()")


@contextmanager
def _at_train() -> Iterator[None]:
    kept: dict[str, Callable] = {name: getattr(Trainer, name) for name in ("train", "evaluate")}

    def caught(original: Callable) -> Callable:
        @functools.wraps(original)
        def method(self, *_args, **_options):
            raise _Captured(self)

        return method

    for name, original in kept.items():
        setattr(Trainer, name, caught(original))
    try:
        yield
    finally:
        for name, original in kept.items():
            setattr(Trainer, name, original)


@contextmanager
def _as_command(path: str, words: Sequence[str]) -> Iterator[None]:
    """As `python path words` would: imports beside the script work."""
    argv, search = sys.argv, list(sys.path)
    sys.argv = [path, *words]
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, search


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
