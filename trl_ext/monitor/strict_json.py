"""Strict JSON: what is not finite becomes `null`, a list `nonfinite` names it, and `infinite` tells it from NaN."""

import json
import math
from collections.abc import Mapping
from typing import Any

# Of JSON Schema: Python reads integers that no float holds
NUMBER = {"type": "number", "minimum": -1e300, "maximum": 1e300}
_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
_encode_text = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode


def to_strict_json(record: Mapping[str, Any]) -> str:
    """One line of strict JSON. `nonfinite`, when present, lists where a `null` stands for NaN or an infinity
    (`"kl"`, or `"evidence.kl"` one level down); `infinite`, when present, has the sign (1 or -1) of the infinities
    among them."""
    try:
        return _encode(record)
    except ValueError:
        found: dict[str, float] = {}
        clean = _clean(record, "", found)
        infinite = {name: int(math.copysign(1, value)) for name, value in found.items() if math.isinf(value)}
        return _encode({**clean, "nonfinite": sorted(found), **({"infinite": infinite} if infinite else {})})


def _clean(value: Any, path: str, found: dict[str, float]) -> Any:
    if isinstance(value, Mapping):
        return {key: _clean(item, f"{path}.{key}" if path else str(key), found) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item, f"{path}.{i}", found) for i, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        found[path] = value
        return None
    return value


def is_strict_json(value: Any) -> bool:
    """Whether all its numbers are finite and its texts can be written. Python's reader takes `NaN`, `Infinity`, `1e999`
    and half a surrogate pair; nobody else's does."""
    try:
        _encode_text(value).encode()
    except ValueError:
        return False
    return True
