"""What a completion's reward is compared with, where that is one number a completion."""

from typing import Any

import torch

from ..functional import against_the_batch, against_the_mean, leave_one_out


class GroupBaseline:
    """Advantages of completions from their rewards, the same on every process, which all see all rewards.

    * `loo`: the mean of the prompt's other completions (RLOO, https://huggingface.co/papers/2402.14740).
    * `mean`: the mean of all the prompt's completions, itself included, as in GRPO.
    * `ema`: a moving average of the mean reward of the batches before (REINFORCE's reinforcement baseline, Williams
      1992), for one completion a prompt. It is corrected for its start as Adam's moments are; the first batch is
      compared with itself, leaving one out.
    * `greedy`: the reward of the prompt's greedy completion (self-critical, https://huggingface.co/papers/1612.00563).

    A completion that has nothing to be compared with (its siblings could not be scored, or its greedy completion could
    not) is compared with the other completions of the batch.
    """

    def __init__(self, kind: str, ema_decay: float) -> None:
        self.kind, self._decay = kind, ema_decay
        self._sum, self._weight = 0.0, 0.0  # of the moving average, not corrected yet

    def advantages(self, rewards: torch.Tensor, greedy: torch.Tensor | None, training: bool) -> torch.Tensor:
        """
        Args:
            rewards: `(num_prompts, num_generations)`; NaN marks an unscorable completion.
            greedy: `(num_prompts, num_generations)`, the reward of each prompt's greedy completion; for `greedy` alone.
            training: whether the moving average learns from these rewards.
        """
        if self.kind == "ema":
            average = self.average
            if training:
                self._learn(rewards)
            return against_the_batch(rewards) if average is None else (rewards - average).nan_to_num(0.0)
        if self.kind == "greedy":
            assert greedy is not None
            advantages, alone = (rewards - greedy).nan_to_num(0.0), greedy.isnan()
        elif rewards.size(1) == 1:  # an evaluation with one completion a prompt
            return torch.zeros_like(rewards)
        else:
            advantages = leave_one_out(rewards) if self.kind == "loo" else against_the_mean(rewards)
            alone = ((~rewards.isnan()).sum(1, keepdim=True) == 1).expand_as(rewards)
        return torch.where(alone, against_the_batch(rewards), advantages)

    @property
    def average(self) -> float | None:
        """The moving average; `None` before the first batch."""
        return self._sum / self._weight if self._weight else None

    def _learn(self, rewards: torch.Tensor) -> None:
        mean = rewards.nanmean().item()
        if mean == mean:  # not NaN: some completion was scorable
            self._sum = self._decay * self._sum + (1 - self._decay) * mean
            self._weight = self._decay * self._weight + (1 - self._decay)

    def state_dict(self) -> dict[str, Any]:
        return {"sum": self._sum, "weight": self._weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sum, self._weight = float(state["sum"]), float(state["weight"])
