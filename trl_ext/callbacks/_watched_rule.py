"""A rule that judges elsewhere than in the monitor's engine, as the alert book knows it."""

from trl_ext.monitor.rules.base import Rule


class WatchedRule(Rule):
    """
    Args:
        close_after: looks in a row without the fault after which its alert closes.
    """

    def __init__(self, name: str, close_after: int) -> None:
        super().__init__({})
        self.name = name  # type: ignore[misc]
        self.close_after = close_after  # type: ignore[misc]
