"""POSTs JSON to an HTTP endpoint that scores completions, again where it makes sense, and reads the answer."""

import json
import os
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from trl_ext.errors import UserError
from trl_ext.rewards.endpoint_errors import EndpointError, cause_of
from trl_ext.rewards.options import bound_of, is_number, shown
from trl_ext.rewards.results import Unscored

_LARGEST = 64 << 20  # bytes of an answer
_AGAIN = (429, 500, 502, 503, 504)


class Endpoint:
    """One URL; arguments are those of `RemoteReward`. Threads may share it."""

    def __init__(
        self,
        url: str,
        timeout: float,
        retries: int,
        backoff: float,
        connections: int,
        headers: dict[str, str],
        response_key: str | None,
        token_env: str | None,
    ) -> None:
        self.url, self.shown_url = url, _check_url(url)
        self.timeout, self.retries, self.backoff, self.connections = timeout, retries, backoff, connections
        self.headers, self.response_key, self.token_env = headers, response_key, token_env
        self._session: tuple[int, Any] | None = None
        self._lock = threading.Lock()
        self._authorization()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_session", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _session=None, _lock=threading.Lock())

    def ask(self, fields: dict[str, list]) -> list[float | None]:
        """The rewards of one request; `Unscored` for what is no number and not null.

        Raises:
            EndpointError: no usable answer, in one line.
            UserError: what JSON cannot hold, or a token that is gone.
        """
        import requests
        import urllib3

        try:
            body = json.dumps(fields, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise UserError(f"remote cannot send what JSON cannot hold: {error}") from error
        headers = {"Content-Type": "application/json", **self.headers, **self._authorization()}
        try:
            with self._connections().post(
                self.url, data=body, headers=headers, timeout=self.timeout, allow_redirects=False, stream=True
            ) as response:
                content = self._content(response)
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            # `from None`: the traceback of the original shows the URL with its secrets
            raise self._error(cause_of(error, self.timeout)) from None
        if response.status_code != 200:
            raise self._error(_status(response), response.status_code)
        return self._read(content, len(fields["completions"]))

    def _content(self, response: Any) -> bytes:
        """The whole answer, for which there is as much time as for the connection and the first packet."""
        content, end = b"", time.monotonic() + self.timeout
        while chunk := response.raw.read1(1 << 16, decode_content=True):  # what is there, without waiting for more
            content += chunk
            if time.monotonic() > end or len(content) > _LARGEST:
                raise self._error(f"its answer did not end within {self.timeout:g} s and {_LARGEST >> 20} MiB")
        return content

    def _read(self, content: bytes, count: int) -> list[float | None]:
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError):
            raise self._error("it answered no JSON", 200) from None
        if self.response_key is not None:
            if not isinstance(answer, dict) or self.response_key not in answer:
                found = f"the keys {shown(sorted(answer))}" if isinstance(answer, dict) else type(answer).__name__
                raise self._error(f"its answer has no '{self.response_key}' but {found}: set response_key", 200)
            answer = answer[self.response_key]
        if not isinstance(answer, list):
            raise self._error(f"it gave {type(answer).__name__} in place of a list of rewards", 200)
        if len(answer) != count:
            raise self._error(f"it gave {len(answer)} rewards for {count} completions", 200)
        return [self._reward(value) for value in answer]

    def _reward(self, value: Any) -> float | None:
        if value is None:
            return None
        if is_number(value):
            return float(value)
        return Unscored(
            str(self._error(f"it gave {shown(value)}{bound_of(value)} as a reward, no number and not null"))
        )

    def _error(self, cause: str, status: int | None = None) -> EndpointError:
        return EndpointError(f"remote: {self.shown_url} gives no rewards: {cause}", status)

    def _authorization(self) -> dict[str, str]:
        if self.token_env is None:
            return {}
        if not isinstance(self.token_env, str) or not self.token_env:
            raise UserError("remote needs the name of an environment variable for token_env, e.g. token_env: MY_TOKEN")
        token = os.environ.get(self.token_env, "").strip()
        if not token or not token.isascii() or not token.isprintable():
            # the name is not shown: somebody may have written the token itself
            raise UserError("remote finds no token in the environment variable that token_env names: export it first")
        return {"Authorization": f"Bearer {token}"}

    def _connections(self) -> Any:
        """Of this process: connections must not be shared with a fork."""
        with self._lock:
            if self._session is None or self._session[0] != os.getpid():
                self._session = os.getpid(), self._new_session()
            return self._session[1]

    def _new_session(self) -> Any:
        import requests
        from requests.adapters import HTTPAdapter

        from trl_ext.rewards.endpoint_retry import CappedRetry

        retry = CappedRetry(
            total=self.retries,
            status_forcelist=_AGAIN,
            allowed_methods=None,  # POST as well
            backoff_factor=self.backoff,
            backoff_max=self.timeout,
            raise_on_status=False,
            redirect=0,
        )
        session = requests.Session()
        if self.token_env is not None or any(name.lower() == "authorization" for name in self.headers):
            session.auth = lambda request: request  # else a password in ~/.netrc would take its place
        for scheme in ("http://", "https://"):
            session.mount(scheme, HTTPAdapter(pool_maxsize=self.connections, max_retries=retry))
        return session


def _check_url(url: Any) -> str:
    """The URL as messages may show it: without user, password, query and fragment."""
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        port = f":{parts.port}" if parts is not None and parts.port is not None else ""
    except ValueError:
        parts, port = None, ""
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(
            "remote needs a url that starts with http:// or https://, e.g. url: http://localhost:8000/score"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{port}{parts.path}"


def _status(response: Any) -> str:
    code = response.status_code
    if 300 <= code < 400:
        return f"it redirects (status {code}): write the address that it redirects to"
    advice = {401: ": set token_env or headers", 403: ": set token_env or headers", 404: ": correct the path"}
    return f"status {code} {response.reason or ''}".rstrip() + advice.get(code, "")
