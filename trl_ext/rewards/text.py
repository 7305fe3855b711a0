"""The text of prompts and completions, whichever form TRL hands them over in."""

import re

Completion = str | list[dict]

# Letters of scripts that put no space between words (Han, kana, Thai, Lao, Myanmar, Khmer), and the signs and
# punctuation that belong to the letter before them.
_LETTERS = (
    "\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
    "\u0e01-\u0e30\u0e32\u0e33\u0e40-\u0e46\u0e81-\u0eb0\u0eb2\u0eb3\u0ec0-\u0ec6\u1000-\u102a\u1780-\u17b3"
)
_SIGNS = (
    "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u102b-\u103e\u17b4-\u17d3"
    "\u3001-\u303f\uff01-\uff0f\uff1a-\uff20"
)
_UNSPACED = re.compile(f"[{_LETTERS}]")
_WORDS = re.compile(f"[{_LETTERS}][{_SIGNS}]*|[^\\s{_LETTERS}]+")


def completion_text(completion: Completion) -> str:
    """A string as it is; of a list of messages what the assistant wrote, one message a line.

    Tool results and other roles are left out: a reward judges what the policy wrote. A message without text (a bare
    tool call, `content` is `None`) adds nothing; of a list of content blocks the text blocks count.
    """
    if isinstance(completion, str):
        return completion
    written = [_message_text(message) for message in completion if message.get("role", "assistant") == "assistant"]
    return "\n".join(text for text in written if text)


def words_of(text: str) -> list[str]:
    """What stands between white space; in Chinese, Japanese, Thai and others, which write no spaces between words, each
    letter for itself."""
    if not text.isascii() and _UNSPACED.search(text):
        return _WORDS.findall(text)
    return text.split()


def prompt_text(prompt: str | list[dict]) -> str:
    """A string as it is; of a conversation its last message, whoever wrote it."""
    if isinstance(prompt, str):
        return prompt
    return _message_text(prompt[-1]) if prompt else ""


def _message_text(message: dict) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join((block if isinstance(block, str) else block.get("text")) or "" for block in content)
