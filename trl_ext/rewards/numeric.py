"""Does a completion end in the right number?"""

import math
import threading
from collections.abc import Callable
from fractions import Fraction
from importlib.util import find_spec
from numbers import Real
from typing import Any

from trl_ext.errors import UserError
from trl_ext.rewards.numeric_text import Number, find_answer
from trl_ext.rewards.numeric_units import unit_factor
from trl_ext.rewards.options import check_choice, check_flag, check_number, shown
from trl_ext.rewards.text import Completion, completion_text


class NumericReward:
    r"""1 where the number that a completion gives as its answer equals that of a dataset column, else 0.

    The number is that of `\boxed{...}`, "#### 42" or "the answer is 42", else the last one of the text; details in
    `numeric_text`. Read exactly are integers and decimals (with a point; a comma separates thousands, as ' and thin
    spaces do), fractions (3/4, 1 1/2, ½, \frac{3}{4}), percent, powers and scientific notation (1.2e3,
    1.2 \times 10^3). A decimal comma is not read, and a plain space separates two numbers.
    Roots and multiples of pi have no value here, and letters after a number are taken for a unit: for formulas ask
    `math_verify`. A completion without a number scores 0. The column is read in the same way; where it is `None`, or
    holds no number, the reward is `None`.

    Percent: where one side has a percent sign and the other has none, both readings count (75%: 75 and 0.75).

    Units count where the column has one. They are compared as written, with SI prefixes ("12 km" equals "12000 m");
    a completion without unit is taken to mean the column's. Another unit at the end of a clause ("12 miles.") is
    wrong, words that go on ("12 because") are no unit. Currency signs are left out.

    Args:
        column: the dataset column with the right answer, numbers or texts; default `"solution"`.
        tolerance: absolute difference that still counts, in the column's unit; default 0, exact.
        relative_tolerance: the same as a share of the right answer (0.01 is 1 %); the larger of the two decides.
        units: `"compare"` (default) or `"ignore"`.
        math_verify: compare with the package math_verify instead, which reads formulas; it has rules of its own for
            units and rounding, so the three options before are not for it. Default false.
    Raises:
        UserError: options that make no sense, math_verify missing; on a call, a column that is missing or that holds
            what is neither number nor text.
    """

    __name__ = "numeric"

    def __init__(
        self,
        column: str = "solution",
        tolerance: float = 0.0,
        relative_tolerance: float = 0.0,
        units: str = "compare",
        math_verify: bool = False,
    ) -> None:
        if not isinstance(column, str) or not column:
            raise UserError(f"numeric needs the name of a dataset column, e.g. column: solution, not {shown(column)}")
        self.column = column
        self.tolerance = _check_tolerance("tolerance", tolerance)
        self.relative_tolerance = _check_tolerance("relative_tolerance", relative_tolerance)
        self.units = check_choice("numeric", "units", units, ("compare", "ignore"))
        self.math_verify = check_flag("numeric", "math_verify", math_verify)
        if self.math_verify and (self.tolerance or self.relative_tolerance or units != "compare"):
            raise UserError("numeric has no tolerance or units with math_verify: true, leave one of them out")
        if self.math_verify and find_spec("math_verify") is None:
            raise UserError("numeric with math_verify: true needs the package math_verify: pip install math-verify")

    def __call__(self, prompts: list, completions: list[Completion], **kwargs: Any) -> list[float | None]:
        if kwargs.get(self.column) is None:
            raise UserError(
                f"numeric needs the dataset column '{self.column}' with the right answers: add it, or name another "
                "one, column: answer"
            )
        solutions = kwargs[self.column]
        if not isinstance(solutions, list | tuple) or len(solutions) != len(completions):
            raise UserError(
                f"numeric needs one entry of the column '{self.column}' for each of the {len(completions)} completions"
            )
        score = self._verified if self.math_verify else self._score
        return [
            score(completion_text(completion), solution)
            for completion, solution in zip(completions, solutions, strict=True)
        ]

    def _score(self, text: str, solution: Any) -> float | None:
        right = self._right_number(solution)
        if right is None:
            return None
        given = find_answer(text)
        return float(given is not None and self._equal(given, right))

    def _right_number(self, solution: Any) -> Number | None:
        if isinstance(solution, str):
            return find_answer(solution)
        if solution is None:
            return None
        if isinstance(solution, bool) or not isinstance(solution, Real):
            raise UserError(f"numeric needs numbers or texts in the column '{self.column}', not {shown(solution)}")
        # by way of its decimals: 0.1 is one tenth, not the nearest binary number
        return Number(Fraction(str(solution))) if math.isfinite(solution) else None

    def _equal(self, given: Number, right: Number) -> bool:
        factor = None
        if self.units == "compare" and given.unit and right.unit and right.unit_ends:
            factor = unit_factor(given.unit, right.unit)
            if factor is None and given.unit_ends:
                return False
        if self._near(given.value if factor is None else given.value * factor, right.value):
            return True
        if given.percent == right.percent:
            return False
        return self._near(given.value / 100 if given.percent else given.value * 100, right.value)

    def _near(self, value: Fraction, right: Fraction) -> bool:
        return value == right or abs(value - right) <= max(self.tolerance, self.relative_tolerance * abs(right))

    def _verified(self, text: str, solution: Any) -> float | None:
        if solution is None:
            return None
        parse, verify, timeout = _math_verify()
        right = parse(str(solution), parsing_timeout=timeout)
        if not right:
            return None
        return float(verify(right, parse(text, parsing_timeout=timeout), timeout_seconds=timeout))


def _check_tolerance(option: str, value: Any) -> Fraction:
    if check_number("numeric", option, value) < 0:
        raise UserError(f"numeric needs {option} of at least 0, not {shown(value)}")
    return Fraction(str(value))


def _math_verify() -> tuple[Callable, Callable, int | None]:
    """Its functions, and seconds: its timer works in the main thread alone."""
    from math_verify import parse, verify

    return parse, verify, 5 if threading.current_thread() is threading.main_thread() else None
