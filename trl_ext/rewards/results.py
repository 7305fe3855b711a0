"""Reads what a reward function returned, and says of an exception what to mend."""

import inspect
import math
import traceback
from itertools import islice
from numbers import Real
from typing import Any, NamedTuple

from trl_ext.errors import UserError
from trl_ext.rewards.failures import Failure
from trl_ext.rewards.options import LARGEST, shown
from trl_ext.rewards.time_limit import TimeLimitError

NO_LISTS = (str, bytes, bytearray, dict, set, frozenset)  # that can be iterated; a set has no order


class Outcome(NamedTuple):
    """Rewards of a batch, `None` for those of `failures` and where the reward does not apply.

    Attributes:
        error: the exception behind the failures, if there was one.
    """

    rewards: list[float | None]
    failures: list[Failure]
    error: BaseException | None = None


class Unscored(float):
    """A NaN that says why there is no reward, for a function that knows which completion is at fault.

    Args:
        reason: one line, as the message of an exception.
    """

    reason: str

    def __new__(cls, reason: str) -> "Unscored":
        made = super().__new__(cls, math.nan)
        made.reason = reason
        return made

    def __reduce__(self) -> tuple:
        return Unscored, (self.reason,)


def read_result(result: Any, count: int, largest: float = LARGEST) -> Outcome:
    """The rewards of `count` completions. `None` passes; NaN, infinities and numbers beyond `largest`, which would end
    up in the weights as NaN, do not. Of a generator at most `count + 1` values are taken."""
    if inspect.iscoroutine(result):
        result.close()  # else Python warns that nobody awaited it
        message = "returned a coroutine that nobody awaits: write the function with async def"
        return all_failed(count, "length", message)
    if isinstance(result, NO_LISTS) or not hasattr(result, "__iter__") or getattr(result, "shape", None) == ():
        return all_failed(count, "length", f"returned {_shown(result)}: return a list, one number per completion")
    values = list(islice(result, count + 1)) if not hasattr(result, "__len__") else list(result)
    if len(values) != count:
        more = "more than " if len(values) > count and not hasattr(result, "__len__") else ""
        message = (
            f"returned {more}{count if more else len(values)} rewards for {count} completions: "
            "return one number per completion, None where it does not apply"
        )
        return all_failed(count, "length", message)
    rewards: list[float | None] = []
    failures = []
    for row, value in enumerate(values):
        number = None if value is None else _number(value, largest)
        rewards.append(number)
        if number is None and value is not None:
            failures.append(Failure(row, "value", _why(value)))
    return Outcome(rewards, failures)


def read_error(error: BaseException, count: int) -> Outcome:
    """All of `count` completions failed, since the function raised `error`."""
    if isinstance(error, TimeLimitError):
        message = f"{error}: make it faster, or raise its timeout (seconds), written beside its name"
        return all_failed(count, "timeout", message, error)
    return all_failed(count, "exception", _explain(error), error)


def all_failed(count: int, kind: str, message: str, error: BaseException | None = None) -> Outcome:
    return Outcome([None] * count, [Failure(row, kind, message) for row in range(count)], error)


def _explain(error: BaseException) -> str:
    if isinstance(error, UserError):
        return str(error)
    fix = "mend it, or return None for a completion that it cannot score"
    if isinstance(error, TypeError) and "required" in str(error):
        fix = "dataset columns arrive as arguments of the same name, so the dataset needs that column"
    elif isinstance(error, TypeError) and "unexpected keyword" in str(error):
        fix = "add **kwargs to its arguments, TRL passes dataset columns and more"
    return f"raised {type(error).__name__}{_message_of(error)}{_place(error)}: {fix}"


def _message_of(error: BaseException) -> str:
    try:
        text = one_line(str(error))
    except Exception:
        return ", whose message cannot be printed"
    return f": {text}" if text else ""


def _place(error: BaseException) -> str:
    """The deepest line in the file of the reward function; nothing where it could not even be called."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename not in _OURS]
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def _why(value: Any) -> str:
    if isinstance(value, Unscored):
        return value.reason
    return f"returned {_shown(value)}: return a finite number, or None where the reward does not apply"


def _number(value: Any, largest: float) -> float | None:
    if getattr(value, "shape", None) == ():  # a scalar of torch or numpy
        from numpy import ma  # here, because naming rewards must stay quick

        if ma.is_masked(value):
            return None
        value = value.item()
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:  # a whole number beyond floats
        return None
    return number if -largest <= number <= largest else None


def _shown(value: Any) -> str:
    return f"{shown(value)} ({type(value).__name__})"


def one_line(text: str, limit: int = 200) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


# the frames between the caller and the reward function
_OURS = frozenset(
    __file__.replace("results.py", name) for name in ("results.py", "checking.py", "time_limit.py", "calls.py")
)
