"""Small changes of a completion that should not change its worth, and reasoning taken out of it."""

import re
from collections.abc import Callable, Mapping

from trl_ext.rewards.text import Completion, completion_text

_TAGS = "think|thinking|thought|reasoning|scratchpad"
_REASONING = re.compile(rf"<({_TAGS})>(.*?)</\1>", re.DOTALL | re.IGNORECASE)
_OPENED_BEFORE = re.compile(rf"\A()(.*?)</(?:{_TAGS})>", re.DOTALL | re.IGNORECASE)  # by the prompt
_MARKED_UP = re.compile(r"[<{\\]")  # tags, JSON and LaTeX: there upper case is another word


def _other_case(text: str) -> str | None:
    if _MARKED_UP.search(text):
        return None
    return text.lower() if text != text.lower() else text.upper()


# `None`: does not apply. What may pay (more text) is measured by how much it raises the reward, the rest by any change.
EDITS: dict[str, Callable[[str], str | None]] = {
    "whitespace": lambda text: text + "  \n",
    "case": _other_case,
    "appended": lambda text: f"{text.rstrip()} That is all.",
    "doubled": lambda text: f"{text.rstrip()} {text.lstrip()}",
}
PAYS = frozenset({"appended", "doubled"})
# In standard deviations of the reward, mean over the probes: more is told.
BOUNDS = {"whitespace": 0.1, "case": 0.5, "appended": 0.5, "doubled": 1.0}

LENGTH_PAYS = 0.7  # rank correlation of reward and length: half of the reward's order is that of the length


def bounds_for(measures: Mapping[str, float]) -> dict[str, float]:
    """`BOUNDS` of the edits that are judged. Of a measure of length, more text is more reward: that is told once, as
    such."""
    length_pays = measures.get("correlation/length", 0.0) > LENGTH_PAYS
    return {name: bound for name, bound in BOUNDS.items() if not (length_pays and name in PAYS)}


def edited(completion: Completion, edit: Callable[[str], str | None]) -> Completion:
    """With the text, or of messages the last one of the assistant, edited; as it is where the edit does not apply."""
    if isinstance(completion, str):
        text = edit(completion)
        return completion if text is None else text
    messages = list(completion)
    for i in range(len(messages) - 1, -1, -1):
        content = messages[i].get("content")
        if messages[i].get("role", "assistant") == "assistant" and isinstance(content, str):
            text = edit(content)
            if text is not None:
                messages[i] = {**messages[i], "content": text}
            break
    return messages


def reasoning_of(completion: Completion) -> str | None:
    """What stands in the first pair of reasoning tags, or before a closing one whose opening one stands in the prompt;
    `None` where there is no such or nothing in it."""
    found = _reasoning_in(completion_text(completion))
    return found[2] if found and found[2].strip() else None


def with_reasoning(completion: Completion, reasoning: str) -> Completion:
    """The same answer with another reasoning between the tags, which stay."""

    def replace(text: str) -> str:
        found = _reasoning_in(text)
        return text if found is None else text[: found.start(2)] + reasoning + text[found.end(2) :]

    return edited(completion, replace)


def _reasoning_in(text: str) -> re.Match | None:
    return _REASONING.search(text) or _OPENED_BEFORE.search(text)
