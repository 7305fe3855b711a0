import pytest

from trl_ext.monitor.rows import read_row
from trl_ext.monitor.rules import RULES, Finding, Verdict
from trl_ext.monitor.thresholds import resolve_thresholds


def severities(values):
    rule = RULES["ratio_out_of_band"](resolve_thresholds()["ratio_out_of_band"])
    verdicts = [rule.check(read_row(i, {"val/ratio": value})) for i, value in enumerate(values)]
    return [v.severity if isinstance(v, Finding) else None for v in verdicts]


@pytest.mark.parametrize(
    ("values", "last"),
    [
        ((0.8, 0.8), None), ((1.25, 1.25), None), ((0.79, 0.79), "warning"), ((1.26, 1.26), "warning"),
        ((0.79, 1.26), "warning"), ((0.5, 0.5), "warning"), ((0.49, 0.49), "error"), ((2.1, 2.1), "error"),
        ((1.0, 0.09), "critical"), ((1.0, 10.1), "critical"), ((1.0, 10.0), None), ((0.7, 3.0), "warning"),
    ],
)  # fmt: skip
def test_bands(values, last):
    assert severities(values)[-1] == last


def test_one_stray_batch_is_no_news():
    assert severities((1.0, 0.75, 1.0, 1.3, 1.0)) == [None] * 5


def test_an_update_without_the_metric_says_nothing():
    rule = RULES["ratio_out_of_band"](resolve_thresholds()["ratio_out_of_band"])
    assert rule.check(read_row(1, {"loss": 1.0, "policy/approxkl_avg": 99.0})) is Verdict.NO_DATA
