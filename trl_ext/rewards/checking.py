"""A reward function that cannot end a run: what it fails at is counted, kept and told, unless raising was asked for."""

import asyncio
import inspect
import logging
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from trl_ext.errors import UserError
from trl_ext.rewards.calls import Call
from trl_ext.rewards.coroutine_object import CoroutineObject
from trl_ext.rewards.endpoint_errors import EndpointError
from trl_ext.rewards.failures import Failure, FailureFile, check_policy, check_timeout
from trl_ext.rewards.one_by_one import OneByOne
from trl_ext.rewards.options import LARGEST
from trl_ext.rewards.probing import is_probing
from trl_ext.rewards.results import Outcome, read_error, read_result
from trl_ext.rewards.time_limit import TimeLimitError, call_within

logger = logging.getLogger(__name__)

_KEPT_ROWS = 256  # bounds the memory of `last_batch`, whatever the batch size
_BROKEN_AFTER = 3  # batches in a row without one usable reward: which completion is at fault is not asked any more
_AT_ONCE = 8  # completions that a coroutine function is asked about one by one, at the same time
DEFAULT_TIMEOUT = 300.0  # seconds: NCCL gives up after 10 minutes, and the process that waits must not be the first


class Batch(NamedTuple):
    """What a reward function was last asked, and what it said; at most the first 256 rows."""

    prompts: list
    completions: list
    rewards: list[float | None]


class CheckedReward:
    """`func` with its results checked; called as TRL calls reward functions, and named as `func` is.

    A completion fails when `func` raises, takes too long, returns another number of rewards than there are completions,
    or returns for it what is no finite number. `None` is no failure: TRL reads it as "not applicable". After an
    exception or a time-out the completions are asked about one by one, so that one bad completion costs one reward;
    after a time-out for half of `timeout` in all, and a sixteenth of it for each.

    What failed is appended to `reward_failures.jsonl`, said in a warning (the 1st, 10th, 100th ... time), and logged by
    the trainer as `reward_failures/<name>`, a share of the completions, which the monitor judges.

    A coroutine function stays one, so TRL awaits it. An `nn.Module` comes back as it is: TRL calls reward models
    itself, with tokens.

    Args:
        func: a reward function.
        name: replaces the function's own name in logs and errors.
        on_failure: `"none"` gives a failed completion the reward `None`, a number gives it that number, `"raise"` ends
            the run.
        timeout: seconds a call may take, `None` for no limit. In other threads than the main one a function that is
            given up goes on in the background; a coroutine that blocks without awaiting is only told afterwards.
        failures_dir: folder of `reward_failures.jsonl`. `None`: the callbacks of trl_ext set it when training begins.
        largest: magnitude of a reward beyond which it is a failure: `load_reward_funcs` divides it by the weight.
    Attributes:
        last_batch (`Batch` or `None`): of the last call that passed.
        failures (`int`): completions that failed so far.
    Raises:
        UserError: arguments that make no sense; with `on_failure="raise"` on a call that fails. The step named is
            `trainer_state.global_step`, the number of steps done so far; where the trainer passes no state, the number
            of the call.
    """

    def __new__(cls, func: Callable, *args: Any, **kwargs: Any) -> Any:
        if is_module(func):
            return func
        return super().__new__(_AsyncCheckedReward if is_async(func) else cls)

    def __init__(
        self,
        func: Callable,
        name: str | None = None,
        on_failure: str | float | None = "none",
        timeout: float | None = DEFAULT_TIMEOUT,
        failures_dir: str | os.PathLike[str] | None = None,
        largest: float = LARGEST,
    ) -> None:
        self.func, self.largest = func, largest
        self.__name__ = name or callable_name(func)
        self.on_failure, self.timeout = check_policy(on_failure), check_timeout(timeout)
        self.last_batch: Batch | None = None
        self.calls = self.failures = 0
        self._broken = 0
        self._file: FailureFile | None = None
        self._share: tuple[int, int] = (0, 0)  # failed and asked about since `take_failed_share`
        if failures_dir is not None:
            self.keep_failures_in(failures_dir)

    def __reduce__(self) -> tuple:
        folder = None if self._file is None else self._file.path.parent
        return CheckedReward, (self.func, self.__name__, self.on_failure, self.timeout, folder, self.largest)

    def keep_failures_in(self, folder: str | os.PathLike[str]) -> None:
        """Sets the folder of `reward_failures.jsonl` unless it is set."""
        self._file = self._file or FailureFile(folder)

    @property
    def is_broken(self) -> bool:
        """Whether it has failed on all of the latest batch."""
        return self._broken > 0

    def take_failed_share(self) -> float | None:
        """The share of completions that failed since the last time somebody asked; `None` where there was none."""
        (failed, asked), self._share = self._share, (0, 0)
        return failed / asked if asked else None

    def __call__(self, prompts: list, completions: list, completion_ids: Any = None, **kwargs: Any) -> Any:
        call, started = Call(prompts, completions, completion_ids, kwargs), time.monotonic()
        outcome = self._ask(call, self.timeout)
        if self._is_to_be_split(outcome, call):
            turns = OneByOne(outcome, started, self.timeout)
            outcome = turns.joined(
                [
                    turns.given_up() or turns.note(self._ask(call.take([row]), turns.seconds()))
                    for row in range(len(completions))
                ]
            )
        return self._settle(call, outcome)

    def _ask(self, call: Call, seconds: float | None) -> Outcome:
        count = len(call.completions)
        try:
            # with the reading: a generator works only then
            return call_within(
                seconds, lambda: read_result(self.func(**call.copied().arguments()), count, self.largest)
            )
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return read_error(error, count)

    def _is_to_be_split(self, outcome: Outcome, call: Call) -> bool:
        raised = outcome.error is not None and not isinstance(outcome.error, EndpointError)
        return raised and len(call.completions) > 1 and self._broken < _BROKEN_AFTER

    def _settle(self, call: Call, outcome: Outcome) -> list[float | None]:
        rewards, failures, error = outcome
        if not is_probing():
            self._record(call, failures, error)
        if failures and self.on_failure == "raise":
            raise UserError(self._say(call, failures)) from error
        if isinstance(self.on_failure, float):
            for failure in failures:
                rewards[failure.row] = self.on_failure
        if not is_probing():
            kept = slice(_KEPT_ROWS)
            self.last_batch = Batch(call.prompts[kept], call.completions[kept], rewards[kept])
        return rewards

    def _record(self, call: Call, failures: list[Failure], error: BaseException | None) -> None:
        self.calls += 1
        asked = len(call.completions)
        self._share = (self._share[0] + len(failures), self._share[1] + asked)
        log_metric = call.others.get("log_metric")
        if log_metric is not None and asked:
            # at every call: TRL 1.12 averages a metric over processes only if all of them have logged it
            log_metric(f"reward_failures/{self.__name__}", len(failures) / asked)
        self._broken = self._broken + 1 if failures and len(failures) == asked else 0
        before, self.failures = self.failures, self.failures + len(failures)
        if self._file is not None:
            state = call.others.get("trainer_state")
            step = None if state is None else state.global_step
            for failure in failures:
                self._file.append(self.__name__, step, failure, call.prompts, call.completions)
        if failures and self.on_failure != "raise" and len(str(self.failures)) > len(str(before) if before else ""):
            kept = "" if self._file is None else f" They are kept in {self._file.path}."
            stand_in = "no reward (None)" if self.on_failure == "none" else f"the reward {self.on_failure:g}"
            logger.warning(
                "%s. %d of %d completions of this batch get %s, training goes on; %d failed so far.%s",
                self._say(call, failures), len(failures), asked, stand_in, self.failures, kept,
            )  # fmt: skip
        elif error is not None and not failures and self.calls == 1:
            logger.warning("%s raised %r for the batch, but not for its completions one by one", self.__name__, error)

    def _say(self, call: Call, failures: list[Failure]) -> str:
        state = call.others.get("trainer_state")
        at = f"call {self.calls}" if state is None else f"step {state.global_step}"
        _, kind, message = failure = failures[0]
        one_of_many = kind == "value" or len(failures) < len(call.completions)
        which = f", completion {failure.row}" if one_of_many else ""
        says_what_it_did = message.startswith(("raised ", "returned ", "took "))
        link = ": " if not says_what_it_did else ", " if which else " "
        return f"Reward function '{self.__name__}' at {at}{which}{link}{message}"


