"""Asks an endpoint about many completions: in batches, and one by one where one of them may have failed its batch."""

import asyncio
from collections.abc import Iterable
from typing import Any

from trl_ext.rewards.calls import in_a_daemon_thread
from trl_ext.rewards.endpoint import Endpoint
from trl_ext.rewards.endpoint_errors import EndpointError
from trl_ext.rewards.results import Unscored

_BY_ONE = (200, 400, 413, 422, 500)  # statuses that one completion may bring about; 200: with an unusable answer
_BY_NONE = (401, 403, 404, 405)  # ... that have nothing to do with completions, as redirections have not
_IN_VAIN = 4  # requests without one success, or a whole batch asked one by one: the others are not asked
_PENDING: Any = object()


class EndpointBatches:
    """One call of a `RemoteReward`.

    Args:
        fields: lists of equal length, of which each request has a part.
        size: completions in a request.
        free: bounds the requests at once.
    """

    def __init__(self, endpoint: Endpoint, fields: dict[str, list], size: int, free: asyncio.Semaphore) -> None:
        self._endpoint, self._fields, self._free = endpoint, fields, free
        count = len(fields["completions"])
        self._batches = [range(start, min(start + size, count)) for start in range(0, count, size)]
        self._rewards: list[Any] = [_PENDING] * count
        self._in_vain, self._enough = 0, max(_IN_VAIN, size)
        self._answered = False
        self._error: EndpointError | None = None  # the first one
        self._given_up = False

    async def ask(self, deadline: float) -> list[float | None]:
        """For each completion a number, `None`, or `Unscored` where its request failed.

        Raises:
            EndpointError: all failed; the first cause.
        """
        if not self._batches:
            return []
        asked = [asyncio.ensure_future(self._ask(batch)) for batch in self._batches]
        try:
            done, _ = await asyncio.wait(asked, timeout=deadline, return_when=asyncio.FIRST_EXCEPTION)
            for request in done:
                request.result()  # what is no fault of the endpoint passes on
        finally:
            for request in asked:
                request.cancel()
        late = [row for row, reward in enumerate(self._rewards) if reward is _PENDING]
        if late:
            self._fail(late, EndpointError(
                f"remote: {self._endpoint.shown_url} did not answer {len(asked)} requests within {deadline:g} s: "
                "raise deadline or concurrency"
            ))  # fmt: skip
        if self._error is not None and not self._answered:
            raise self._error
        return self._rewards

    async def _ask(self, rows: range) -> None:
        error = await self._request(rows)
        if error is None:
            return
        if len(rows) > 1 and error.status in _BY_ONE and not self._given_up:
            await asyncio.gather(*(self._ask(rows[i : i + 1]) for i in range(len(rows))))
        else:
            self._fail(rows, error)

    async def _request(self, rows: range) -> EndpointError | None:
        """What kept it from bringing rewards."""
        async with self._free:
            if self._given_up and self._error is not None:
                return self._error
            part = {name: column[rows.start : rows.stop] for name, column in self._fields.items()}
            try:
                rewards = await in_a_daemon_thread(lambda: self._endpoint.ask(part))
            except EndpointError as error:
                self._count(error, len(rows))
                return error
            self._answered = True
            self._rewards[rows.start : rows.stop] = rewards
            return None

    def _count(self, error: EndpointError, size: int) -> None:
        self._error = self._error or error
        if error.status not in _BY_ONE:
            self._in_vain += -(-self._enough // _IN_VAIN)  # four of them are enough
        elif size == 1:
            self._in_vain += 1
        redirects = error.status is not None and 300 <= error.status < 400
        in_vain = self._in_vain >= self._enough and not self._answered
        self._given_up |= redirects or error.status in _BY_NONE or in_vain

    def _fail(self, rows: Iterable[int], error: EndpointError) -> None:
        self._error = self._error or error
        for row in rows:
            self._rewards[row] = Unscored(str(error))
