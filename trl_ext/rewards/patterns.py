"""Regular expressions of the user: checked when a reward is made, and searched with a time limit."""

from typing import Any

from trl_ext.errors import UserError
from trl_ext.rewards.options import check_seconds, shown


class TimedPattern:
    """A regular expression in the syntax of the package `regex`, which is that of `re` and more.

    A pattern such as `(a|aa)+$` takes exponential time on some texts, inside a single call that Python cannot
    interrupt. `regex` looks at the clock itself, now and then: expect up to three times the limit on a busy machine.

    Args:
        reward: name of the reward, for messages.
        pattern: the expression; give options inside it, e.g. `(?i)` for either case, `(?s)` where `.` is any character.
        timeout: processor time for one text, seconds above 0.
    Raises:
        UserError: no pattern, or one that cannot be compiled, with the position in it (the first character is 0).
        TimeoutError: on a call; the message names the pattern and the start of the text.
    """

    def __init__(self, reward: str, pattern: str, timeout: float) -> None:
        import regex  # here, because naming rewards must stay quick

        if not isinstance(pattern, str) or not pattern:
            raise UserError(f"{reward} needs a regular expression for pattern, in quotes, not {shown(pattern)}")
        self.reward, self.pattern = reward, pattern
        self.timeout = check_seconds(reward, "timeout", timeout)
        try:
            self._compiled = regex.compile(pattern)
            self._at_end = regex.compile(rf"(?:{pattern})\Z")
        except regex.error as error:
            raise UserError(f"{reward} cannot read the pattern {shown(pattern)}: {error}") from error
        except (RecursionError, OverflowError) as error:
            raise UserError(f"{reward} cannot read the pattern {shown(pattern)}: it is nested too deeply") from error

    def search(self, text: str) -> bool:
        return self._matches(self._compiled.search, text)

    def fullmatch(self, text: str) -> bool:
        return self._matches(self._compiled.fullmatch, text)

    def ends(self, text: str) -> bool:
        """Whether a match reaches the end of `text`."""
        return self._matches(self._at_end.search, text)

    def _matches(self, method: Any, text: str) -> bool:
        try:
            return method(text, timeout=self.timeout) is not None
        except TimeoutError:
            raise TimeoutError(
                f"{self.reward}: the pattern {shown(self.pattern)} took longer than {self.timeout:g} s "
                f"on the text that starts with {shown(text)}"
            ) from None
