"""Does the reward jump, or its spread change, in a way that learning does not explain?"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trl_ext.rewards.reliability.numbers import ramp
from trl_ext.rewards.reliability.window import A_STEP, FIRST_STEPS, STEPS_KEPT

_SIDE = 4  # steps on either side of a change point
_LEAST = 16  # steps before which none is looked for
_AT_ONCE = 0.7  # of a jump comes from one step to the next
_OUTLIER = 8.0  # robust standard deviations of the changes: learning makes many small ones, a new reward one large one
_UPWARDS = 0.5  # what a jump upwards counts: learning may be fast
_FALLS = 6.0  # of their scatter
_RISING = 16  # steps from the start in which a jump upwards is fast learning


class Stability(NamedTuple):
    """Over the last 128 steps, and against the first eight of the run.

    Attributes:
        jump: the largest change of the mean from four steps to the next four (medians) that is an outlier among all
            such changes and comes from one step to the next, in standard deviations of the reward over the completions
            of a step; 0 where none is.
        step: when that was; the latest one where there is none.
        before, after: median of the four steps on either side.
        spread: standard deviation within the latest eight steps by that within the first eight, the largest left out;
            1 where two of the first eight have none.
        drift: mean of the latest eight steps minus that of the first eight, in the reward's unit.
        rises: whether that is more than chance explains.
        since: the first step of the run.
        fall: how far the mean fell by the drift, in standard deviations of a usual step; 0 where scatter explains it.
    """

    jump: float
    step: int
    before: float
    after: float
    spread: float
    drift: float
    rises: bool
    since: int
    fall: float

    @property
    def sudden(self) -> float:
        """The jump by what it counts."""
        return self.jump * _UPWARDS if self.jump > 0 else -self.jump

    def part(self) -> float:
        """1 for a fall below half a standard deviation, at once or slowly, a jump upwards below one, and a spread
        within a factor of 4 of the start. Of a reward that has risen a smaller spread is what learning brings: more and
        more completions earn it."""
        change = abs(np.log(max(self.spread, 1e-6)))
        if self.spread < 1 and self.rises:
            change = 0.0
        return ramp(max(self.sudden, self.fall), 0.5, 2.0) * ramp(change, np.log(4), np.log(20))


def stability_of(
    steps: Sequence[int],
    means: Sequence[float],
    stds: Sequence[float],
    start: Sequence[tuple[int, float, float]] | None = None,
) -> Stability | None:
    """`None` for fewer than 16 steps.

    Args:
        start: step, mean and standard deviation of the first eight steps of the run, where these have left the others.
    """
    if len(means) < _LEAST:
        return None
    levels, spreads = np.asarray(means), np.asarray(stds)
    first = np.array(start if start else list(zip(steps, means, stds, strict=False))[:FIRST_STEPS], dtype=float)
    before, now = _usual(first[:, 2]), _usual(spreads[-FIRST_STEPS:])
    # of a reward that few completions earn, most steps have no spread by chance
    is_known = np.count_nonzero(first[:, 2]) >= FIRST_STEPS - 1
    spread = now / before if is_known else 1.0
    drift = float(levels[-FIRST_STEPS:].mean() - first[:, 1].mean())
    scatter = float(np.hypot(first[:, 1].std(), levels[-FIRST_STEPS:].std())) / FIRST_STEPS**0.5
    # the first steps may have learnt already, and scatter for that reason
    rises = drift > 4 * min(scatter, max(before, now) / (A_STEP * FIRST_STEPS) ** 0.5)
    usual_std = float(np.median(spreads))
    fall = -drift / usual_std if drift < -_FALLS * scatter and usual_std > 0 else 0.0
    return Stability(*_largest_jump(steps, levels, spreads), spread, drift, rises, int(first[0, 0]), fall)


def _largest_jump(steps: Sequence[int], levels: np.ndarray, spreads: np.ndarray) -> tuple[float, int, float, float]:
    """`jump`, `step`, `before` and `after` of `Stability`."""
    sums = np.median(np.lib.stride_tricks.sliding_window_view(levels, _SIDE), axis=1)
    changes = sums[_SIDE:] - sums[:-_SIDE]  # changes[i]: between the steps before and from i + _SIDE on
    away = np.abs(changes - np.median(changes))
    at = int(np.argmax(away))
    after = at + _SIDE
    single = np.abs(np.diff(levels[at : at + 2 * _SIDE]))  # learning, however fast, takes several steps
    sudden = single.max() >= _AT_ONCE * abs(changes[at])
    learnt = changes[at] > 0 and after < _RISING and len(levels) < STEPS_KEPT
    noise = 1.4826 * float(np.median(away))
    tiny = away[at] <= 1e-9 + 1e-6 * abs(float(levels.mean()))
    if learnt or tiny or not sudden or away[at] <= _OUTLIER * noise:
        return 0.0, int(steps[-1]), float(levels[0]), float(levels[-1])
    scale = float(spreads[at : at + 2 * _SIDE].max())  # around the jump: at the end all may be equal
    jump = float(changes[at]) / scale if scale > 0 else float(np.sign(changes[at])) * 10
    return jump, int(steps[after]), float(sums[at]), float(sums[after])


def _usual(spreads: np.ndarray) -> float:
    """Root mean square without the largest: one outlier is no spread."""
    return float(np.mean(np.sort(spreads)[:-1] ** 2) ** 0.5)
