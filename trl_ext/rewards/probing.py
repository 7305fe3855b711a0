"""Marks calls of reward functions that no training reads: probes of their reliability, and the check before a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_PROBING: ContextVar[bool] = ContextVar("trl_ext_rewards_probing", default=False)


def is_probing() -> bool:
    """Whether the present call is a probe: a reward function that learns from what it sees must not learn now."""
    return _PROBING.get()


@contextmanager
def probing() -> Iterator[None]:
    """What is called inside is a probe, coroutines on another thread's event loop included."""
    token = _PROBING.set(True)
    try:
        yield
    finally:
        _PROBING.reset(token)
