"""One call of a reward function, of which parts can be asked again."""

import asyncio
import contextlib
import contextvars
import inspect
import sys
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any, NamedTuple

_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})


class Call(NamedTuple):
    """What a trainer passes: everything but `prompts`, `completions` and `completion_ids` is in `others`."""

    prompts: list
    completions: list
    completion_ids: Any
    others: dict[str, Any]

    def arguments(self) -> dict[str, Any]:
        """By name, as TRL passes them."""
        return {
            "prompts": self.prompts,
            "completions": self.completions,
            "completion_ids": self.completion_ids,
            **self.others,
        }

    def copied(self) -> "Call":
        """With lists, messages and columns of its own: a function that changes them in place changes nothing else."""
        ids = self.completion_ids
        return Call(
            _copied(self.prompts),
            _copied(self.completions),
            [row.copy() if type(row) is list else row for row in ids] if isinstance(ids, list) else ids,
            {name: _copied(value) for name, value in self.others.items()},
        )

    def take(self, rows: Sequence[int]) -> "Call":
        """The same call about some rows alone. A list or tuple with one element a completion is a column."""
        size = len(self.completions)

        def part(value: Any) -> Any:
            is_column = isinstance(value, list | tuple) and len(value) == size
            return [value[row] for row in rows] if is_column else value

        return Call(
            part(self.prompts),
            part(self.completions),
            part(self.completion_ids),
            {name: part(value) for name, value in self.others.items()},
        )


def _copied(value: Any) -> Any:
    """Containers as deep as they go, and arrays; objects of other classes are shared."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return [one if type(one) in _PLAIN else _copied(one) for one in value]
    if kind is dict:
        return {key: _copied(one) for key, one in value.items()}
    if kind is tuple:
        return tuple(map(_copied, value))
    if isinstance(value, OrderedDict | defaultdict):
        copied = copy(value)
        copied.update((key, _copied(one)) for key, one in value.items())
        return copied
    numpy = sys.modules.get("numpy")  # whoever holds an array has imported it
    if isinstance(value, set) or (numpy is not None and isinstance(value, numpy.ndarray)):
        return copy(value)
    return value.clone() if hasattr(value, "clone") and hasattr(value, "untyped_storage") else value  # of torch


def ask(func: Callable, call: Call) -> Any:
    """What `func` returns; a coroutine function is awaited, also where an event loop runs already (a notebook)."""
    result = func(**call.arguments())
    if not inspect.isawaitable(result):
        return result
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_awaited(result))
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(context.run, asyncio.run, _awaited(result)).result()


async def _awaited(result: Any) -> Any:
    return await result


async def in_a_daemon_thread(work: Callable[[], Any]) -> Any:
    """`work()` without blocking the loop. Unlike a pool's, the thread does not keep the process from ending when it
    never returns."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()

    def settle(method: Callable[[Any], None], value: Any) -> None:
        if not outcome.done():  # given up
            method(value)

    def run() -> None:
        try:
            method, value = outcome.set_result, work()
        except BaseException as error:
            method, value = outcome.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, method, value)

    threading.Thread(target=run, daemon=True).start()
    return await outcome
