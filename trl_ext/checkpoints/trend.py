"""The checkpoints of a run, one after the other: how far each moved, and from when on nothing does."""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trl_ext.checkpoints.drift import Drift
from trl_ext.checkpoints.health.finding import HealthFinding
from trl_ext.checkpoints.health.judging import CheckpointHealth
from trl_ext.checkpoints.naming import step_of
from trl_ext.checkpoints.sketch import Sketch, drift_by_layer, estimated_drift
from trl_ext.monitor.alerts import Severity

_LEAST = 3  # checkpoints on either side of a change
_TIMES = 3.0  # by which the pace must differ
_SURE = 4.0  # standard errors
_FAR = 1.0  # relative drift from the first checkpoint
_BURST = 10.0  # times the usual pace


def checkpoints_of(folder: str | os.PathLike[str]) -> list[Path]:
    """The folders `checkpoint-N` in it, by N; links are not followed."""
    found = [(step, entry) for entry in Path(folder).iterdir()
             if (step := step_of(entry)) is not None and entry.is_dir() and not entry.is_symlink()]  # fmt: skip
    return [path for _, path in sorted(found)]


@dataclass(frozen=True)
class Point:
    """One checkpoint of a run.

    Attributes:
        previous, first: drift from the checkpoint before it and from the first one; estimated from samples.
        layers: drift of each layer from the checkpoint before it.
        pace: drift from the checkpoint before it, a step.
    """

    step: int
    score: float
    previous: Drift | None = None
    first: Drift | None = None
    layers: dict[str, Drift] = field(default_factory=dict)
    pace: float | None = None


