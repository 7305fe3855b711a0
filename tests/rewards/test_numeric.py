import pickle
import sys
import time
from fractions import Fraction
from types import ModuleType

import numpy as np
import pytest

from trl_ext.errors import UserError
from trl_ext.rewards.numeric import NumericReward
from trl_ext.rewards.numeric_text import find_answer
from trl_ext.rewards.numeric_units import unit_factor


def score(text, solution, **options):
    (value,) = NumericReward(**options)(prompts=[""], completions=[text], solution=[solution])
    return value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # how it is written
        ("42", 42),
        ("-3.5", Fraction(-7, 2)),
        ("−7", -7),  # noqa: RUF001
        (".5", Fraction(1, 2)),
        ("4.0", 4),
        ("-$5", -5),
        (r"$-\$5$", -5),
        ("1,234.5", Fraction(2469, 2)),
        ("1,00,000", 100_000),  # Indian grouping
        ("12'000", 12_000),
        ("12\u202f000", 12_000),
        (r"12{,}000", 12_000),
        (r"12\,000", 12_000),
        ("3/4", Fraction(3, 4)),
        ("1 / 2", Fraction(1, 2)),
        ("1 1/2", Fraction(3, 2)),
        ("½", Fraction(1, 2)),
        ("-½", Fraction(-1, 2)),
        ("2¾", Fraction(11, 4)),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"-\dfrac12", Fraction(-1, 2)),
        (r"1\frac{1}{2}", Fraction(3, 2)),
        (r"\frac{1,000}{-4}", -250),
        ("1.2e3", 1200),
        ("5E-2", Fraction(1, 20)),
        ("3×10⁵", 300_000),  # noqa: RUF001
        (r"3 \times 10^{-2}", Fraction(3, 100)),
        ("2 x 10^3", 2000),
        ("2^10", 1024),
        ("10^{-3}", Fraction(1, 1000)),
        ("10⁻³", Fraction(1, 1000)),
        # where it is
        ("I have 3 cats and 4 dogs.", 4),
        ("First 7, then 10-5", 5),
        ("It is 5.", 5),
        ("答案是42", 42),
        ("so we get 17 steps.\n#### 42", 42),
        ("#### 1,000 dollars", 1000),
        (r"\boxed{41} and then \boxed{42}, which took 3 steps", 42),
        (r"\boxed{x = 5}", 5),
        (r"\boxed 7", 7),
        ("The answer is 42, since 6*7=42 and not 43", 42),
        ("The answer is 6*7 = 42.", 42),
        ("The answer is x = 6*7 = 42.", 42),
        ("The answer is 42 (of 50).", 42),
        ("The answer is (B) 42", 42),
        ("**Answer:** 42 after 3 steps", 42),
        ("**Answer**: 42 after 3 steps", 42),
        ("Answer:\n\n42 apples, 3 pears", 42),
        ("The answer is 41. No, the answer is 42. That took 3 steps.", 42),
        ("The answer is 42. Is that answer: clear? I took 3 steps", 42),
        # what is none
        ("", None),
        ("none", None),
        ("x^2", None),
        ("a_2", None),
        ("H2O", None),
        ("v1.2.3", None),
        ("1/0", None),
        ("1e9999", None),
        ("9" * 401, None),
        (r"7 is close, but \boxed{x}", None),
        (r"7 is close, but \boxed{}", None),
        (r"\sqrt{2}", None),
        (r"\boxed{2\pi}", None),
        ("2 * pi", None),
        ("3√2", None),
    ],
)
def test_the_number_of_a_text_read_by_hand(text, value):
    found = find_answer(text)
    assert (None if found is None else found.value) == value


@pytest.mark.parametrize(
    ("unit", "other", "factor"),
    [
        ("km", "m", 1000),
        ("m", "km", Fraction(1, 1000)),
        ("mm", "cm", Fraction(1, 10)),
        ("km^2", "m^2", 10**6),
        ("km/h", "m/h", 1000),
        ("MW", "mW", 10**9),
        ("kilometers", "meter", 1000),
        ("Apples", "apple", 1),
        ("°", "°", 1),
        ("km", "m^2", None),
        ("km/h", "m/s", None),
        ("min", "h", None),
        ("apples", "pears", None),
    ],
)
def test_units_differ_by_si_prefixes_alone(unit, other, factor):
    assert unit_factor(unit, other) == factor


@pytest.mark.parametrize(
    ("text", "solution", "value"),
    [
        ("It is 12 km.", "12000 m", 1.0),
        ("It is 12 m.", "12000 m", 0.0),
        ("It is 12000.", "12000 m", 1.0),  # no unit: the column's
        ("It is 12 km.", "12", 1.0),
        (r"\boxed{12\,\text{km}}", "12 km", 1.0),
        ("12 miles.", "12 km", 0.0),
        ("12 because of this", "12 km", 1.0),
        ("5 m²", "50000 cm^2", 1.0),
        (r"45^\circ", "45°", 1.0),
        ("75%", "0.75", 1.0),
        ("75%", "75", 1.0),
        ("0.75", r"75\%", 1.0),
        ("75 percent", "75%", 1.0),
        ("0.75%", "75%", 0.0),
        ("75%", "7.5", 0.0),
        ("0.1", 0.1, 1.0),  # one tenth, although no float is
        ("0.3333", "1/3", 0.0),
        ("42", 42, 1.0),
        ("42", np.float32(42), 1.0),
        ("0.1", np.float32(0.1), 1.0),
        ("42", np.int64(42), 1.0),
        ("43", 42, 0.0),
        ("no idea", 42, 0.0),
        ("42", "6 * 7 is what it is\n#### 42", 1.0),
        ("42", None, None),
        ("42", "unknown", None),
        ("42", float("nan"), None),
    ],
)
def test_a_right_answer_is_1_and_a_wrong_one_0(text, solution, value):
    assert score(text, solution) == value
    assert score([{"role": "assistant", "content": text}], solution) == value


