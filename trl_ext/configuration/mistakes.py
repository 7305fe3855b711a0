"""What a user got wrong, in one line and with exit status 2; a fault of the code keeps its traceback."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import cached_file

from .. import tiny
from ..errors import UserError, say

TRACEBACK = "TRL_EXT_TRACEBACK"
_FIRST = 10.0  # seconds: what all processes find is said by the first, after whose end the launcher ends the others


@contextmanager
def cli_errors() -> Iterator[None]:
    """Around a recipe's `main` (`@cli_errors()` or `with`): a `UserError` prints `error: <one line>`, exit status 2.

    With `TRL_EXT_TRACEBACK=1` in the environment the full traceback is shown instead. Other exceptions pass.
    """
    try:
        yield
    except UserError as error:
        if os.environ.get(TRACEBACK) == "1":
            raise
        if os.environ.get("LOCAL_RANK", "0") != "0":
            time.sleep(_FIRST)
        say(f"error: {one_line(error, limit=1000)}")
        raise SystemExit(2) from None


@contextmanager
def building() -> Iterator[None]:
    """Around the part of `main` before training: what Transformers, TRL or a missing file refuse is a `UserError`.

    Only `OSError`, `ValueError` and `ImportError`: any other exception is a fault of the code and keeps its traceback.
    """
    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError, ImportError) as error:
        raise UserError(f"{one_line(error)} ({TRACEBACK}=1 shows where)") from error


def one_line(error: BaseException, limit: int = 400) -> str:
    """An exception's message on one line of at most `limit` characters; its class where it has no message."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."


def model_path(name_or_path: str | None, revision: str | None = None) -> str:
    """The folder or hub id to load: `trl_ext/tiny` becomes the embedded policy's folder, any other name is checked.

    Raises:
        UserError: no name, or neither a local folder nor a reachable hub model has it.
    """
    if not name_or_path:
        raise UserError(f"no model given; set model_name_or_path to a folder, a hub id or {tiny.NAME}")
    name = tiny.resolve(name_or_path)
    cause: OSError | None = None
    for file in ("config.json", "adapter_config.json"):  # a whole model, or a PEFT adapter
        try:
            if cached_file(name, file, revision=revision or "main"):
                return name
        except OSError as error:
            cause = cause or error
    if os.path.isdir(name):
        raise UserError(f"folder {name!r} holds no model: no config.json in it") from cause
    where = f"{name!r}" if revision in (None, "main") else f"{name!r} at revision {revision!r}"
    raise UserError(
        f"no model {where}: neither a local folder nor a reachable hub model of that name exists; "
        f"set model_name_or_path to a folder, a hub id or {tiny.NAME}"
    ) from cause
