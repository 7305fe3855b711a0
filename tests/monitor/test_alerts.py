"""Severities, and alerts as strict JSON."""

import json
import math

from trl_ext.monitor.alerts import Alert, Severity
from trl_ext.monitor.strict_json import to_strict_json


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def test_severities_are_ordered_and_equal_their_names():
    assert Severity.INFO < Severity.WARNING < Severity.ERROR < Severity.CRITICAL
    assert max([Severity.ERROR, Severity.WARNING]) is Severity.ERROR
    assert Severity.ERROR == "error"
    assert Severity.ERROR >= "error" and Severity.ERROR <= "critical" and Severity.CRITICAL > "error"
    assert [s.rank for s in Severity] == [0, 1, 2, 3]


def test_an_alert_is_strict_json_and_names_what_was_not_finite():
    alert = Alert(3, "r", Severity.CRITICAL, "kl", math.nan, "m", "a", {"low": -math.inf, "n": 2}, opened=3)
    record = json.loads(to_strict_json(alert.to_dict()), parse_constant=refuse)
    assert record["nonfinite"] == ["evidence.low", "value"]
    assert record["value"] is None and record["evidence"] == {"low": None, "n": 2}
    assert record["severity"] == "critical" and record["closed"] is None


def test_an_alert_comes_back_from_its_json():
    alert = Alert(3, "r", Severity.WARNING, "kl", 1.5, "m", "a", {"n": 2}, opened=2, closed=9)
    assert Alert.from_dict(json.loads(to_strict_json(alert.to_dict()))) == alert
    nan = Alert(3, "r", Severity.WARNING, "kl", math.inf, "m", "a")
    assert math.isnan(Alert.from_dict(json.loads(to_strict_json(nan.to_dict()))).value)


def test_finite_json_is_left_alone():
    assert json.loads(to_strict_json({"a": [1, None, "x"], "b": {"c": 1e-300}})) == {
        "a": [1, None, "x"],
        "b": {"c": 1e-300},
    }


def test_nonfinite_is_found_in_lists():
    assert json.loads(to_strict_json({"a": [1.0, math.nan]})) == {"a": [1.0, None], "nonfinite": ["a.1"]}
