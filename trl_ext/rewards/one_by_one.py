"""Asks about the completions of a batch one by one, after the batch as a whole failed."""

import time

from trl_ext.rewards.results import Outcome, all_failed
from trl_ext.rewards.time_limit import TimeLimitError

_IN_ALL = 0.5  # of the timeout, for the completions of a batch that took longer than that: less than NCCL waits
_EACH = 1 / 16  # of the timeout, for one of them
_IN_VAIN = 4  # of them that took too long before one did not: the rest is not asked


class OneByOne:
    """How long each of them may take, and what came of all.

    Args:
        batch: the outcome of the whole.
        started: when that was begun, as `time.monotonic` has it.
        timeout: seconds for a batch, `None` for no limit. All of them together may take what is left of it, or where
            the batch took too long half as long again.
    """

    def __init__(self, batch: Outcome, started: float, timeout: float | None) -> None:
        self._batch, self._timeout = batch, timeout
        self._took_too_long = isinstance(batch.error, TimeLimitError)
        self._in_vain, self._hopeful = 0, False
        if timeout is not None:
            self._end = time.monotonic() + _IN_ALL * timeout if self._took_too_long else started + timeout

    def seconds(self) -> float | None:
        """For the next one."""
        if self._timeout is None:
            return None
        return min(max(self._end - time.monotonic(), 1e-3), self._timeout * (_EACH if self._took_too_long else 1.0))

    def given_up(self) -> Outcome | None:
        """What to take for the next one without asking, where nothing but time-outs came of the first four."""
        if not self._took_too_long or self._hopeful or self._in_vain < _IN_VAIN:
            return None
        failure = self._batch.failures[0]
        return all_failed(1, failure.kind, failure.message, self._batch.error)

    def note(self, outcome: Outcome) -> Outcome:
        """The same; counted."""
        if isinstance(outcome.error, TimeLimitError):
            self._in_vain += 1
        else:
            self._hopeful = True  # they are asked to the end
        return outcome

    def joined(self, rows: list[Outcome]) -> Outcome:
        """One that took too long is said to have had the time of its whole batch."""
        failures = []
        for row, outcome in enumerate(rows):
            if outcome.failures:
                (failure,) = outcome.failures
                both = failure.kind == self._batch.failures[0].kind == "timeout"
                failures.append((self._batch.failures[0] if both else failure)._replace(row=row))
        return Outcome([outcome.rewards[0] for outcome in rows], failures, self._batch.error)
