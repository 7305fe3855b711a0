"""Thresholds: one table, every mistake in one line."""

import pytest

from trl_ext.errors import UserError
from trl_ext.monitor.rules import RULES
from trl_ext.monitor.thresholds import THRESHOLDS, resolve_thresholds


def test_each_has_a_unit_a_source_and_a_rule_that_exists():
    for threshold in THRESHOLDS:
        assert threshold.unit and threshold.source
        assert threshold.name.split(".")[0] in RULES


def test_both_forms_change_one_limit_and_leave_the_others():
    flat = resolve_thresholds({"kl_high.logs": 7})
    assert flat == resolve_thresholds({"kl_high": {"logs": 7}})
    assert flat["kl_high"]["logs"] == 7
    flat["kl_high"]["logs"] = 3
    assert flat == resolve_thresholds()


@pytest.mark.parametrize("name", ["kl_hihg.logs", "kl_high.log"])
def test_an_unknown_name_names_the_nearest(name):
    with pytest.raises(UserError, match=r"did you mean 'kl_high\.logs'"):
        resolve_thresholds({name: 3})


@pytest.mark.parametrize("value", ["10", None, True, float("nan"), float("inf"), [1]])
def test_a_value_of_the_wrong_type_is_named(value):
    with pytest.raises(UserError, match=r"kl_high\.per_token_error"):
        resolve_thresholds({"kl_high.per_token_error": value})


@pytest.mark.parametrize("value", [0, 2.5, -1])
def test_a_number_of_logs_is_a_whole_one(value):
    with pytest.raises(UserError, match="whole number"):
        resolve_thresholds({"kl_high.logs": value})


def test_no_mapping_is_named():
    with pytest.raises(UserError, match="mapping"):
        resolve_thresholds(["kl_high"])
