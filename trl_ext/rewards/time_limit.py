"""A call that may take only so long, even where it loops forever."""

import _thread
import ctypes
import logging
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")
logger = logging.getLogger(__name__)
_PENDING: deque[Any] = deque(maxlen=256)  # what the interpreter may still call must not be collected
_TOLD = 20  # interruptions without effect, after which the log says so
_AGAIN = 0.5  # seconds: where the interruption fell into code that swallows it, it comes again


class TimeLimitError(TimeoutError):
    """The time limit of a call, as opposed to a `TimeoutError` that the called function raises itself."""


class _Interruption(BaseException):
    """No `Exception`: a reward function that catches those would swallow it and go on. One that catches everything in a
    loop is interrupted at one of its next lines as well, until it is at one where nothing is caught."""


def call_within(seconds: float | None, function: Callable[[], Result]) -> Result:
    """`function()`, given up after `seconds` (`None`: never).

    In the main thread of a POSIX system a timer interrupts it, also inside a regular expression of `re`. Elsewhere it
    runs in a thread of its own, which is left behind when time is up: Python cannot end a thread. In the main thread
    nothing interrupts a single long call of C code, such as `9**9**9` or a query of SQLite: its inputs must be bounded
    (`sqlite3.Connection.set_progress_handler`). The log says where a call hangs so.

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

    No context manager, and none of `threading`'s objects, in whose own lines an interruption would escape.
    """
    active, tries, started, tracer = True, 0, time.monotonic(), sys.gettrace()
    running, signalling = _thread.allocate_lock(), _thread.allocate_lock()
    running.acquire()

    def interrupt(signum: int, frame: Any) -> None:
        nonlocal tries
        if active:
            tries += 1
            if tries > 1:
                _interrupt_line(frame, tries - 1)
            raise _Interruption

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())  # as it is
    handler = signal.signal(signal.SIGALRM, interrupt)
    left, interval = signal.getitimer(signal.ITIMER_REAL)
    try:
        try:
            # The timer's signal goes to the process: in a thread that takes it, it may come after the handler has gone
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
            _thread.start_new_thread(_watch, (seconds + _AGAIN, interrupt, running, signalling))
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
            return function()
        finally:
            active = False
    except _Interruption:
        raise _exceeded(seconds) from None
    finally:
        active = False  # an interruption may have kept it from being set
        signalling.acquire()
        running.release()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if tries > 1:
            sys.settrace(tracer)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
        if left > 0:
            left -= time.monotonic() - started
            signal.setitimer(signal.ITIMER_REAL, left if left > 0 else interval, interval)
            if left <= 0:
                signal.raise_signal(signal.SIGALRM)


def _watch(seconds: float, handler: Callable, running: Any, signalling: Any) -> None:
    """Stands in for the timer where the function clears it or sets another handler, as one with a time limit of its own
    by `signal.alarm` does, from a thread.

    Args:
        running: a lock that is held as long as the function runs.
        signalling: one that is never free again when it has ended: the next handler may end the process.
    """
    ended, tries, main = running.acquire(timeout=seconds), 0, threading.main_thread().ident or 0
    while not ended and signalling.acquire(blocking=False):
        if signal.getsignal(signal.SIGALRM) is handler:
            signal.pthread_kill(main, signal.SIGALRM)
        else:  # it has set another, which might end the process
            _set_again(handler, running)
        signalling.release()
        tries += 1
        if tries == _TOLD:
            frame = sys._current_frames()[main]
            logger.warning("a call that may take %g s does not let itself be interrupted (C code?) in %s, line %d. "
                           "Bound its inputs.", seconds - _AGAIN, frame.f_code.co_filename, frame.f_lineno)  # fmt: skip
        ended = running.acquire(timeout=_AGAIN)


def _set_again(handler: Callable, running: Any) -> None:
    """Makes the main thread set the handler between two of its lines, if the function still runs then."""

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    def call(_: Any) -> int:
        if running.locked():
            signal.signal(signal.SIGALRM, handler)
        return 0

    _PENDING.append(call)
    ctypes.pythonapi.Py_AddPendingCall(call, None)


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
