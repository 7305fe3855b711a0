"""Reward functions made of reward functions: a weighted sum, a clip, a gate, and a weight over the run."""

import math
from collections.abc import Callable

from trl_ext.errors import UserError
from trl_ext.rewards.calls import Call
from trl_ext.rewards.combining import Combinator, Plan, awaiting, check_reward
from trl_ext.rewards.options import check_choice, check_count, check_number, shown

_SHAPES = ("linear", "cosine", "constant")


class WeightedSum(Combinator):
    """The sum of `weight * reward`, as TRL adds up several reward functions.

    A `None` adds nothing, and the weights of the others stay as they are; where all are `None`, so is the sum.

    Args:
        rewards: the reward functions.
        weights: one finite number each; default 1.
    Raises:
        UserError: no rewards, or weights that do not fit them.
    """

    __name__ = "weighted_sum"

    def __init__(self, rewards: list[Callable], weights: list[float] | None = None) -> None:
        if not isinstance(rewards, list | tuple) or not rewards:
            raise UserError(
                f"weighted_sum needs a list for rewards, e.g. rewards: [length, loops], not {shown(rewards)}"
            )
        self.rewards = [check_reward("weighted_sum", "rewards", reward) for reward in rewards]
        weights = [1.0] * len(rewards) if weights is None else weights
        if not isinstance(weights, list | tuple):
            raise UserError(f"weighted_sum needs a list for weights, e.g. weights: [1.0, 0.5], not {shown(weights)}")
        if len(weights) != len(rewards):
            raise UserError(f"weighted_sum has {len(weights)} weights for {len(rewards)} rewards: give one for each")
        self.weights = [check_number("weighted_sum", "weights", weight) for weight in weights]

    def _plan(self, call: Call) -> Plan:
        columns = yield [(reward, call) for reward in self.rewards]
        return [self._add(row) for row in zip(*columns, strict=True)]

    def _add(self, row: tuple[float | None, ...]) -> float | None:
        terms = [weight * value for weight, value in zip(self.weights, row, strict=True) if value is not None]
        return math.fsum(terms) if terms else None


class Clip(Combinator):
    """`reward`, held between `minimum` and `maximum`; `None` stays `None`.

    Args:
        reward: the reward function.
        minimum: lowest value, default none.
        maximum: highest value, default none; one of the two is needed.
    Raises:
        UserError: no bound, or bounds that leave nothing between them.
    """

    __name__ = "clip"

    def __init__(self, reward: Callable, minimum: float | None = None, maximum: float | None = None) -> None:
        self.reward = check_reward("clip", "reward", reward)
        if minimum is None and maximum is None:
            raise UserError("clip needs minimum, maximum or both, e.g. maximum: 1.0")
        self.minimum = -math.inf if minimum is None else check_number("clip", "minimum", minimum)
        self.maximum = math.inf if maximum is None else check_number("clip", "maximum", maximum)
        if self.minimum >= self.maximum:
            raise UserError(f"clip needs minimum < maximum, not minimum={minimum}, maximum={maximum}")

    def _plan(self, call: Call) -> Plan:
        (values,) = yield [(self.reward, call)]
        return [None if value is None else min(max(value, self.minimum), self.maximum) for value in values]


class Gate(Combinator):
    """`reward` where `condition` is at least `threshold`, `otherwise` elsewhere.

    `reward` is asked only about the completions that pass, with their part of the prompts, the tokens and every list of
    the batch's length; if none passes, not at all. Where `condition` is `None`, so is the value.

    Args:
        reward: the reward function behind the gate.
        condition: the reward function that opens it.
        threshold: the least value of `condition` that does.
        otherwise: value of a completion that does not pass, default 0; `None` for "not applicable".
    Raises:
        UserError: a threshold or another value that is no number.
    """

    __name__ = "gate"

    def __init__(self, reward: Callable, condition: Callable, threshold: float, otherwise: float | None = 0.0) -> None:
        self.reward = check_reward("gate", "reward", reward)
        self.condition = check_reward("gate", "condition", condition)
        self.threshold = check_number("gate", "threshold", threshold)
        self.otherwise = None if otherwise is None else check_number("gate", "otherwise", otherwise)

    def _plan(self, call: Call) -> Plan:
        (conditions,) = yield [(self.condition, call)]
        rewards = [None if value is None else self.otherwise for value in conditions]
        passing = [row for row, value in enumerate(conditions) if value is not None and value >= self.threshold]
        if passing:
            (values,) = yield [(self.reward, call.take(passing))]
            for row, value in zip(passing, values, strict=True):
                rewards[row] = value
        return rewards


class Schedule(Combinator):
    """`reward` times a weight that goes from `start` to `end` over the first `steps` steps and then stays.

    With t = step / steps, at most 1: `"linear"` is start + (end - start) t; `"cosine"` is
    start + (end - start) (1 - cos(pi t)) / 2, slow at both ends; `"constant"` is `start`, and `end` from `steps` on.
    The step is `trainer_state.global_step`; without a trainer state (outside of training) the weight is `start`.

    Args:
        reward: the reward function.
        start: weight at step 0.
        end: weight from step `steps` on.
        steps: optimizer steps, at least 1.
        shape: `"linear"` (default), `"cosine"` or `"constant"`.
    Raises:
        UserError: weights or steps that are no numbers, or another shape.
    """

    __name__ = "schedule"

    def __init__(self, reward: Callable, start: float, end: float, steps: int, shape: str = "linear") -> None:
        self.reward = check_reward("schedule", "reward", reward)
        self.start, self.end = check_number("schedule", "start", start), check_number("schedule", "end", end)
        self.steps = check_count("schedule", "steps", steps, minimum=1)
        self.shape = check_choice("schedule", "shape", shape, _SHAPES)

    def _plan(self, call: Call) -> Plan:
        state = call.others.get("trainer_state")
        weight = self.weight(0 if state is None else state.global_step)
        (values,) = yield [(self.reward, call)]
        return [None if value is None else weight * value for value in values]

    def weight(self, step: int) -> float:
        """The weight after `step` steps."""
        done = min(step / self.steps, 1.0)
        if self.shape == "constant":
            done = math.floor(done)
        elif self.shape == "cosine":
            done = (1 - math.cos(math.pi * done)) / 2
        return self.start + (self.end - self.start) * done


AwaitingWeightedSum = awaiting(WeightedSum)
AwaitingClip = awaiting(Clip)
AwaitingGate = awaiting(Gate)
AwaitingSchedule = awaiting(Schedule)
