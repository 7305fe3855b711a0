import os
from dataclasses import dataclass, field, fields
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
from trl import GRPOConfig

from ..configuration.values import describe, fit
from ..errors import UserError

_PLAIN = {int, float, bool, type(None)}
LONGEST_TIMEOUT = 1e6  # seconds; timers take no more than some such number


@dataclass
class EpisodeConfig(GRPOConfig):
    """GRPO's options and those of episodes of several turns: how long they are, and what a broken tool may do.

    A turn is one run of the policy's own tokens. `max_completion_length` is the longest turn; without
    `max_episode_len` it is that of the whole episode too, as in TRL. `loss_type="dr_grpo"` divides by
    `max_completion_length` in either case.
    """

    max_episode_len: int | None = field(
        default=None,
        metadata={
            "help": "Most tokens of an episode after its prompt, answers of tools included. None: "
            "max_completion_length, as in TRL; a rollout_func is not cut then."
        },
    )
    max_episode_turns: int | None = field(
        default=None,
        metadata={"help": "Most turns of an episode: max_tool_calling_iterations + 1. None: any number."},
    )
    tool_errors: Literal["end", "tell"] = field(
        default="end",
        metadata={
            "help": "'end': what a tool raises ends its episode. 'tell': it is told to the policy, as TRL does. A "
            "time-out and an answer that is too long end it always."
        },
    )
    tool_timeout: float | None = field(
        default=30.0, metadata={"help": "Seconds after which a call of a tool ends its episode. None: never."}
    )
    max_tool_answer: int = field(
        default=100_000, metadata={"help": "Characters; a longer answer of a tool ends its episode."}
    )

    def __post_init__(self):
        self._check_types()
        self._check_episodes()
        if self.max_episode_turns is not None:
            self.max_tool_calling_iterations = self.max_episode_turns - 1
        super().__post_init__()

    def _check_types(self):
        """Of all choices, numbers and switches, and of the other options that are not TRL's. A word that spells a
        number becomes it, and so does one of NumPy's."""
        hints, theirs = get_type_hints(type(self)), {each.name for each in fields(GRPOConfig)}
        for name in (each.name for each in fields(self)):
            value, choices = getattr(self, name), get_args(hints[name])
            if isinstance(value, np.generic | np.ndarray):
                value = value.tolist()
                setattr(self, name, value)
            if get_origin(hints[name]) is Literal:
                if value not in choices:
                    names = ", ".join(map(repr, choices[:-1]))
                    raise UserError(f"{name}={value!r}: use {names} or {choices[-1]!r}.")
            elif name != "stop_token" and (
                name not in theirs or name == "reward_weights" or set(choices or [hints[name]]) <= _PLAIN
            ):
                value = os.fspath(value) if isinstance(value, os.PathLike) else value
                try:
                    setattr(self, name, fit(value, hints[name]))
                except (ValueError, TypeError, OverflowError):
                    raise UserError(f"{name} expects {describe(hints[name])}, got {getattr(self, name)!r}.") from None

    def _check_episodes(self):
        for name in ("max_episode_len", "max_episode_turns", "max_tool_answer"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name}={value}: must be at least 1.")
        if self.tool_timeout is not None and not 0 < self.tool_timeout <= LONGEST_TIMEOUT:
            raise UserError(
                f"tool_timeout={self.tool_timeout}: must be above 0 and at most {LONGEST_TIMEOUT:g} seconds, or None."
            )
        if self.max_episode_len is not None and self.max_episode_len < self.max_completion_length:
            raise UserError(
                f"max_episode_len={self.max_episode_len} is less than one turn may take: set max_completion_length "
                f"(it is {self.max_completion_length}) to that or less."
            )
        iterations, turns = self.max_tool_calling_iterations, self.max_episode_turns
        if turns is not None and iterations not in (None, turns - 1):
            raise UserError(
                f"max_episode_turns={turns} contradicts max_tool_calling_iterations={iterations}, which allows "
                f"{iterations + 1} turns: set one of them."
            )
