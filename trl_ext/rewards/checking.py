"""A reward function whose faults are reported in one line that names it, the step, and what to mend."""

import inspect
import sys
import traceback
from collections.abc import Callable
from functools import partial
from numbers import Real
from typing import Any, NamedTuple

from trl_ext.errors import UserError

_KEPT_ROWS = 256  # bounds the memory of `last_batch`, whatever the batch size


class Batch(NamedTuple):
    """What a reward function was last asked, and what it said; at most the first 256 rows."""

    prompts: list
    completions: list
    rewards: list[float | None]


class CheckedReward:
    """`func` with its results checked; called as TRL calls reward functions, and named as `func` is.

    NaN and `None` pass: TRL reads both as "not applicable". A coroutine function stays one, so TRL awaits it. An
    `nn.Module` comes back as it is: TRL calls reward models itself, with tokens.

    Args:
        func: a reward function.
        name: replaces the function's own name in logs and errors.
    Attributes:
        last_batch (`Batch` or `None`): of the last call that passed.
    Raises:
        UserError: on a call; `func` raised, returned another number of rewards than there are completions, or something
            that is no number. The step named is `trainer_state.global_step`, the number of steps done so far; where the
            trainer passes no state, the number of the call.
    """

    def __new__(cls, func: Callable, name: str | None = None) -> Any:
        if _is_module(func):
            return func
        return super().__new__(_AsyncCheckedReward if _is_async(func) else cls)

    def __init__(self, func: Callable, name: str | None = None) -> None:
        self.func = func
        self.__name__ = name or callable_name(func)
        self.last_batch: Batch | None = None
        self.calls = 0

    def __reduce__(self) -> tuple:
        return CheckedReward, (self.func, self.__name__)

    def __call__(self, prompts: list, completions: list, completion_ids: Any = None, **kwargs: Any) -> Any:
        where = self._where(kwargs)
        try:
            result = self.func(prompts=prompts, completions=completions, completion_ids=completion_ids, **kwargs)
        except Exception as error:
            raise self._raised(error, where) from error
        return self._accept(result, prompts, completions, where)

    def _where(self, kwargs: dict[str, Any]) -> str:
        self.calls += 1
        state = kwargs.get("trainer_state")
        at = f"call {self.calls}" if state is None else f"step {state.global_step}"
        return f"Reward function '{self.__name__}' at {at}"

    def _accept(self, result: Any, prompts: list, completions: list, where: str) -> list[float | None]:
        if isinstance(result, str | dict) or not hasattr(result, "__iter__") or getattr(result, "shape", None) == ():
            raise UserError(f"{where} returned {_shown(result)}: return a list, one number per completion")
        values = list(result)
        if len(values) != len(completions):
            raise UserError(
                f"{where} returned {len(values)} rewards for {len(completions)} completions: "
                "return one number per completion, None where it does not apply"
            )
        rewards = [_number(value) for value in values]
        for index, (value, reward) in enumerate(zip(values, rewards, strict=True)):
            if reward is None and value is not None:
                raise UserError(
                    f"{where} returned {_shown(value)} for completion {index}: "
                    "return a number, or None where the reward does not apply"
                )
        self.last_batch = Batch(prompts[:_KEPT_ROWS], completions[:_KEPT_ROWS], rewards[:_KEPT_ROWS])
        return rewards

    def _raised(self, error: Exception, where: str) -> UserError:
        if isinstance(error, UserError):
            return UserError(f"{where}: {error}")
        fix = "mend it, or return None for a completion that it cannot score"
        if isinstance(error, TypeError) and "required" in str(error):
            fix = "dataset columns arrive as arguments of the same name, so the dataset needs that column"
        elif isinstance(error, TypeError) and "unexpected keyword" in str(error):
            fix = "add **kwargs to its arguments, TRL passes dataset columns and more"
        cause = _one_line(f"{type(error).__name__}: {error}")
        return UserError(f"{where} raised {cause}{_place(error)}: {fix}")


class _AsyncCheckedReward(CheckedReward):
    """The same for coroutine functions."""

    def __init__(self, func: Callable, name: str | None = None) -> None:
        super().__init__(func, name)
        # TRL 1.12 asks inspect.iscoroutinefunction(reward), which looks into objects with a function's attributes.
        self.__code__ = type(self).__call__.__code__
        self.__defaults__, self.__kwdefaults__, self.__annotations__ = None, None, {}

    async def __call__(self, prompts: list, completions: list, completion_ids: Any = None, **kwargs: Any) -> Any:
        where = self._where(kwargs)
        try:
            result = await self.func(prompts=prompts, completions=completions, completion_ids=completion_ids, **kwargs)
        except Exception as error:
            raise self._raised(error, where) from error
        return self._accept(result, prompts, completions, where)


def callable_name(func: Callable) -> str:
    """The name that TRL logs: of the innermost function of partials, or of the class."""
    while isinstance(func, partial):
        func = func.func
    return getattr(func, "__name__", type(func).__name__)


def _is_async(func: Callable) -> bool:
    while isinstance(func, partial):
        func = func.func
    return inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(getattr(func, "__call__", None))  # noqa: B004


def _is_module(func: Any) -> bool:
    torch = sys.modules.get("torch")  # whoever holds a module has imported torch
    return torch is not None and isinstance(func, torch.nn.Module)


def _place(error: Exception) -> str:
    """The deepest line in the file of the reward function; nothing where it could not even be called."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # without our own
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def _number(value: Any) -> float | None:
    if getattr(value, "shape", None) == ():  # a scalar of torch or numpy
        value = value.item()
    return float(value) if isinstance(value, Real) else None


def _shown(value: Any) -> str:
    return f"{_one_line(repr(value), 60)} ({type(value).__name__})"


def _one_line(text: str, limit: int = 200) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 3] + "..."
