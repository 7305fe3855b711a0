"""The last completions of a run with what each reward function gave them."""

from collections import deque
from collections.abc import Sequence
from itertools import repeat

import numpy as np

from trl_ext.rewards.text import Completion

STEPS_KEPT = 128  # means and spreads of steps, for change points


class RewardWindow:
    """The last `size` completions, and for the last 128 steps the mean and the spread of the total.

    Memory is bounded by `size` completions, whatever comes.

    Args:
        names: of the reward functions.
        weights: of each in the total.
        size: completions kept.
    Attributes:
        step_means, step_stds: of the total, in order of the steps; only steps with at least two completions.
        seen: completions so far.
    """

    def __init__(self, names: Sequence[str], weights: Sequence[float], size: int) -> None:
        self.names = list(names)
        self.weights = np.asarray(weights, dtype=float)
        self.rows: deque[tuple[int, str | list, Completion, np.ndarray]] = deque(maxlen=size)
        self.step_means: deque[float] = deque(maxlen=STEPS_KEPT)
        self.step_stds: deque[float] = deque(maxlen=STEPS_KEPT)
        self.seen = 0

    def add(self, step: int, prompts: Sequence, completions: Sequence[Completion], rewards: np.ndarray) -> None:
        """One batch. `rewards` has the shape `(completions, functions)`; NaN where one does not apply."""
        self.rows.extend(zip(repeat(step), prompts, completions, rewards, strict=False))
        self.seen += len(completions)
        totals = totals_of(rewards, self.weights)
        totals = totals[~np.isnan(totals)]
        if len(totals) > 1:
            self.step_means.append(float(totals.mean()))
            self.step_stds.append(float(totals.std()))

    def __len__(self) -> int:
        return len(self.rows)

    def rewards(self) -> np.ndarray:
        """Shape `(completions, functions)`."""
        return np.array([row[3] for row in self.rows], dtype=float).reshape(-1, len(self.names))

    def completions(self) -> list[Completion]:
        return [row[2] for row in self.rows]


def totals_of(rewards: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The weighted sum of those that apply, as TRL has it; NaN where none does. Shape `(completions,)`."""
    missing = np.isnan(rewards)
    totals = np.where(missing, 0.0, rewards) @ weights
    totals[missing.all(axis=1)] = np.nan
    return totals
