"""The last completions of a run with what each reward function gave them."""

from collections import deque
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from trl_ext.rewards.text import Completion

FIRST_STEPS = 8  # of the run, that the latest are compared with
STEPS_KEPT = 128  # means and spreads of steps, for change points
A_STEP = 32  # completions whose mean and spread say something: smaller steps are taken together


class Row(NamedTuple):
    """One completion; `rewards` has the shape `(functions,)`."""

    step: int
    prompt: str | list
    completion: Completion
    rewards: np.ndarray


class RewardWindow:
    """The last `size` completions, and for the last 128 steps the mean and the spread of the total; of steps with fewer
    than 32 completions several count as one.

    Memory is bounded by `size` completions and one batch, whatever comes. Batches are kept as they came, since most
    steps bring one and few look at it.

    Args:
        names: of the reward functions.
        weights: of each in the total.
        size: completions kept.
    Attributes:
        steps, step_means, step_stds: of the total, in order of the steps; where several count as one, the last.
        start: the first eight of these, as tuples.
        seen: completions so far.
    """

    def __init__(self, names: Sequence[str], weights: Sequence[float], size: int) -> None:
        self.names = list(names)
        self.weights = np.asarray(weights, dtype=float)
        self.size = size
        self._batches: deque[tuple[int, list, list, np.ndarray]] = deque()
        self._count = 0
        self._pending: list[float] = []
        self.start: list[tuple[int, float, float]] = []
        self.steps: deque[int] = deque(maxlen=STEPS_KEPT)
        self.step_means: deque[float] = deque(maxlen=STEPS_KEPT)
        self.step_stds: deque[float] = deque(maxlen=STEPS_KEPT)
        self.seen = 0

    def add(self, step: int, prompts: Sequence, completions: Sequence[Completion], rewards: np.ndarray) -> None:
        """One batch. `rewards` has the shape `(completions, functions)`; NaN where one does not apply."""
        kept = slice(-self.size, None)
        self._batches.append((step, list(prompts[kept]), list(completions[kept]), rewards[kept]))
        self._count += len(self._batches[-1][2])
        while self._count - len(self._batches[0][2]) >= self.size:
            self._count -= len(self._batches.popleft()[2])
        self.seen += len(completions)
        totals = totals_of(rewards, self.weights)
        totals = totals[~np.isnan(totals)]
        if self._pending or len(totals) < A_STEP:
            self._pending += totals.tolist()
            totals = np.array(self._pending)
        if len(totals) >= A_STEP:
            self._pending = []
            self.steps.append(step)
            self.step_means.append(float(totals.mean()))
            self.step_stds.append(float(totals.std()))
            if len(self.start) < FIRST_STEPS:
                self.start.append((step, self.step_means[-1], self.step_stds[-1]))

    def __len__(self) -> int:
        return min(self._count, self.size)

    def rewards(self) -> np.ndarray:
        """Shape `(completions, functions)`."""
        if not self._batches:
            return np.empty((0, len(self.names)))
        return np.concatenate([batch[3] for batch in self._batches])[-self.size :]

    def completions(self) -> list[Completion]:
        return list(chain.from_iterable(batch[2] for batch in self._batches))[-self.size :]

    def rows(self) -> list[Row]:
        """Oldest first."""
        found = [Row(step, *row) for step, *columns in self._batches for row in zip(*columns, strict=True)]
        return found[-self.size :]


def totals_of(rewards: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The weighted sum of those that apply, as TRL has it; NaN where none does. Shape `(completions,)`."""
    missing = np.isnan(rewards)
    totals = np.where(missing, 0.0, rewards) @ weights
    totals[missing.all(axis=1)] = np.nan
    return totals