class _AsyncCheckedReward(CoroutineObject, CheckedReward):
    """The same for coroutine functions."""

    async def __call__(self, prompts: list, completions: list, completion_ids: Any = None, **kwargs: Any) -> Any:
        call, started = Call(prompts, completions, completion_ids, kwargs), time.monotonic()
        outcome = await self._await(call, self.timeout)
        if self._is_to_be_split(outcome, call):
            free, turns = asyncio.Semaphore(_AT_ONCE), OneByOne(outcome, started, self.timeout)

            async def one(row: int) -> Outcome:
                async with free:
                    return turns.given_up() or turns.note(await self._await(call.take([row]), turns.seconds()))

            outcome = turns.joined(await asyncio.gather(*map(one, range(len(completions)))))
        return self._settle(call, outcome)

    async def _await(self, call: Call, seconds: float | None) -> Outcome:
        count, started = len(call.completions), time.monotonic()
        try:
            try:
                async with asyncio.timeout(seconds) as limit:
                    result = await self.func(**call.copied().arguments())
            except TimeoutError as error:
                if limit.expired():
                    raise TimeLimitError(f"took longer than {seconds:g} s") from error
                raise
            if seconds is not None and time.monotonic() - started > seconds:
                # it never gave way to the loop, so that it could not be interrupted
                raise TimeLimitError(f"took longer than {seconds:g} s, and blocked all others: await in it")
            return read_result(result, count, self.largest)
        except (KeyboardInterrupt, GeneratorExit):  # the user's, and Python's own when a coroutine is closed
            raise
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # the trainer ends the call; elsewhere it is a leak of the function's own
            return read_error(error, count)


def callable_name(func: Callable) -> str:
    """The name that TRL logs: of the innermost function of partials, or of the class."""
    while isinstance(func, partial):
        func = func.func
    return getattr(func, "__name__", type(func).__name__)


def is_async(func: Callable) -> bool:
    """Whether `func`, or what it is a partial of, is a coroutine function or an object that is called like one."""
    while isinstance(func, partial):
        func = func.func
    return inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(getattr(func, "__call__", None))  # noqa: B004


def is_module(func: Any) -> bool:
    """Whether it is an `nn.Module`, without importing torch."""
    torch = sys.modules.get("torch")  # whoever holds a module has imported torch
    return torch is not None and isinstance(func, torch.nn.Module)
