"""Methods of an object replaced for a while: for the seams that TRL gives no hook for."""

from typing import Any


class StandIn:
    """Inside the context, or from `start` to `stop`, `owner` itself has `methods`, before those of its class; then
    again what it itself had, or nothing."""

    def __init__(self, owner: Any, **methods: Any) -> None:
        self._owner, self._methods, self._before = owner, methods, dict[str, Any]()

    def start(self) -> None:
        own = vars(self._owner)
        self._before = {name: own[name] for name in self._methods if name in own}
        own.update(self._methods)

    def stop(self) -> None:
        own = vars(self._owner)
        for name in self._methods:
            own.pop(name, None)
        own.update(self._before)

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
