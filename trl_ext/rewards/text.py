"""The text of prompts and completions, whichever form TRL hands them over in."""

Completion = str | list[dict]


def completion_text(completion: Completion) -> str:
    """A string as it is; of a list of messages what the assistant wrote, one message a line.

    Tool results and other roles are left out: a reward judges what the policy wrote. A message without text (a bare
    tool call, `content` is `None`) adds nothing; of a list of content blocks the text blocks count.
    """
    if isinstance(completion, str):
        return completion
    written = [_message_text(message) for message in completion if message.get("role", "assistant") == "assistant"]
    return "\n".join(text for text in written if text)


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
