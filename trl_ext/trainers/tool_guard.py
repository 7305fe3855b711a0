"""Tools that raise, loop for ever or answer with megabytes: the episode ends with a named reason, never the run."""

import asyncio
import inspect
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from ..rewards.time_limit import TimeLimitError, call_within

logger = logging.getLogger(__name__)
REASONS = ("raised", "timed_out", "too_long")
_GRACE = 1.0  # seconds that a coroutine has to end when it is cancelled
_SHOWN = 300  # characters of a tool's message in the log


class EpisodeEnd(str):
    """Stands for a tool's answer: `str` of it is itself, so that it gets through TRL's loop."""

    def __str__(self) -> str:
        return self


class ToolError(Exception):
    """What a tool raised, with a text that can be told to the policy."""


class ToolGuard:
    """Wraps the tools of a batch of episodes.

    A call whose arguments do not fit the tool is the policy's mistake: it is told so, as TRL does, whatever `errors`.

    Args:
        timeout: seconds a call may take; None: any.
        longest: characters an answer may have.
        errors: `"end"`: what a tool raises ends the episode; `"tell"`: it is told to the policy.
        images: whether answers may be blocks of content, for a model that sees; else their texts are joined.

    Attributes:
        ended: episode -> one of `REASONS`.
    """

    def __init__(self, timeout: float | None, longest: int, errors: str, images: bool = False) -> None:
        self.timeout, self.longest, self.errors, self.images = timeout, longest, errors, images
        self.ended: dict[int, str] = {}
        self._reported: set[tuple[str, str]] = set()
        self._loop: _Loop | None = None

    def plain(self, episode: int, tools: dict[str, Callable]) -> dict[str, Callable]:
        """The tools of that episode that are functions or methods, guarded."""

        def guarded(name: str, tool: Callable) -> Callable:
            def call(**arguments: Any) -> Any:
                if episode in self.ended:
                    return EpisodeEnd()
                inspect.signature(tool).bind(**arguments)
                process = os.getpid()
                with _ctrl_c() as pressed:
                    try:
                        return call_within(self.timeout, lambda: self._checked(tool(**arguments)))
                    except BaseException as error:  # SystemExit too: a tool must not end the run
                        if isinstance(error, KeyboardInterrupt) and pressed:
                            raise
                        if os.getpid() != process:  # a child that the tool forked: it must not go on training
                            os._exit(1)
                        return self._failed(episode, name, error)

            return call

        return {name: guarded(name, tool) for name, tool in tools.items()}

    def coroutines(self, episode: int, tools: dict[str, Callable]) -> dict[str, Callable]:
        """The tools of that episode that are coroutine functions, guarded."""

        def guarded(name: str, tool: Callable) -> Callable:
            async def run(arguments: dict) -> Any:
                if episode in self.ended:
                    return EpisodeEnd()
                try:
                    return await self._within(tool, arguments)
                except BaseException as error:  # the tool's own: nobody cancels TRL's loop
                    return self._failed(episode, name, error)

            def call(**arguments: Any) -> Any:
                inspect.signature(tool).bind(**arguments)
                return run(arguments)

            return call

        return {name: guarded(name, tool) for name, tool in tools.items()}

    def _checked(self, answer: Any) -> Any:
        """The answer as TRL takes it, a text or content blocks; within the time limit, as `__str__` may do anything."""
        blocks = (
            isinstance(answer, list) and answer and all(isinstance(part, dict) and "type" in part for part in answer)
        )
        if blocks and self.images:
            answer = [
                {**part, "text": _encodable(part["text"])} if isinstance(part.get("text"), str) else part
                for part in answer
            ]
            size = sum(len(part["text"]) for part in answer if isinstance(part.get("text"), str))
        else:  # a template of texts cannot render blocks
            text = "".join(str(part.get("text", part)) for part in answer) if blocks else str(answer)
            answer = _encodable(text)
            size = len(answer)
        if size > self.longest:
            raise _TooLongError(f"answered with {size} characters, max_tool_answer is {self.longest}")
        return answer

    def _failed(self, episode: int, name: str, error: BaseException) -> EpisodeEnd:
        reason = (
            "timed_out" if type(error) is TimeLimitError else "too_long" if type(error) is _TooLongError else "raised"
        )
        message = _text_of(error)
        if reason == "raised" and self.errors == "tell":
            if len(message) <= self.longest:
                raise ToolError(message)
            reason = "too_long"
        if (reason, name) not in self._reported:  # once: a broken tool fails in every episode
            self._reported.add((reason, name))
            shown = " ".join(message[:_SHOWN].split())
            logger.warning(
                "tool %r ended an episode (tools/ended/%s): %s: %s", name, reason, type(error).__name__, shown
            )
        self.ended[episode] = reason
        return EpisodeEnd()

    # Coroutines run in a loop of their own, beside TRL's: one that is late is left behind with its thread ---------

    async def _contained(self, tool: Callable, arguments: dict, ended: Future) -> tuple[Any, BaseException | None]:
        try:
            return self._checked(await tool(**arguments)), None
        except BaseException as error:  # SystemExit would end the thread of the loop, CancelledError look like ours
            return None, error
        finally:
            ended.set_result(None)

    async def _within(self, tool: Callable, arguments: dict) -> Any:
        if self._loop is None:
            self._loop = _Loop()
        loop, ended = self._loop, Future[None]()
        try:
            answer, error = await asyncio.wait_for(loop.start(self._contained(tool, arguments, ended)), self.timeout)
        except TimeoutError:
            await asyncio.wait([asyncio.wrap_future(ended)], timeout=_GRACE)
            # What blocks, or swallows that it is cancelled, may do so later: no new call there. Else the loop stays,
            # since what tools keep (a session, a semaphore) is bound to it.
            if not ended.done() and self._loop is loop:
                self._loop = None
            raise TimeLimitError(f"took longer than {self.timeout:g} s") from None
        finally:
            loop.running -= 1
            if loop is not self._loop and loop.running == 0:
                loop.stop()
        if error is not None:
            raise error
        return answer


