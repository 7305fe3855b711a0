"""A call that may take only so long, even where it loops forever."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Result = TypeVar("Result")
_AGAIN = 0.5  # seconds: where the interruption fell into code that swallows it, it comes again


class TimeLimitError(TimeoutError):
    """The time limit of a call, as opposed to a `TimeoutError` that the called function raises itself."""


class _Interruption(BaseException):
    """No `Exception`: a reward function that catches those would swallow it and go on."""


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
        with _alarm(seconds):
            return function()
    return _in_a_thread(seconds, function)


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Keeps the timer of whoever set one before (pytest-timeout, math_verify): it goes off when it would have."""
    active, started = True, time.monotonic()

    def interrupt(signum: int, frame: Any) -> None:
        if active:
            raise _Interruption

    handler = signal.signal(signal.SIGALRM, interrupt)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
    try:
        yield
    except _Interruption:
        raise _exceeded(seconds) from None
    finally:
        active = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
        if left > 0:
            left -= time.monotonic() - started
            signal.setitimer(signal.ITIMER_REAL, left if left > 0 else interval, interval)
            if left <= 0:
                signal.raise_signal(signal.SIGALRM)


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