@pytest.mark.parametrize(
    ("text", "solution", "options", "value"),
    [
        ("3.14", "3.15", {"tolerance": 0.01}, 1.0),  # the edge counts, exactly
        ("3.14", "3.1501", {"tolerance": 0.01}, 0.0),
        ("99", 100, {"relative_tolerance": 0.01}, 1.0),
        ("98.9", 100, {"relative_tolerance": 0.01}, 0.0),
        ("-99", -100, {"relative_tolerance": 0.01}, 1.0),
        ("0.5", 0, {"relative_tolerance": 0.01, "tolerance": 0.5}, 1.0),
        ("0.004 km", "5 m", {"tolerance": 1}, 1.0),  # in the column's unit
        ("12 miles", "12 km", {"units": "ignore"}, 1.0),
        ("12 km", "12000 m", {"units": "ignore"}, 0.0),
    ],
)
def test_tolerances_and_units_as_asked(text, solution, options, value):
    assert score(text, solution, **options) == value


def test_the_column_can_be_another_one():
    reward = NumericReward(column="answer")
    assert reward(prompts=["", ""], completions=["1", "2"], answer=["1", "1"], solution=["9", "9"]) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"column": 3}, "name of a dataset column, e.g. column: solution, not 3"),
        ({"tolerance": -0.1}, "tolerance of at least 0, not -0.1"),
        ({"tolerance": "0.1"}, "needs a number for tolerance"),
        ({"relative_tolerance": True}, "needs a number for relative_tolerance"),
        ({"units": "convert"}, "choices compare, ignore, not 'convert'"),
        ({"math_verify": "yes"}, "true or false for math_verify"),
        ({"math_verify": True, "tolerance": 1}, "no tolerance or units with math_verify"),
    ],
)
def test_bad_options_are_one_line(options, message):
    with pytest.raises(UserError, match=message) as error:
        NumericReward(**options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "needs the dataset column 'solution' with the right answers: add it, or name another"),
        ({"answer": ["1"]}, "needs the dataset column 'solution'"),
        ({"solution": ["1", "2"]}, "one entry of the column 'solution' for each of the 1 completions"),
        ({"solution": "1"}, "one entry of the column"),
        ({"solution": [["1"]]}, r"numbers or texts in the column 'solution', not \['1'\]"),
        ({"solution": [True]}, "numbers or texts in the column 'solution', not True"),
    ],
)
def test_a_column_that_is_missing_or_holds_something_else_is_named(columns, message):
    with pytest.raises(UserError, match=message):
        NumericReward()(prompts=[""], completions=["1"], **columns)


def test_math_verify_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(UserError, match="pip install math-verify"):
        NumericReward(math_verify=True)


def test_math_verify_is_asked_with_the_right_answer_first(monkeypatch):
    """A stand-in with its signatures; the package is optional."""
    import importlib.machinery

    module = ModuleType("math_verify")
    module.__spec__ = importlib.machinery.ModuleSpec("math_verify", None)
    module.parse = lambda text, parsing_timeout: [] if text == "?" else [text]
    module.verify = lambda gold, target, timeout_seconds: gold == ["1"] and target == ["one"]
    monkeypatch.setitem(sys.modules, "math_verify", module)
    reward = NumericReward(math_verify=True)
    answers = reward(prompts=[""] * 4, completions=["one", "two", "x", "x"], solution=[1, "1", None, "?"])
    assert answers == [1.0, 0.0, None, None]


def test_math_verify_reads_formulas_where_installed():
    pytest.importorskip("math_verify")
    assert score(r"so \boxed{\sqrt{8}}", r"$2\sqrt{2}$", math_verify=True) == 1.0


@pytest.mark.parametrize(
    "text",
    ["1" * 50_000, "1," * 25_000, "1 " * 25_000, "answer is " * 5000, "answer: " * 5000 + "x", r"\boxed{" * 7000,
     r"\frac{" * 8000, "-" * 50_000, "answer" + "* " * 25_000, ("1" + " " * 200) * 250, "2^" * 20_000],
)  # fmt: skip
def test_no_text_takes_more_than_linear_time(text):
    started = time.process_time()
    score(text, 1)
    assert time.process_time() - started < 2.0  # 0.2 s at most where this was written; quadratic takes minutes


def test_pickles():
    copy = pickle.loads(pickle.dumps(NumericReward(tolerance=0.5)))
    assert copy(prompts=[""], completions=["1.5"], solution=[1]) == [1.0]


@pytest.mark.parametrize(
    ("text", "solution", "value"),
    [
        ("1e999999", 1, 0.0),
        ("1e" + "9" * 30, 1, 0.0),
        ("2 x 10^99999", 2, 0.0),
        ("1/-2", -0.5, 1.0),
        ("1/+2", 0.5, 1.0),
    ],
)
def test_exponents_without_measure_and_signs_below_the_line(text, solution, value):
    assert NumericReward()(prompts=[""], completions=[text], solution=[solution]) == [value]
