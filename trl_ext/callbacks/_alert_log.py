"""How an alert reads in the log."""

import logging

from trl_ext.monitor.alerts import Alert, Severity

_LEVELS = {
    Severity.INFO: logging.INFO, Severity.WARNING: logging.WARNING,
    Severity.ERROR: logging.ERROR, Severity.CRITICAL: logging.CRITICAL,
}  # fmt: skip


def log_alert(logger: logging.Logger, alert: Alert, again: bool = False) -> None:
    """One that closed is an information, and so is one that was said before (`again`)."""
    if alert.closed is not None:
        logger.info("%s (step %d) is gone since step %d.", alert.rule, alert.opened, alert.closed)
        return
    logger.log(
        logging.INFO if again else _LEVELS[alert.severity],
        "[%s] %s at step %d: %s. What to do: %s",
        alert.severity, alert.rule, alert.step, alert.message, alert.advice,
    )  # fmt: skip