class Trend:
    """Takes the checkpoints of a run in their order. Memory: a sketch of the first and the latest one."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._first: Sketch | None = None
        self._latest: tuple[int, Sketch] | None = None
        self._still_since: int | None = None
        self._adapter = False

    def add(self, step: int, health: CheckpointHealth) -> Point:
        """One more checkpoint."""
        sketch = Sketch.of(health.measured)
        # what begins at zero moves by any number of times its norm
        self._adapter = bool(health.measured.lora) or "adapter_config.json" in health.checkpoint.files
        if self._latest is None or self._first is None:
            self._first = sketch
            point = Point(step, health.score)
        else:
            before, latest = self._latest
            previous = estimated_drift(sketch, latest)
            pace = previous.relative / max(step - before, 1) if previous is not None else None
            point = Point(step, health.score, previous, estimated_drift(sketch, self._first),
                          drift_by_layer(sketch, latest), pace)  # fmt: skip
            if previous is not None and previous.moved:
                self._still_since = None
            elif previous is not None and self._still_since is None:
                self._still_since = before
        self._latest = (step, sketch)
        self.points = [*self.points, point][-_MOST:]
        return point

    def findings(self) -> Iterator[HealthFinding]:
        """What the latest checkpoint makes of the run."""
        if not self.points:
            return
        latest = self.points[-1]
        if self._still_since is not None:
            yield HealthFinding(
                "nothing_moved", Severity.ERROR,
                f"no weight moved since checkpoint-{self._still_since} (step {latest.step:,} now)",
                "Training goes on without effect: look whether learning_rate has reached 0, gradients are not finite, "
                "all parameters are frozen, or the optimizer holds another model's.",
                numbers={"since": self._still_since, "step": latest.step},
            )  # fmt: skip
        elif latest.layers:
            still = [name for name, drift in latest.layers.items() if not drift.moved]
            if still and len(still) < len(latest.layers):
                yield HealthFinding(
                    "layers_still", Severity.INFO,
                    f"{len(still)} of {len(latest.layers)} layers did not move since the checkpoint before: "
                    f"{', '.join(still[:5])}",
                    "As it should be where they are frozen.", numbers={"layers": still[:50]},
                )  # fmt: skip
        if latest.first is not None and latest.first.relative > _FAR and not self._adapter:
            severity = Severity.ERROR if latest.first.relative > _BURST / 2 else Severity.WARNING
            yield HealthFinding(
                "drift_far", severity,
                f"the weights differ from those of checkpoint-{self.points[0].step} by {latest.first.relative:.2f} "
                "times their norm",
                "More was changed than there was: training diverged. Go back to an earlier checkpoint, and lower "
                "learning_rate.", numbers={"relative": latest.first.relative},
            )  # fmt: skip
        change = self.change_point()
        if change is not None and change["at"] == self.points[-_LEAST].step:
            yield _change(change)
        paces = [point.pace for point in self.points[:-1] if point.pace]
        # what goes on at a new pace is told as such, once there is enough of it
        sudden = latest.pace is not None and len(paces) >= _LEAST and latest.pace > _TIMES * max(paces[-_LEAST:])
        if latest.pace is not None and sudden and latest.pace > _BURST * float(np.median(paces)):
            yield HealthFinding(
                "drift_burst", Severity.WARNING,
                f"from checkpoint-{self.points[-2].step} to checkpoint-{latest.step} the weights moved "
                f"{latest.pace / float(np.median(paces)):.0f} times as fast as usual (relative drift "
                f"{latest.previous.relative if latest.previous else math.nan:.3g})",
                "Look for a spike of grad_norm or kl in these steps, and lower learning_rate or max_grad_norm.",
                numbers={"pace": latest.pace, "usual": float(np.median(paces))},
            )  # fmt: skip

    def change_point(self) -> dict[str, Any] | None:
        """Where the pace of the weights changed: the split of the log paces into two levels that explains most, if it
        differs by more than 3 times and 4 standard errors; `None` where there is none."""
        moving = [(point.step, math.log(point.pace)) for point in self.points if point.pace]
        return change_point(moving)

    def to_dict(self) -> dict[str, Any]:
        rows = [
            {
                "step": point.step,
                "score": point.score,
                "drift_previous": point.previous.relative if point.previous else None,
                "drift_first": point.first.relative if point.first else None,
                "cosine_first": point.first.cosine if point.first else None,
                "pace": point.pace,
                "layers": {name: drift.relative for name, drift in point.layers.items()},
            }
            for point in self.points
        ]
        return {"checkpoints": rows, "change_point": self.change_point(),
                "findings": [finding.to_dict() for finding in self.findings()]}  # fmt: skip


_MOST = 1000  # points that are kept


def change_point(values: Sequence[tuple[int, float]]) -> dict[str, Any] | None:
    """The split of a series into two levels with the least squared error.

    Args:
        values: step and logarithm of what is watched.
    Returns:
        `at`: the first step of the second level; `before` and `after`, the levels as they were before the logarithm.
    """
    y = np.array([value for _, value in values])
    n = len(y)
    if n < 2 * _LEAST:
        return None
    splits = range(_LEAST, n - _LEAST + 1)
    errors = [float(((y[:k] - y[:k].mean()) ** 2).sum() + ((y[k:] - y[k:].mean()) ** 2).sum()) for k in splits]
    k = splits[int(np.argmin(errors))]
    spread = math.sqrt(min(errors) / (n - 2))
    jump = float(y[k:].mean() - y[:k].mean())
    if abs(jump) < math.log(_TIMES) or abs(jump) < _SURE * spread * math.sqrt(1 / k + 1 / (n - k)):
        return None
    return {"at": values[k][0], "before": math.exp(y[:k].mean()), "after": math.exp(y[k:].mean())}


def _change(change: dict[str, Any]) -> HealthFinding:
    times = change["after"] / change["before"]
    how = f"{times:.1f} times as fast" if times > 1 else f"{1 / times:.1f} times as slowly"
    return HealthFinding(
        "pace_changed", Severity.INFO, f"from checkpoint-{change['at']} on the weights move {how} as before",
        "A schedule of learning_rate does this; without one look what changed there.", numbers=dict(change),
    )  # fmt: skip
