"""A call that may take only so long, even where it loops forever."""

import _thread
import ctypes
import gc
import logging
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")
logger = logging.getLogger(__name__)
_PENDING: deque[Any] = deque(maxlen=64)
_TRUTH = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
_TOLD = 20  # interruptions without effect, after which the log says so
_AGAIN = 0.5  # seconds: where the interruption fell into code that swallows it, it comes again


class TimeLimitError(TimeoutError):
    """The time limit of a call, as opposed to a `TimeoutError` that the called function raises itself."""


class _Interruption(BaseException):
    """No `Exception`: a reward function that catches those would swallow it and go on. One that catches everything in a
    loop is interrupted again, until it is where nothing is caught."""


class _Flood:
    """Interrupts again and again, wherever Python looks for work between two instructions (at the start of a function,
    behind a call, at the end of a loop's body), until `active()` is over: code that catches everything in nested loops
    leaves them one after the other. Asked by the interpreter for its truth, in the main thread; no signal is needed.
    """

    def __init__(self, active: Callable[[], bool]) -> None:
        self.active, self.begun = active, False

    def begin(self) -> None:
        self.begun = True
        _PENDING.append(self)  # what the interpreter still asks must not be collected
        ctypes.pythonapi.Py_AddPendingCall(_TRUTH, ctypes.py_object(self))

    def __bool__(self) -> bool:
        if self.active():
            self.begin()
            raise _Interruption
        return False  # to the interpreter: nothing was raised


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
    active, started = True, time.monotonic()
    flood = _Flood(lambda: active)
    running, signalling = _thread.allocate_lock(), _thread.allocate_lock()
    running.acquire()

    def interrupt(signum: int, frame: Any) -> None:
        if active:
            raise _Interruption

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())  # as it is
    handler = signal.signal(signal.SIGALRM, interrupt)
    left, interval = signal.getitimer(signal.ITIMER_REAL)
    try:
        try:
            # The timer's signal goes to the process: in a thread that takes it, it may come after the handler has gone
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
            _thread.start_new_thread(_watch, (seconds + _AGAIN, interrupt, flood, running, signalling))
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
            return function()
        finally:
            active = False
    except _Interruption as interruption:
        # A generator that was left midway tidies up now, not later, over what is restored below
        traceback.clear_frames(interruption.__traceback__)
        if flood.begun:
            gc.collect()
        raise _exceeded(seconds) from None
    finally:
        active = False  # an interruption may have kept it from being set
        signalling.acquire()
        running.release()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, interrupt)  # a signal that was blocked comes now
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
        if left > 0:
            left -= time.monotonic() - started
            signal.setitimer(signal.ITIMER_REAL, left if left > 0 else interval, interval)
            if left <= 0:
                signal.raise_signal(signal.SIGALRM)


def _watch(seconds: float, handler: Callable, flood: _Flood, running: Any, signalling: Any) -> None:
    """Stands in for the timer where the function clears it, sets another handler or blocks the signal, as one with a
    time limit of its own by `signal.alarm` does, and where it catches what interrupts it; from a thread.

    Args:
        handler: ours, of the signal, which alone interrupts a call that waits; in one of Python's the flood comes.
        running: a lock that is held as long as the function runs.
        signalling: one that is never free again when it has ended: the next handler may end the process.
    """
    ended, tries, main = running.acquire(timeout=seconds), 0, threading.main_thread().ident or 0
    while not ended and signalling.acquire(blocking=False):
        now = signal.getsignal(signal.SIGALRM)
        if tries or now is not handler:
            flood.begin()
        if callable(now):  # what the system does by itself might end the process
            signal.pthread_kill(main, signal.SIGALRM)
        signalling.release()
        tries += 1
        if tries == _TOLD:
            frame = sys._current_frames()[main]
            logger.warning("a call that may take %g s does not let itself be interrupted (C code?) in %s, line %d. "
                           "Bound its inputs.", seconds - _AGAIN, frame.f_code.co_filename, frame.f_lineno)  # fmt: skip
        ended = running.acquire(timeout=_AGAIN)


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
