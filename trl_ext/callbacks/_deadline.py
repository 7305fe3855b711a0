"""How much time a run has."""

import math
import os
import time
from datetime import datetime
from typing import Any

from trl_ext.errors import UserError

SLURM_VARIABLE = "SLURM_JOB_END_TIME"  # seconds since 1970, set by Slurm from 22.05 on


def find_end(hours: Any, minutes: Any, seconds: Any, deadline: Any, reserve: Any) -> float:
    """Seconds from now to the earliest end that is given. Arguments as in `TimeBudgetCallback`.

    Raises:
        UserError: none is given, the end has passed, or a value makes no sense.
    """
    given = {"hours": hours, "minutes": minutes, "seconds": seconds, "reserve": reserve}
    for name, value in given.items():
        if value is not None and not _is_number(value):
            raise UserError(f"{name} must be a number of at least 0, not {value!r}")
    ends: list[float] = []
    if any(value is not None for value in (hours, minutes, seconds)):
        ends.append(3600 * (hours or 0) + 60 * (minutes or 0) + (seconds or 0))
    if deadline is not None:
        ends.append(_from_now(deadline))
    if not ends and SLURM_VARIABLE in os.environ:
        ends.append(_from_now(_slurm_end()))
    if not ends:
        raise UserError(f"give hours, minutes, seconds or deadline, or run where Slurm sets {SLURM_VARIABLE}")
    end = min(ends)
    if end <= (reserve or 0):
        raise UserError(f"the time is over: {end:.0f} seconds are left and {reserve or 0:g} are kept in reserve")
    return end


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _from_now(deadline: Any) -> float:
    if isinstance(deadline, str):
        try:
            deadline = datetime.fromisoformat(deadline)
        except ValueError as error:
            raise UserError(f"deadline {deadline!r} is no time such as '2026-08-01T18:30'") from error
    if isinstance(deadline, datetime):
        deadline = deadline.timestamp()
    if not _is_number(deadline):
        raise UserError(f"deadline must be a datetime, an ISO 8601 string or seconds since 1970, not {deadline!r}")
    return deadline - time.time()


def _slurm_end() -> float:
    value = os.environ[SLURM_VARIABLE]
    try:
        return float(value)
    except ValueError as error:
        raise UserError(f"{SLURM_VARIABLE} is {value!r}, not seconds since 1970: give deadline instead") from error
