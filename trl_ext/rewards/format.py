"""Is a completion in the form asked for: tags, or a regular expression?"""

import re
from typing import Any

from trl_ext.errors import UserError
from trl_ext.rewards.options import check_flag, check_number, check_texts, shown
from trl_ext.rewards.patterns import TimedPattern
from trl_ext.rewards.text import Completion, completion_text

_TAG = re.compile(r"\w[\w.:-]*")


class TagsReward:
    """1 where `<tag>...</tag>` stands exactly once for each tag, in the order given and none inside another, else 0.

    A tag opens and closes once, without attributes, in the case given; what stands inside may be empty.

    Args:
        tags: names without angle brackets; default `["think", "answer"]`.
        only_tags: whether text outside of the tags is a fault (white space is none); default false.
        partial: whether to give the share of conditions that hold instead of 0; default false. The conditions are one
            for each tag (once, and closed behind its opening), one for the order of several tags, and one for
            `only_tags`; the order counts only where all tags are there, `only_tags` only where the order is right.
    Raises:
        UserError: no tags, the same one twice, or one that is no name.
    """

    __name__ = "tags"

    def __init__(self, tags: list[str] | None = None, only_tags: bool = False, partial: bool = False) -> None:
        self.tags = check_texts("tags", "tags", ["think", "answer"] if tags is None else tags, "[think, answer]")
        for tag in self.tags:
            if not _TAG.fullmatch(tag):
                raise UserError(f"tags needs names without brackets, e.g. think for <think>, not {shown(tag)}")
        self.only_tags = check_flag("tags", "only_tags", only_tags)
        self.partial = check_flag("tags", "partial", partial)
        self._marks = [(f"<{tag}>", f"</{tag}>") for tag in self.tags]

    def __call__(self, prompts: list, completions: list[Completion], **kwargs: Any) -> list[float]:
        return [self._score(completion_text(completion)) for completion in completions]

    def _score(self, text: str) -> float:
        spans = [span for opening, closing in self._marks if (span := _span(text, opening, closing))]
        conditions = len(self.tags) + (len(self.tags) > 1) + self.only_tags
        held = len(spans)
        if len(spans) == len(self.tags):
            ends = [0, *(end for _, end in spans)]
            starts = [*(start for start, _ in spans), len(text)]
            if all(end <= start for end, start in zip(ends, starts, strict=True)):
                held += len(self.tags) > 1
                held += self.only_tags and not any(
                    text[end:start].strip() for end, start in zip(ends, starts, strict=True)
                )
        return held / conditions if self.partial else float(held == conditions)


def _span(text: str, opening: str, closing: str) -> tuple[int, int] | None:
    """From where a tag opens to behind where it closes; `None` unless both are there exactly once, in this order."""
    if text.count(opening) != 1 or text.count(closing) != 1:
        return None
    start, end = text.find(opening), text.find(closing)
    return (start, end + len(closing)) if start < end else None


class RegexReward:
    """`match` where a regular expression is found in a completion, `otherwise` where it is not.

    Args:
        pattern: in the syntax of the package `regex`, which is that of `re` and more; options stand inside it, e.g.
            `(?i)` for either case, `(?s)` where `.` is any character.
        full_match: whether all of the completion must match, white space at its ends included; default false.
        match, otherwise: the two values; default 1 and 0.
        timeout: seconds of processor time for one completion; default 1.
        on_timeout: where a completion takes longer: `"raise"` (default), which counts as a failure of the reward;
            a number in its place; or `"none"` (also null), which says that the reward does not apply.
    Raises:
        UserError: a pattern that cannot be read, with the position in it, or another option that makes no sense.
        TimeoutError: on a call, with `on_timeout="raise"`.
    """

    __name__ = "regex"

    def __init__(
        self,
        pattern: str,
        full_match: bool = False,
        match: float = 1.0,
        otherwise: float = 0.0,
        timeout: float = 1.0,
        on_timeout: str | float | None = "raise",
    ) -> None:
        self.full_match = check_flag("regex", "full_match", full_match)
        self.match = check_number("regex", "match", match)
        self.otherwise = check_number("regex", "otherwise", otherwise)
        if isinstance(on_timeout, str) and on_timeout not in ("raise", "none"):
            raise UserError(f"regex needs 'raise', 'none' or a number for on_timeout, not {shown(on_timeout)}")
        self.on_timeout = on_timeout
        if on_timeout is not None and not isinstance(on_timeout, str):
            self.on_timeout = check_number("regex", "on_timeout", on_timeout)
        self._pattern = TimedPattern("regex", pattern, timeout)

    def __call__(self, prompts: list, completions: list[Completion], **kwargs: Any) -> list[float | None]:
        return [self._score(completion_text(completion)) for completion in completions]

    def _score(self, text: str) -> float | None:
        try:
            found = self._pattern.fullmatch(text) if self.full_match else self._pattern.search(text)
        except TimeoutError:
            if self.on_timeout == "raise":
                raise
            return self.on_timeout if isinstance(self.on_timeout, float) else None
        return self.match if found else self.otherwise
