"""Which combinations of values are tried: all of them, or some at random."""

import itertools
import json
from random import Random
from typing import Protocol

from trl_ext.sweep.definition import Sweep
from trl_ext.sweep.parameters import Parameter, Point

_DRAWS = 1000  # in a row that bring nothing new: there is nothing new


class Points(Protocol):
    """Says what to try next, and is told what came of it."""

    total: int

    def next(self, number: int) -> Point:
        """The combination of trial `number`, from 0 on and in order."""

    def tell(self, number: int, point: Point, value: float | None) -> None:
        """What came of it, also in an earlier call of the sweep, in order; `None`: no value."""


class ListedPoints:
    """Combinations that are known before the first is tried."""

    def __init__(self, points: list[Point]):
        self.points, self.total = points, len(points)

    def next(self, number: int) -> Point:
        return self.points[number]

    def tell(self, number: int, point: Point, value: float | None) -> None:
        pass


def points_of(sweep: Sweep) -> Points:
    """By the method of the sweep.

    Raises:
        UserError: Optuna is asked for and not installed.
    """
    if sweep.method == "optuna":
        from trl_ext.sweep.optuna_points import OptunaPoints

        return OptunaPoints(sweep)
    if sweep.method == "grid":
        return ListedPoints(grid(sweep.parameters))
    return ListedPoints(draws(sweep.parameters, sweep.trials or 0, sweep.seed))


def grid(parameters: dict[str, Parameter]) -> list[Point]:
    """Every combination; the last parameter changes fastest."""
    names = list(parameters)
    values = [parameters[name].values for name in names]
    return [dict(zip(names, combination, strict=True)) for combination in itertools.product(*values)]


def draws(parameters: dict[str, Parameter], trials: int, seed: int) -> list[Point]:
    """`trials` combinations at random, none twice; fewer where there are no more. The same for the same seed."""
    random = Random(seed)
    found: dict[str, Point] = {}
    in_vain = 0
    while len(found) < trials and in_vain < _DRAWS:
        point = {name: parameter.draw(random) for name, parameter in parameters.items()}
        key = json.dumps(point, default=str)
        in_vain = in_vain + 1 if key in found else 0
        found.setdefault(key, point)
    return list(found.values())
