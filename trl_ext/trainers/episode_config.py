from dataclasses import dataclass, field
from typing import Literal

from trl import GRPOConfig

from ..errors import UserError


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
        self._check_episodes()
        if self.max_episode_turns is not None:
            self.max_tool_calling_iterations = self.max_episode_turns - 1
        super().__post_init__()

    def _check_episodes(self):
        for name, least in (("max_episode_len", 1), ("max_episode_turns", 1), ("max_tool_answer", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"{name}={value}: must be at least {least}.")
        if self.tool_timeout is not None and not self.tool_timeout > 0:
            raise UserError(f"tool_timeout={self.tool_timeout}: must be above 0 seconds, or None.")
        if self.tool_errors not in ("end", "tell"):
            raise UserError(f"tool_errors={self.tool_errors!r}: use 'end' or 'tell'.")
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
