"""Attributes of an object replaced for a while, methods as a rule: for the seams that TRL gives no hook for."""

from typing import Any


class StandIn:
    """Inside the context, or from `start` to `stop`, `owner` itself has `attributes`, before those of its class;
    then again what it itself had, or nothing."""

    def __init__(self, owner: Any, **attributes: Any) -> None:
        self._owner, self._attributes, self._before = owner, attributes, dict[str, Any]()

    def start(self) -> None:
        own = vars(self._owner)
        self._before = {name: own[name] for name in self._attributes if name in own}
        own.update(self._attributes)

    def stop(self) -> None:
        own = vars(self._owner)
        for name in self._attributes:
            own.pop(name, None)
        own.update(self._before)

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
