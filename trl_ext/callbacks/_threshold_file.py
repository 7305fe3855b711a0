"""Thresholds from a mapping or a YAML file."""

import os
from collections.abc import Mapping
from typing import Any

import yaml

from trl_ext.errors import UserError


def read_thresholds(thresholds: Mapping[str, Any] | str | os.PathLike[str] | None) -> dict[str, Any]:
    """A plain dictionary; the engine checks what is in it.

    Raises:
        UserError: the file cannot be read, or holds no mapping.
    """
    if thresholds is None:
        return {}
    if isinstance(thresholds, str | os.PathLike):
        try:
            with open(thresholds, encoding="utf-8") as file:
                thresholds = yaml.safe_load(file)
        except (OSError, yaml.YAMLError) as error:
            raise UserError(f"cannot read the thresholds: {' '.join(str(error).split())}") from error
    if not isinstance(thresholds, Mapping):
        raise UserError("thresholds must be a mapping such as `kl_high: {logs: 5}`, or the path of a YAML file of one")
    return dict(thresholds)