class _Loop:
    """An event loop in a thread of its own.

    Attributes:
        running: calls that somebody waits for.
    """

    def __init__(self) -> None:
        self._loop, self.running = asyncio.new_event_loop(), 0
        threading.Thread(target=self._loop.run_forever, name="trl_ext tools", daemon=True).start()

    def start(self, coroutine: Any) -> asyncio.Future:
        self.running += 1
        future: Future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return asyncio.wrap_future(future)

    def stop(self) -> None:
        """When all its tasks have ended, which one that swallows its cancellation may never do."""
        asyncio.run_coroutine_threadsafe(self._wind_up(), self._loop)

    async def _wind_up(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)
        self._loop.stop()


@contextmanager
def _ctrl_c() -> Iterator[list[int]]:
    """Gives a list that is empty as long as nobody interrupted the process: a tool can raise what that raises."""
    before = signal.getsignal(signal.SIGINT)
    pressed: list[int] = []
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield pressed  # in other threads, or where the signal is ignored, nobody else raises it
        return

    def interrupted(number: int, frame: Any) -> None:
        pressed.append(number)
        before(number, frame)

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield pressed
    finally:
        if signal.getsignal(signal.SIGINT) is interrupted:  # else the tool set another
            signal.signal(signal.SIGINT, before)


class _TooLongError(Exception):
    """More characters than allowed."""


def _text_of(error: BaseException) -> str:
    with _ctrl_c() as pressed:
        try:
            return call_within(1.0, lambda: _encodable(str(error)))
        except BaseException as own:  # an error whose own text raises, SystemExit too
            if isinstance(own, KeyboardInterrupt) and pressed:
                raise
            return type(error).__name__


def _encodable(text: str) -> str:
    """Without halves of surrogate pairs, which no tokenizer takes."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
