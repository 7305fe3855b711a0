"""How an alert reads in the log, and in the monitor's file when another than the monitor found it."""

import logging

from trl_ext.monitor.alerts import Alert, Severity
from trl_ext.monitor.files import LineFile
from trl_ext.monitor.strict_json import to_strict_json

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


def write_alert(file: LineFile, session: int, alert: Alert) -> None:
    """One that opened, rose or closed, as a line of `alerts.jsonl`."""
    event = "recovered" if alert.closed is not None else "opened" if alert.step == alert.opened else "raised"
    file.append(to_strict_json({"session": session, "event": event, **alert.to_dict()}))
