"""What one option may be: a list of values, or a range."""

import math
import os
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any

from trl_ext.errors import UserError
from trl_ext.strict_yaml import refuse_unknown_keys

Point = dict[str, Any]  # option -> value: one combination
MOST_VALUES = 10_000
_KEYS = ("min", "max", "step", "points", "int", "log")


@dataclass(frozen=True)
class Parameter:
    """Attributes:
    values: of a list, or of a range with `step` or `points`; empty for a continuous range.
    low, high: of a range.
    whole: a range of whole numbers.
    log: a range of which each factor is as likely as another.
    step: of a range, in its unit.
    """

    values: list[Any] = field(default_factory=list)
    low: float | None = None
    high: float | None = None
    whole: bool = False
    log: bool = False
    step: float | None = None

    def draw(self, random: Random) -> Any:
        """A value at random: evenly over the values, or over the range (its logarithm for `log`)."""
        if self.values:
            return random.choice(self.values)
        assert self.low is not None and self.high is not None
        if self.log:
            drawn = math.exp(random.uniform(math.log(self.low), math.log(self.high)))
            return round(drawn) if self.whole else float(f"{drawn:.6g}")
        return random.randint(int(self.low), int(self.high)) if self.whole else random.uniform(self.low, self.high)


def read_parameters(path: str | os.PathLike[str], content: Any) -> dict[str, Parameter]:
    """The mapping `parameters` of a sweep's file.

    Raises:
        UserError: one line that names the option and what to write.
    """
    if not isinstance(content, dict):
        raise UserError(f"{path}: parameters expects lines such as `learning_rate: [1e-5, 3e-5]`, got {content!r}")
    found = {}
    for name, value in content.items():
        where = f"{path}: parameters: {name}"
        if isinstance(value, list):
            if not value:
                raise UserError(f"{where}: an empty list; give values to try")
            if any(value.count(each) > 1 and type(each) is not bool for each in value):
                raise UserError(f"{where}: a value is listed twice: {value}")
            found[str(name)] = Parameter(values=value)
        elif isinstance(value, dict):
            found[str(name)] = _range(where, value)
        else:
            raise UserError(f"{where}: give a list of values or {{min: 0.0, max: 1.0}}, not {value!r}; one value alone "
                            "belongs into config")  # fmt: skip
    return found


def _range(where: str, content: dict[str, Any]) -> Parameter:
    refuse_unknown_keys(content, _KEYS, where)
    low: Any = content.get("min")
    high: Any = content.get("max")
    step, points = content.get("step"), content.get("points")
    whole, log = content.get("int", False), content.get("log", False)
    for key, value in (("int", whole), ("log", log)):
        if type(value) is not bool:
            raise UserError(f"{where}: {key} is true or false, not {value!r}")
    for key, value in (("min", low), ("max", high), ("step", step)):
        if (value is None and key != "step") or (value is not None and not _is_number(value)):
            raise UserError(f"{where}: {key} expects a number, got {value!r}")
        if whole and value is not None and value != int(value):
            raise UserError(f"{where}: {key} is {value} and int is true: give a whole number")
    if not low < high:
        raise UserError(f"{where}: min ({low}) must be below max ({high})")
    if log and low <= 0:
        raise UserError(f"{where}: log needs min above 0, got {low}")
    if step is not None and (log or points is not None or not 0 < step <= high - low):
        raise UserError(f"{where}: step goes from above 0 to max - min, and with neither log nor points")
    if points is not None and (type(points) is not int or points < 2):
        raise UserError(f"{where}: points expects a whole number of at least 2, got {points!r}")
    return Parameter(_values(where, low, high, step, points, whole, log), low, high, whole, log, step)


def _values(where: str, low: Any, high: Any, step: Any, points: int | None, whole: bool, log: bool) -> list[Any]:
    """Of a range with `step` or `points`. Decimals, so that 0.1 + 0.2 is 0.3."""
    if step is not None:
        first, by = Decimal(str(low)), Decimal(str(step))
        count = int((Decimal(str(high)) - first) / by) + 1
        if count > MOST_VALUES:
            raise UserError(f"{where}: a step of {step} from {low} to {high} makes {count:,} values; the most is "
                            f"{MOST_VALUES:,}: make it larger, or leave it out and take method: random")  # fmt: skip
        return [int(first + i * by) if whole else float(first + i * by) for i in range(count)]
    if points is None:
        return []
    shares = [i / (points - 1) for i in range(points)]
    spread = [low * (high / low) ** share if log else low + share * (high - low) for share in shares]
    return sorted({round(value) if whole else float(f"{value:.6g}") for value in spread})


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
