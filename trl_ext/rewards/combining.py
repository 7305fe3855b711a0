"""What reward functions made of other reward functions share: asking those, one after the other or awaiting them."""

import asyncio
import inspect
import math
from collections.abc import Callable, Generator
from typing import Any

from trl_ext.errors import UserError
from trl_ext.rewards.calls import Call
from trl_ext.rewards.checking import callable_name, is_async, is_module
from trl_ext.rewards.coroutine_object import CoroutineObject
from trl_ext.rewards.options import shown
from trl_ext.rewards.results import NO_LISTS, read_result

Rewards = list[float | None]
# Yields what is to be asked, all of it at once where it can be awaited; is sent the answers; returns the rewards.
Plan = Generator[list[tuple[Callable, Call]], list[Rewards], Rewards]


class Combinator:
    """A reward function of reward functions; a subclass says in `_plan` whom it asks what, and what comes of it.

    If one of its functions is a coroutine function, the object made is one as well: an instance of the twin that
    `awaiting` made of the subclass. NaN of an inner function is `None`, as is `None`; any other value that is no
    finite number, or another number of values than completions, is an error. An exception passes through.
    """

    __name__ = "combinator"
    _twin: type["Combinator"]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        inner = [func for value in given for func in (value if isinstance(value, list | tuple) else [value])]
        awaits = any(callable(func) and is_async(func) for func in inner)
        return super().__new__(cls.__dict__.get("_twin", cls) if awaits else cls)

    def _plan(self, call: Call) -> Plan:
        raise NotImplementedError

    def __call__(self, prompts: list, completions: list, completion_ids: Any = None, **kwargs: Any) -> Any:
        plan = self._plan(Call(prompts, completions, completion_ids, kwargs))
        answers: Any = None
        while True:
            try:
                requests = plan.send(answers)
            except StopIteration as finished:
                return finished.value
            answers = [_read(self.__name__, func, func(**call.arguments()), call) for func, call in requests]


class _Awaiting(CoroutineObject):
    async def __call__(self, prompts: list, completions: list, completion_ids: Any = None, **kwargs: Any) -> Any:
        plan = self._plan(Call(prompts, completions, completion_ids, kwargs))  # type: ignore[attr-defined]
        answers: Any = None
        while True:
            try:
                requests = plan.send(answers)
            except StopIteration as finished:
                return finished.value
            asked = [asyncio.ensure_future(self._ask(func, call)) for func, call in requests]
            try:
                answers = await asyncio.gather(*asked)
            finally:
                for one in asked:  # where another one failed
                    one.cancel()

    async def _ask(self, func: Callable, call: Call) -> Rewards:
        result = func(**call.arguments())
        if inspect.isawaitable(result):
            result = await result
        return _read(self.__name__, func, result, call)  # type: ignore[attr-defined]


def awaiting(cls: type[Combinator]) -> type[Combinator]:
    """The twin of `cls` for coroutine functions; bind it to the name `Awaiting<cls>` in the module, for pickling."""
    doc = f"`{cls.__name__}` where one of its functions is a coroutine function."
    names = {"__module__": cls.__module__, "__doc__": doc}
    cls._twin = type(f"Awaiting{cls.__name__}", (_Awaiting, cls), names)
    return cls._twin


def check_reward(reward: str, option: str, func: Any) -> Callable:
    """A function that can be called with completions."""
    if is_module(func):
        raise UserError(f"{reward} cannot call the model in {option} itself: name the reward 'reward_model' there")
    if not callable(func):
        raise UserError(
            f"{reward} needs a reward function for {option}, in YAML written {{name: length, kwargs: {{...}}}}, "
            f"not {shown(func)}"
        )
    return func


def _read(name: str, func: Callable, result: Any, call: Call) -> Rewards:
    values = list(result) if hasattr(result, "__iter__") and not isinstance(result, NO_LISTS) else result
    outcome = read_result(values, len(call.completions))
    for failure in outcome.failures:
        if failure.kind != "value" or not _is_nan(values[failure.row]):
            which = f", completion {failure.row}," if failure.kind == "value" else ""
            raise UserError(f"{name}: '{callable_name(func)}'{which} {failure.message}")
    return outcome.rewards


def _is_nan(value: Any) -> bool:
    try:
        return math.isnan(value)
    except (TypeError, ValueError, OverflowError):
        return False
