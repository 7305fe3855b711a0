"""The preference ending: does a text end as asked?"""

from typing import Any

from trl_ext.errors import UserError
from trl_ext.rewards.options import check_flag, check_number, check_texts, shown
from trl_ext.rewards.patterns import TimedPattern
from trl_ext.rewards.text import Completion, completion_text

SENTENCE = "sentence"
_MARKS = tuple(".!?…。！？؟।")  # noqa: RUF001
# Quotation marks close in one language what they open in another: all count.
_CLOSING = "\"'”“’‘»«›‹」』)]）"  # noqa: RUF001


class EndingReward:
    """`match` where a completion ends as asked, `otherwise` where it does not. White space at the end does not count.

    Args:
        endings: one of
            * `"sentence"` (default): a full stop, question or exclamation mark (also an ellipsis, and the marks of
              Chinese, Arabic and Hindi), behind which quotation marks and brackets may close
            * a list of texts, e.g. `["Thank you.", "Goodbye!"]`: the last characters are one of them
            * `{pattern: ...}`: a regular expression of which a match reaches the end
        case_sensitive: whether a list's "The End" is another ending than "the end"; default true.
        match, otherwise: the two values; default 1 and 0.
        timeout: seconds a regular expression may take for one completion; default 1.
    Raises:
        UserError: endings that are none of these, a pattern that cannot be read, or values that are no numbers.
        TimeoutError: on a call; the regular expression took longer than `timeout`.
    """

    __name__ = "ending"

    def __init__(
        self,
        endings: str | list[str] | dict[str, str] = SENTENCE,
        case_sensitive: bool = True,
        match: float = 1.0,
        otherwise: float = 0.0,
        timeout: float = 1.0,
    ) -> None:
        self.case_sensitive = check_flag("ending", "case_sensitive", case_sensitive)
        self.match = check_number("ending", "match", match)
        self.otherwise = check_number("ending", "otherwise", otherwise)
        self._pattern: TimedPattern | None = None
        self._endings: tuple[str, ...] = ()
        if isinstance(endings, dict) and set(endings) == {"pattern"}:
            self._pattern = TimedPattern("ending", endings["pattern"], timeout)
        elif isinstance(endings, list | tuple):
            texts = check_texts("ending", "endings", endings, '["Thank you."]')
            self._endings = tuple(self._cased(text).rstrip() for text in texts)
        elif endings != SENTENCE:
            raise UserError(
                'ending needs for endings "sentence", a list such as ["Thank you."], or {pattern: "[0-9]+"}, '
                f"not {shown(endings)}"
            )

    def __call__(self, prompts: list, completions: list[Completion], **kwargs: Any) -> list[float]:
        texts = [completion_text(completion).rstrip() for completion in completions]
        return [self.match if self._ends(text) else self.otherwise for text in texts]

    def _ends(self, text: str) -> bool:
        if self._pattern is not None:
            return self._pattern.ends(text)
        if self._endings:
            return self._cased(text).endswith(self._endings)
        return text.rstrip(_CLOSING).rstrip().endswith(_MARKS)  # French puts a space before a closing mark

    def _cased(self, text: str) -> str:
        return text if self.case_sensitive else text.casefold()
