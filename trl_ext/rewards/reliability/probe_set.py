"""Completions whose worth is known, for the reward to rank."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from trl_ext.errors import UserError
from trl_ext.rewards.calls import Call
from trl_ext.rewards.json_lines import read_json_lines
from trl_ext.rewards.probing import probing

_LEAST = 8
_BATCH = 32
_EXAMPLE = '{"prompt": "Was it good?", "completion": "A great film.", "score": 1.0}'


class ProbeSet(NamedTuple):
    """Attributes:
    call: about all of them; the rows themselves are in its `inputs`.
    truth: shape `(completions,)`, larger is better.
    """

    call: Call
    truth: np.ndarray

    def score(self, score: Callable[[Call], np.ndarray]) -> np.ndarray:
        """In batches; shape `(completions, functions)`."""
        count = len(self.truth)
        with probing():
            return np.concatenate(
                [score(self.call.take(range(at, min(at + _BATCH, count)))) for at in range(0, count, _BATCH)]
            )


def read_probe_set(rows: str | os.PathLike[str] | Sequence[Mapping[str, Any]]) -> ProbeSet:
    """From a JSON Lines file, or from the rows themselves: `completion`, `score`, and `prompt` and further columns
    where the reward functions want them.

    Raises:
        UserError: a file that cannot be read, a row without those, fewer than 8 rows, or scores that are all equal.
    """
    where = "probe_set"
    found: Any = rows
    if isinstance(rows, str | os.PathLike):
        where = os.fspath(rows)
        found = list(read_json_lines(where))
    if not isinstance(found, Sequence):
        raise UserError(f"probe_set must be a JSON Lines file or a list of rows, not {rows!r}")
    for number, row in enumerate(found, start=1):
        score = row.get("score") if isinstance(row, Mapping) else None
        is_number = isinstance(score, Real) and not isinstance(score, bool) and math.isfinite(score)
        if not isinstance(row, Mapping) or not isinstance(row.get("completion"), str | list) or not is_number:
            raise UserError(f"{where}, row {number}: write {_EXAMPLE}")
    truth = np.array([float(row["score"]) for row in found])
    if len(found) < _LEAST or truth.min() == truth.max():
        raise UserError(f"{where} needs at least {_LEAST} rows with different scores; it has {len(found)}")
    inputs = [{key: value for key, value in row.items() if key not in ("completion", "score")} for row in found]
    inputs = [{"prompt": "", **row} for row in inputs]
    return ProbeSet(
        Call([row["prompt"] for row in inputs], [row["completion"] for row in found], None, {"inputs": inputs}), truth
    )
