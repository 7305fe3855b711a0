"""Thresholds from a mapping or a YAML file."""

import os
from collections.abc import Mapping
from typing import Any

from trl_ext.errors import UserError
from trl_ext.monitor.thresholds import resolve_thresholds
from trl_ext.strict_yaml import read_yaml


def read_thresholds(thresholds: Mapping[str, Any] | str | os.PathLike[str] | None) -> dict[str, Any]:
    """A plain dictionary; the engine checks what is in it.

    Raises:
        UserError: the file cannot be read, or holds no mapping.
    """
    if thresholds is None:
        return {}
    if isinstance(thresholds, str | os.PathLike):
        path, thresholds = thresholds, read_yaml(thresholds)
        if isinstance(thresholds, Mapping):
            try:
                resolve_thresholds(thresholds)
            except UserError as error:
                raise UserError(f"{os.fspath(path)}: {error}") from None
    if not isinstance(thresholds, Mapping):
        raise UserError("thresholds must be a mapping such as `kl_high: {logs: 5}`, or the path of a YAML file of one")
    return dict(thresholds)
