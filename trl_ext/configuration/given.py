"""What was given to a configuration, apart from what its `__post_init__` made of it.

TRL, Transformers and our own classes fill in and change options when an object is made (`bf16`, `steps_per_generation`,
PPO's names ...). What is written to a file is what was given, and what was set on the object since.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .plain import plain_options, same

# On the object, in plain form, so that they are pickled with it and need no class of ours
_GIVEN, _MADE, _COMPUTED = "_options_given", "_options_made", "_options_computed"


def given_options(config: Any) -> dict[str, Any] | None:
    """What was given, and what was set since, by name in plain form; `None` where nothing was recorded."""
    if not hasattr(config, _MADE):
        return None
    given, now = getattr(config, _GIVEN), plain_options(config)
    changed = _differing(now, getattr(config, _MADE))
    return {name: now[name] if name in changed or name not in given else given[name] for name in now}


def computed_options(config: Any) -> list[str]:
    """Names of options that a trainer has computed of others."""
    return getattr(config, _COMPUTED, [])


def names_set_since(config: Any) -> list[str]:
    """Options that were set on the object since it was made, or since a trainer computed options of it."""
    if not hasattr(config, _MADE):
        return []
    return _differing(plain_options(config), getattr(config, _MADE))


def _differing(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    return [name for name, value in now.items() if name not in before or not same(value, before[name])]


@contextmanager
def computing_options(config: Any) -> Iterator[None]:
    """Around code that computes options from others: what it changes is not taken for given."""
    given, before = given_options(config), getattr(config, _MADE, None)
    setattr(config, _GIVEN, plain_options(config) if given is None else given)
    yield
    now = plain_options(config)
    if before is not None:  # a trainer's: an object that is made again does not have them
        setattr(config, _COMPUTED, sorted({*_differing(now, before), *computed_options(config)}))
    setattr(config, _MADE, now)


def recording(post_init: Any) -> Any:
    """`post_init`, with what was given recorded; of one that calls another the outermost records."""

    @functools.wraps(post_init)
    def recorded(self: Any, *arguments: Any) -> None:
        if hasattr(self, _GIVEN):
            post_init(self, *arguments)
            return
        with computing_options(self):
            post_init(self, *arguments)

    return recorded
