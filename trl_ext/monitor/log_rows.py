"""Records of a log file, in whichever spelling, as the rows that the engine takes."""

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from trl_ext.monitor.metrics import BESIDE, METRICS, canonical_name_beside

# Keys that carry the step, the most telling first; `_step` counts the calls of wandb.log. ms-swift logs "5/100".
STEP_KEYS = (
    "step", "train/global_step", "global_step", "trainer/global_step", "current_steps", "global_step/max_steps",
    "Step", "_step",
)  # fmt: skip
_CANONICAL = {*METRICS, *(meaning for *_, meaning in BESIDE)}
_INDEX_KEYS = {*STEP_KEYS, "", "Unnamed: 0"} - {"current_steps"}  # which also tells LLaMA-Factory's logs
_SUMMARY = {"train_runtime", "train_loss", "total_flos", "train_samples_per_second", "train_steps_per_second"}
_PROGRESS = {"epoch", "num_tokens", "episode"}


class LogRow(NamedTuple):
    """One log, ready for `Engine.observe`; `resumed` marks the first one after a resume, and `facts`, where there are
    any, hold from this row on."""

    step: int
    logs: dict[str, Any]
    resumed: bool
    facts: Mapping[str, Any] | None = None


def log_rows(
    records: Iterable[dict[str, Any]],
    notes: list[str],
    ends: Mapping[int, float] | None = None,
    facts: Mapping[int, Mapping[str, Any]] | None = None,
) -> Iterator[LogRow]:
    """The rows of a log, one a record and in its order.

    A record is a flat log (which is changed) or `{"step":, "logs": {...}}`. Steps come from `STEP_KEYS`; a record
    without one belongs to the step before it, and where none has any they count 1, 2, 3. A new `session`, or a step
    that goes backwards, is a resume.

    Args:
        notes: what a reader of the result should know is appended, at the latest after the last row.
        ends: of `session_ends`: from there on a later session logged the steps again, so that the rows are what a
            killed run left, and are dropped.
        facts: of sessions.
    """
    steps, last_session, dropped = _Steps(), None, 0
    for record in records:
        if isinstance(nested := record.get("logs"), dict):
            record = {**{key: value for key, value in record.items() if key != "logs"}, **nested}
        session = record.pop("session", None)
        session = session if type(session) is int else None
        if "nonfinite" in record:
            record.update(_nonfinite(record.pop("nonfinite"), record.pop("infinite", None)))
        step, backwards = steps.of(record)
        if session is None:
            record = _without_missing(record)
        elif ends and step >= ends.get(session, math.inf):
            dropped += 1
            continue
        for key in _no_metrics(tuple(record)):
            del record[key]
        if session is not None:
            for name, key in _written_twice(tuple(record)):
                if name in record and repr(record[name]) == repr(record[key]):  # NaN, too
                    del record[name]
        resumed = backwards if session is None else last_session is not None and session != last_session
        known = facts.get(session) if facts and session is not None and session != last_session else None
        last_session = session
        yield LogRow(step, record, resumed, known)
    if dropped:
        notes.append(f"left out {dropped} rows: a later run in this file began again before them")


class _Steps:
    """The step of each record, in one pass."""

    def __init__(self) -> None:
        self._rank = len(STEP_KEYS)  # of the key that counts; a more telling one takes over when it appears
        self._last = 0

    def of(self, record: Mapping[str, Any]) -> tuple[int, bool]:
        """The step, and whether it goes backwards."""
        for rank in range(min(self._rank + 1, len(STEP_KEYS))):
            step = _whole(record.get(STEP_KEYS[rank]))
            if step is not None:
                backwards = rank == self._rank and step < self._last
                self._rank, self._last = rank, step
                return step, backwards
        if self._rank == len(STEP_KEYS):
            self._last += 1
        return self._last, False


def _whole(value: Any) -> int | None:
    if type(value) is int:
        return value
    try:
        return int(float(value.split("/")[0] if isinstance(value, str) else value))
    except (TypeError, ValueError, OverflowError):
        return None


def session_ends(first_steps: Mapping[int, int]) -> dict[int, float]:
    """For each session the first step that a later one logged, infinite for the last."""
    return {
        session: min((step for later, step in first_steps.items() if later > session), default=math.inf)
        for session in first_steps
    }


def _nonfinite(names: Any, signs: Any) -> dict[str, float]:
    """What `to_strict_json` wrote as `null`."""
    names = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    signs = signs if isinstance(signs, dict) else {}
    return {name: {1: math.inf, -1: -math.inf}.get(signs.get(name), math.nan) for name in names}


def _without_missing(record: dict[str, Any]) -> dict[str, Any]:
    """Without the `null`s of a table (pandas writes one for each key of the other rows); strings that are numbers
    become numbers.

    TRL logs `None` beside numbers of the same kind of row; an evaluation says nothing of training metrics.
    """
    if None in record.values():
        kinds = {_kind(key) for key, value in record.items() if value is not None}
        record = {key: value for key, value in record.items() if value is not None or _kind(key) in kinds}
    if str in map(type, record.values()):
        for key, value in record.items():
            if isinstance(value, str):
                record[key] = _number(value)
    return record


def _number(text: str) -> float | str:
    """Transformers 5 prints, and ms-swift and Axolotl write, numbers as strings."""
    try:
        return float(text)
    except ValueError:
        return text


@lru_cache(maxsize=256)
def _written_twice(keys: tuple[str, ...]) -> list[tuple[str, str]]:
    """Our own file has each metric under its logged and its canonical name; the monitor has seen the first: (canonical,
    logged)."""
    pairs = [(canonical_name_beside(key, keys), key) for key in keys if key not in _CANONICAL]
    return [(name, key) for name, key in pairs if name in _CANONICAL and name in keys]


def _kind(key: str) -> str:
    key = key.removeprefix("train/")
    if key in _SUMMARY:
        return "summary"
    return "progress" if key in _PROGRESS or key in STEP_KEYS else "eval" if key.startswith("eval") else "train"


@lru_cache(maxsize=256)
def _no_metrics(keys: tuple[str, ...]) -> list[str]:
    """Those of the keys of one log that say which log it is: steps, W&B's clocks, the index of a table."""
    return [key for key in keys if key in _INDEX_KEYS or key.startswith("_")]
