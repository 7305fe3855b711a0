"""Tools that raise, loop for ever or answer with megabytes: the episode ends with a named reason, never the run."""

import asyncio
import inspect
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ..rewards.time_limit import TimeLimitError, call_within

logger = logging.getLogger(__name__)
REASONS = ("raised", "timed_out", "too_long")
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
        self._loop: asyncio.AbstractEventLoop | None = None

    def plain(self, episode: int, tools: dict[str, Callable]) -> dict[str, Callable]:
        """The tools of that episode that are functions or methods, guarded."""

        def guarded(name: str, tool: Callable) -> Callable:
            def call(**arguments: Any) -> Any:
                if episode in self.ended:
                    return EpisodeEnd()
                inspect.signature(tool).bind(**arguments)
                process = os.getpid()
                try:
                    return call_within(self.timeout, lambda: self._checked(tool(**arguments)))
                except KeyboardInterrupt:
                    raise
                except BaseException as error:  # SystemExit too: a tool must not end the run
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
                    return await self._within(self._contained(tool, arguments))
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

    # Coroutines run in a loop of their own, beside TRL's: one that blocks is left behind with its thread ----------

    async def _contained(self, tool: Callable, arguments: dict) -> tuple[Any, BaseException | None]:
        try:
            return self._checked(await tool(**arguments)), None
        except BaseException as error:  # SystemExit would end the thread of the loop, CancelledError look like ours
            return None, error

    async def _within(self, coroutine: Any) -> Any:
        loop = self._running_loop()
        future: Future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            answer, error = await asyncio.wait_for(asyncio.wrap_future(future), self.timeout)
        except TimeoutError:
            await self._replace_if_stuck(loop)
            raise TimeLimitError(f"took longer than {self.timeout:g} s") from None
        if error is not None:
            raise error
        return answer

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="trl_ext tools", daemon=True).start()
        return self._loop

    async def _replace_if_stuck(self, loop: asyncio.AbstractEventLoop) -> None:
        alive = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop)
        try:
            await asyncio.wait_for(asyncio.wrap_future(alive), 1.0)
        except TimeoutError:
            if self._loop is loop:
                self._loop = None


class _TooLongError(Exception):
    """More characters than allowed."""


def _text_of(error: BaseException) -> str:
    try:
        return call_within(1.0, lambda: _encodable(str(error)))
    except KeyboardInterrupt:
        raise
    except BaseException:  # an error whose own text raises, SystemExit too
        return type(error).__name__


def _encodable(text: str) -> str:
    """Without halves of surrogate pairs, which no tokenizer takes."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
