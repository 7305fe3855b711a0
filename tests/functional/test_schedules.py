"""Coefficients against their closed forms."""

import pytest

from trl_ext.functional import decayed


@pytest.mark.parametrize(
    ("start", "decay", "floor", "step", "expected"),
    [(0.1, 0.5, 0.0, 3, 0.0125), (0.1, 0.5, 0.02, 3, 0.02), (0.1, 1.0, 0.0, 9, 0.1), (0.1, 0.5, 0.02, 0, 0.1),
     (0.01, 0.5, 0.02, 5, 0.01), (0.1, 0.0, 0.0, 1, 0.0)],
)  # fmt: skip
def test_decay_is_geometric_down_to_the_floor(start, decay, floor, step, expected):
    assert decayed(start, decay, floor, step) == pytest.approx(expected)
