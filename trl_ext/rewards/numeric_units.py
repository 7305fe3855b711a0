"""Compares units as they are written, SI prefixes included; no table of units."""

import re
from fractions import Fraction
from functools import lru_cache

_PREFIXES = {"": 0, "T": 12, "G": 9, "M": 6, "k": 3, "d": -1, "c": -2, "m": -3, "µ": -6, "u": -6, "n": -9, "p": -12}
_WRITTEN_OUT = {"": 0, "giga": 9, "mega": 6, "kilo": 3, "deci": -1, "centi": -2, "milli": -3, "micro": -6, "nano": -9}
_FIRST_SYMBOL = re.compile(r"(?P<symbol>[^\W\d_]+|°)(?:\^?(?P<exponent>-?\d))?(?P<rest>.*)", re.DOTALL)


@lru_cache(maxsize=1024)
def unit_factor(unit: str, other: str) -> Fraction | None:
    """How many `other` one `unit` is: 1000 for "km" and "m", 1 for the same; `None` where that cannot be said.

    Words of more than three letters may differ in case and in an s at the end. A prefix is seen on the first symbol,
    its exponent included (1 km^2 is 1,000,000 m^2). "min" and "h", "km" and "kilometers" are different units here.
    """
    if _word(unit) == _word(other):
        return Fraction(1)
    ours, theirs = _FIRST_SYMBOL.fullmatch(unit), _FIRST_SYMBOL.fullmatch(other)
    if ours is None or theirs is None or ours["rest"] != theirs["rest"] or ours["exponent"] != theirs["exponent"]:
        return None
    exponent = int(ours["exponent"] or 1)
    return (
        _ratio(ours["symbol"], theirs["symbol"], exponent, _PREFIXES)
        or _ratio(_word(ours["symbol"]), _word(theirs["symbol"]), exponent, _WRITTEN_OUT)
    )  # fmt: skip


def _ratio(symbol: str, other: str, exponent: int, prefixes: dict[str, int]) -> Fraction | None:
    for prefix, power in prefixes.items():
        base = symbol.removeprefix(prefix)
        if not base or not symbol.startswith(prefix):
            continue
        for prefix_of_other, power_of_other in prefixes.items():
            if other == prefix_of_other + base:
                return Fraction(10) ** (exponent * (power - power_of_other))
    return None


def _word(unit: str) -> str:
    if len(unit) <= 3 or not unit.isalpha():
        return unit
    unit = unit.casefold()
    return unit.removesuffix("s")
