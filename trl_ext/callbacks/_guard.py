"""A fault in the monitor never ends a run."""

import functools
import logging
from collections.abc import Callable
from typing import Any

from trl_ext.callbacks.stopping import TrainingStopped

logger = logging.getLogger(__name__)


def never_raises(method: Callable[..., Any]) -> Callable[..., Any]:
    """Logs the first exception of a method with its traceback, keeps silent about the next, and returns `None`.

    `TrainingStopped` passes: it is the decision, not a fault.
    """
    reported = "_reported_" + method.__name__

    @functools.wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except TrainingStopped:
            raise
        except OSError as error:  # a full disk is no fault of the monitor: no traceback
            if not getattr(self, reported, False):
                setattr(self, reported, True)
                logger.warning("%s cannot write: %s; training goes on.", type(self).__name__, error)
            return None
        except Exception:
            if not getattr(self, reported, False):
                setattr(self, reported, True)
                logger.exception("%s.%s failed; training goes on.", type(self).__name__, method.__name__)
            return None

    return guarded
