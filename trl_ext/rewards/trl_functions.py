"""TRL's own reward functions, found when asked for: importing TRL takes seconds."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from trl_ext.errors import UserError
from trl_ext.rewards.text import Completion


class MessagesReward:
    """`func` reads completions as lists of messages; a plain string reaches it as one message of the assistant."""

    def __init__(self, func: Callable) -> None:
        self.func = func
        self.__name__ = func.__name__

    def __call__(self, prompts: list, completions: list[Completion], **kwargs: Any) -> list[float | None]:
        messages = [[{"role": "assistant", "content": c}] if isinstance(c, str) else c for c in completions]
        return self.func(prompts=prompts, completions=messages, **kwargs)


def think_format() -> Callable:
    from trl.rewards import think_format_reward

    return MessagesReward(think_format_reward)


def accuracy() -> Callable:
    """Raises `UserError` where math_verify is missing: TRL would say so only at the first step."""
    if find_spec("math_verify") is None:
        raise UserError("accuracy_reward needs the package math_verify: pip install math-verify")
    from trl.rewards import accuracy_reward

    return MessagesReward(accuracy_reward)


class _SoftOverlong:
    """TRL's function, with a line for who has no token ids."""

    def __init__(self, max_completion_len: int, soft_punish_cache: int) -> None:
        from trl.rewards import get_soft_overlong_punishment

        self._arguments = max_completion_len, soft_punish_cache
        self.func = get_soft_overlong_punishment(max_completion_len, soft_punish_cache)
        self.__name__ = self.func.__name__

    def __reduce__(self) -> tuple:  # TRL's is a closure
        return _SoftOverlong, self._arguments

    def __call__(self, prompts: list, completions: list, completion_ids: Any = None, **kwargs: Any) -> list[float]:
        if completion_ids is None:
            raise UserError("get_soft_overlong_punishment counts tokens, and needs completion_ids")
        return self.func(completion_ids=completion_ids, **kwargs)


def soft_overlong(max_completion_len: int, soft_punish_cache: int) -> Callable:
    return _SoftOverlong(max_completion_len, soft_punish_cache)
