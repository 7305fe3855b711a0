"""What a process says when the launcher ends it, because another process of the run is gone."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import say
from .failures import LostProcessError, lost_process, to_go_on

_LEAVE = 3  # seconds
_SPEAKERS = ("0", "1")  # of a machine: one of them is there, whichever process is gone


@contextmanager
def speaking_when_terminated(trainer: Any) -> Iterator[None]:
    """While several processes train: SIGTERM, which torchrun sends as soon as one of them has failed, prints a line.

    A process waits for the others inside NCCL or gloo, where Python's own handlers do not run; so a thread does that,
    which the signal wakes, and it ends the process as the signal would have. A handler that is there already stays.
    """
    quiet = os.environ.get("LOCAL_RANK") not in _SPEAKERS or int(os.environ.get("WORLD_SIZE", 1)) < 2
    if quiet or threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    awake, wake = socket.socketpair()
    wake.setblocking(False)
    before = signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)  # without a handler of Python nothing is written to `wake`
    listener = threading.Thread(target=_listen, args=(awake, wake, trainer), daemon=True)
    listener.start()
    try:
        yield
    except LostProcessError:  # the launcher will end this one any moment
        if os.environ["LOCAL_RANK"] == "0":  # it says so at once, not ended before; others wait in `cli_errors`
            _stop(before, wake, listener, signal.SIG_IGN)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_LEAVE)  # the end of a process can wait for the others as well
        raise
    except BaseException:
        _stop(before, wake, listener, signal.SIG_DFL)
        raise
    _stop(before, wake, listener, signal.SIG_DFL)


def _stop(before: int, wake: socket.socket, listener: threading.Thread, then: signal.Handlers) -> None:
    signal.signal(signal.SIGTERM, then)
    signal.set_wakeup_fd(before)
    wake.close()
    listener.join()


def _listen(awake: socket.socket, wake: socket.socket, trainer: Any) -> None:
    """`wake` is only held: it must not be closed where the process lives on after a `LostProcessError`."""
    while numbers := awake.recv(64):  # until `wake` is closed
        if signal.SIGTERM in numbers:
            step = trainer.state.global_step + 1
            say(
                f"error: ended by SIGTERM in step {step}, process {os.environ.get('RANK', '0')}: the launcher does so "
                f"when {lost_process()} {to_go_on(trainer)}"
            )
            os._exit(128 + signal.SIGTERM)
