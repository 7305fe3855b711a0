"""Strict JSON: what is not finite becomes `null`, and a list `nonfinite` names it."""

import json
import math
from collections.abc import Mapping
from typing import Any

_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def to_strict_json(record: Mapping[str, Any]) -> str:
    """One line of strict JSON. `nonfinite`, when present, lists where a `null` stands for NaN or an infinity
    (`"kl"`, or `"evidence.kl"` one level down)."""
    try:
        return _encode(record)
    except ValueError:
        names: list[str] = []
        clean = _clean(record, "", names)
        return _encode({**clean, "nonfinite": sorted(names)})


def _clean(value: Any, path: str, names: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _clean(item, f"{path}.{key}" if path else str(key), names) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item, f"{path}.{i}", names) for i, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        names.append(path)
        return None
    return value
