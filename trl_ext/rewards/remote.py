"""A reward that an HTTP endpoint gives."""

import asyncio
import re
from collections.abc import Mapping
from copy import copy
from typing import Any

from trl_ext.errors import UserError
from trl_ext.rewards.coroutine_object import CoroutineObject
from trl_ext.rewards.endpoint import Endpoint
from trl_ext.rewards.endpoint_batches import EndpointBatches
from trl_ext.rewards.endpoint_errors import EndpointError
from trl_ext.rewards.options import check_count, check_flag, check_number, check_seconds, shown
from trl_ext.rewards.results import Unscored
from trl_ext.rewards.text import Completion

_CHECK_TIMEOUT = 10.0  # seconds
_AT_START = "(asked at start; check: false leaves that out)"
_TAKEN = ("prompts", "completions")
_HEADER = re.compile(r"[A-Za-z0-9-]+")


class RemoteReward(CoroutineObject):
    """Asks an HTTP endpoint; a coroutine function, so TRL asks it while other such rewards are being awaited.

    Each request is a POST of JSON, `{"prompts": [...], "completions": [...]}` and a list for each of `columns`, with at
    most `batch_size` entries. The answer is JSON with a number, or null, for each of them: `{"rewards": [0.5, null]}`.

    A request is repeated after a lost connection, a time-out, or a status 429, 500, 502, 503 or 504, `retries` times,
    after 0, 2, 4, 8 ... times `backoff` seconds or what `Retry-After` says, but no longer than `timeout`. An endpoint
    must give a repeated request the same answer. Redirections are not followed.

    A request that fails costs its own completions their rewards: NaN, which `CheckedReward` counts as failures. After a
    status 400, 413, 422 or 500, or an answer that cannot be used, they are asked about one by one; of an answer with a
    NaN or a text in its list that entry alone fails. Four requests, or a whole batch asked one by one, without a
    success, or a status 401, 403, 404 or 405, end the call.

    Connections are made on the first call in a process, so the object pickles.

    Args:
        url: `http://` or `https://`.
        timeout: seconds for the connection, and between two packets of an answer.
        retries: how often a request is repeated, at least 0.
        backoff: seconds, at least 0.
        concurrency: requests at once, at least 1.
        batch_size: completions in a request, at least 1.
        headers: names and values of further headers; no message shows the values.
        response_key: where the answer has the list; `None` where it is the list.
        token_env: an environment variable that holds a token, sent as `Authorization: Bearer ...`. The token itself is
            not kept, so it is in no pickle and in no configuration.
        columns: dataset columns to send, lists of what JSON can hold.
        deadline: seconds for a whole call, retries included.
        check: whether the endpoint is asked about a sample completion when the reward is made. With `columns`, for
            which it has no values, it only has to answer, with any status but 401, 403, 404 and 405.
    Raises:
        UserError: options that make no sense, or an endpoint that is down at start.
        EndpointError: on a call without a single answer; the one line names the URL, without password and query, and
            the cause.
    """

    __name__ = "remote"

    def __init__(
        self,
        url: str,
        timeout: float = 30.0,
        retries: int = 3,
        backoff: float = 0.5,
        concurrency: int = 8,
        batch_size: int = 16,
        headers: dict[str, str] | None = None,
        response_key: str | None = "rewards",
        token_env: str | None = None,
        columns: list[str] | None = None,
        deadline: float = 240.0,
        check: bool = True,
    ) -> None:
        if check_number("remote", "backoff", backoff) < 0:
            raise UserError(f"remote needs a backoff of at least 0 seconds, not {backoff}")
        if response_key is not None and (not isinstance(response_key, str) or not response_key):
            raise UserError(f"remote needs a text for response_key, e.g. rewards, not {shown(response_key)}")
        self.batch_size = check_count("remote", "batch_size", batch_size, minimum=1)
        self.concurrency = check_count("remote", "concurrency", concurrency, minimum=1)
        self.deadline = check_seconds("remote", "deadline", deadline)
        self.columns = _check_columns(columns)
        self.endpoint = Endpoint(
            url,
            timeout=check_seconds("remote", "timeout", timeout),
            retries=check_count("remote", "retries", retries, minimum=0),
            backoff=float(backoff),
            connections=self.concurrency,
            headers=_check_headers(headers),
            response_key=response_key,
            token_env=token_env,
        )
        self._free: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        if check_flag("remote", "check", check):
            self._check()

    async def __call__(self, prompts: list, completions: list[Completion], **kwargs: Any) -> list[float | None]:
        fields = {"prompts": prompts, "completions": completions, **self._columns(kwargs, len(completions))}
        return await EndpointBatches(self.endpoint, fields, self.batch_size, self._free_requests()).ask(self.deadline)

    def _free_requests(self) -> asyncio.Semaphore:
        """One for all calls on an event loop."""
        loop = asyncio.get_running_loop()
        if self._free is None or self._free[0] is not loop:
            self._free = loop, asyncio.Semaphore(self.concurrency)
        return self._free[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_free": None}

    def _columns(self, kwargs: dict[str, Any], count: int) -> dict[str, list]:
        for column in self.columns:
            if not isinstance(kwargs.get(column), list | tuple) or len(kwargs[column]) != count:
                raise UserError(f"remote needs the dataset column '{column}': add it, or take it out of columns")
        return {column: list(kwargs[column]) for column in self.columns}

    def _check(self) -> None:
        sample: dict[str, list] = {
            "prompts": ["Say hello."],
            "completions": ["Hello!"],
            **{column: [None] for column in self.columns},
        }
        hasty = copy(self.endpoint)  # one that answers nobody would hold up the start for minutes
        hasty.timeout, hasty.retries = min(hasty.timeout, _CHECK_TIMEOUT), min(hasty.retries, 1)
        try:
            (reward,) = hasty.ask(sample)
        except EndpointError as error:
            if self.columns and error.status not in (None, 401, 403, 404, 405):
                return
            raise UserError(f"{error} {_AT_START}") from error
        if isinstance(reward, Unscored) and not self.columns:
            raise UserError(f"{reward.reason} {_AT_START}")


def _check_columns(columns: Any) -> list[str]:
    if columns is None:
        return []
    if not isinstance(columns, list | tuple) or not all(isinstance(column, str) and column for column in columns):
        raise UserError(f"remote needs a list of column names, e.g. columns: [solution], not {shown(columns)}")
    for column in columns:
        if column in _TAKEN:
            raise UserError(f"remote sends {column} anyway: take it out of columns")
    return list(columns)


def _check_headers(headers: Any) -> dict[str, str]:
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise UserError("remote needs a mapping for headers, e.g. headers: {X-Team: rewards}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UserError(f"remote needs texts for headers, that of {shown(name)} is none: quote it")
        if not _HEADER.fullmatch(name) or not value.isascii() or not value.isprintable():
            raise UserError(f"remote cannot send the header {shown(name)}: write ASCII letters without line breaks")
    return dict(headers)
