"""A reward brought to mean 0 and standard deviation 1 by what it has given so far."""

import math
from collections.abc import Callable

from trl_ext.errors import UserError
from trl_ext.rewards.calls import Call
from trl_ext.rewards.combining import Combinator, Plan, awaiting, check_reward
from trl_ext.rewards.options import check_flag, check_number
from trl_ext.rewards.probing import is_probing


class Moments:
    """Mean and variance of a stream of numbers, of which each is worth `decay` times the one after it.

    West's recursion: W <- decay W + 1, d = x - mean, mean <- mean + d / W, S <- decay S + d (x - mean), variance S / W.
    With `decay` 1 it is Welford's, over all numbers.

    Paper: https://doi.org/10.1145/359146.359153

    Args:
        decay: above 0, at most 1.
    """

    def __init__(self, decay: float = 1.0) -> None:
        self.decay = decay
        self.weight = self.mean = self.squares = 0.0

    def add(self, value: float) -> None:
        self.weight = self.decay * self.weight + 1.0
        difference = value - self.mean
        self.mean += difference / self.weight
        self.squares = self.decay * self.squares + difference * (value - self.mean)

    @property
    def std(self) -> float:
        """Of the population; 0 before the second number."""
        return math.sqrt(self.squares / self.weight) if self.weight else 0.0


class Rescale(Combinator):
    """(reward - mean) / std, by the moments of all completions so far, those of the present batch included.

    While all rewards were the same, they are not divided: they give 0, or themselves with `center=False`. Before the
    first reward, values pass unchanged. `None` stays `None` and is not learnt from. Nothing is learnt while
    `probing.is_probing()`, so that a probe leaves no trace.

    The moments are part of a pickle. Each process of a run has its own, of the completions that it has seen, and a run
    resumed from a checkpoint starts with new ones.

    Args:
        reward: the reward function.
        decay: how much less a completion counts than the next one, above 0 and below 1: 0.999 looks back at about
            1 / (1 - 0.999) = 1000 completions. Default `None`: all count the same.
        center: whether the mean is taken off; default true.
    Raises:
        UserError: a decay out of its range.
    """

    __name__ = "rescale"

    def __init__(self, reward: Callable, decay: float | None = None, center: bool = True) -> None:
        self.reward = check_reward("rescale", "reward", reward)
        if decay is not None and not 0 < check_number("rescale", "decay", decay) < 1:
            raise UserError(f"rescale needs a decay above 0 and below 1, e.g. decay: 0.999, not {decay}")
        self.center = check_flag("rescale", "center", center)
        self.moments = Moments(1.0 if decay is None else float(decay))

    def _plan(self, call: Call) -> Plan:
        (values,) = yield [(self.reward, call)]
        if not is_probing():
            for value in values:
                if value is not None:
                    self.moments.add(value)
        mean, std = self.moments.mean if self.center else 0.0, self.moments.std
        # what rounding leaves of equal numbers is no spread
        spread = std if std > 1e-9 * abs(self.moments.mean) else 1.0
        return [None if value is None else (value - mean) / spread for value in values]


AwaitingRescale = awaiting(Rescale)
