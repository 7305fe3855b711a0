"""A call that may take only so long, even where it loops forever."""

import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")
_AGAIN = 0.5  # seconds: where the interruption fell into code that swallows it, it comes again


class TimeLimitError(TimeoutError):
    """The time limit of a call, as opposed to a `TimeoutError` that the called function raises itself."""


class _Interruption(BaseException):
    """No `Exception`: a reward function that catches those would swallow it and go on. One that catches everything in a
    loop is interrupted at one of its next lines as well, until it is at one where nothing is caught."""


def call_within(seconds: float | None, function: Callable[[], Result]) -> Result:
    """`function()`, given up after `seconds` (`None`: never).

    In the main thread of a POSIX system a timer interrupts it, also inside a regular expression of `re`. Elsewhere it
    runs in a thread of its own, which is left behind when time is up: Python cannot end a thread.

    Raises:
        TimeLimitError: time is up.
    """
    if seconds is None:
        return function()
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
        return _interrupted(seconds, function)
    return _in_a_thread(seconds, function)


def _interrupted(seconds: float, function: Callable[[], Result]) -> Result:
    """Keeps the timer of whoever set one before (pytest-timeout, math_verify): it goes off when it would have.

    No context manager, in whose own lines an interruption would escape.
    """
    active, tries, started, tracer = True, 0, time.monotonic(), sys.gettrace()

    def interrupt(signum: int, frame: Any) -> None:
        nonlocal tries
        if active:
            tries += 1
            if tries > 1:
                _interrupt_line(frame, tries - 1)
            raise _Interruption

    handler = signal.signal(signal.SIGALRM, interrupt)
    left, interval = signal.getitimer(signal.ITIMER_REAL)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
            return function()
        finally:
            active = False
    except _Interruption:
        raise _exceeded(seconds) from None
    finally:
        active = False  # an interruption may have kept it from being set
        if tries > 1:
            sys.settrace(tracer)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
        if left > 0:
            left -= time.monotonic() - started
            signal.setitimer(signal.ITIMER_REAL, left if left > 0 else interval, interval)
            if left <= 0:
                signal.raise_signal(signal.SIGALRM)


def _interrupt_line(frame: Any, number: int) -> None:
    """Raises at the next but `number - 1` line of the functions down to ours: of those that catch one, the next time
    another, until one is not inside of any `try`."""
    left = number

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal left
        if event == "line":  # that of an exception comes while it can still be caught
            left -= 1
            if left == 0:
                raise _Interruption
        return trace

    sys.settrace(trace)
    while frame is not None and frame.f_code.co_filename != __file__:
        frame.f_trace = trace
        frame = frame.f_back


def _in_a_thread(seconds: float, function: Callable[[], Result]) -> Result:
    outcome: list[tuple[bool, Any]] = []

    def run() -> None:
        try:
            outcome.append((True, function()))
        except BaseException as error:
            outcome.append((False, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise _exceeded(seconds)
    succeeded, value = outcome[0]
    if not succeeded:
        raise value
    return value


def _exceeded(seconds: float) -> TimeLimitError:
    return TimeLimitError(f"took longer than {seconds:g} s")
