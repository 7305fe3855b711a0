"""Objects that are called like coroutine functions, and that TRL takes for such."""

from types import CodeType


class CoroutineObject:
    """Base of a class with `async def __call__` and a `__name__`.

    TRL 1.12 asks `inspect.iscoroutinefunction(reward)`, which looks into objects with a function's attributes. They are
    properties of the class, since code objects do not pickle.
    """

    __defaults__ = None
    __kwdefaults__ = None

    @property
    def __code__(self) -> CodeType:
        return type(self).__call__.__code__  # type: ignore[attr-defined]
