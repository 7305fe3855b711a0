"""When a request is repeated. Imported when the first one is made: urllib3 takes a while."""

from typing import Any

from urllib3.exceptions import InvalidHeader
from urllib3.util import Retry


class CappedRetry(Retry):
    """`Retry` whose only change is that a server's `Retry-After` cannot ask for more than `backoff_max` seconds."""

    def get_retry_after(self, response: Any) -> float | None:
        try:
            seconds = super().get_retry_after(response)
        except InvalidHeader:
            return None
        return None if seconds is None else min(seconds, self.backoff_max)
