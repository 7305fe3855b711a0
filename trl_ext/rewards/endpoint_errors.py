"""What went wrong between us and an endpoint, in words that hold no secret."""

from trl_ext.errors import UserError


class EndpointError(UserError):
    """An endpoint gave no rewards. Asking again, one completion at a time, would make it worse.

    Attributes:
        status: of the answer; `None` where there was none.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple:
        return EndpointError, (str(self), self.status)


def cause_of(error: BaseException, timeout: float) -> str:
    """The reason behind an exception of `requests`, whose own text repeats the URL with password and query."""
    import requests
    from urllib3.exceptions import NameResolutionError, ReadTimeoutError

    causes = _chain(error)
    if any(isinstance(cause, requests.ConnectTimeout) for cause in causes):
        return f"no connection within {timeout:g} s"
    if any(isinstance(cause, requests.ReadTimeout | ReadTimeoutError) for cause in causes):
        return f"no answer within {timeout:g} s"
    if any(isinstance(cause, NameResolutionError) for cause in causes):
        return "its host is unknown"
    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate cannot be verified, or it speaks no TLS"
    if isinstance(error, requests.exceptions.ProxyError):
        return "the proxy cannot be reached"
    for cause in reversed(causes):
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
    return f"the connection broke ({type(causes[-1]).__name__})"


def _chain(error: BaseException) -> list[BaseException]:
    """An exception and those inside of it, outermost first: `requests` keeps them in arguments and reasons."""
    found: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, BaseException) and all(one is not other for other in found):
            found.append(one)
            waiting += [*one.args, getattr(one, "reason", None), one.__cause__, one.__context__]
    return found
