"""Every rule names its fault in time and with its severity, and stays silent on what comes close."""

import importlib.util
import re
from pathlib import Path

import pytest

from trl_ext.monitor import RULES, Engine
from trl_ext.monitor.rules import FAMILIES
from trl_ext.monitor.strict_json import to_strict_json
from trl_ext.monitor.thresholds import THRESHOLDS

_spec = importlib.util.spec_from_file_location("rule_cases", Path(__file__).with_name("cases.py"))
cases = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(cases)
CASES = cases.CASES
IDS = [f"{case.rule}-{i}" for i, case in enumerate(CASES)]


def judge(case, rows, facts):
    engine = Engine([case.rule], facts=facts)
    for i, row in enumerate(rows):
        if i == case.resumed_at:
            engine.resumed()
        engine.observe(i + 1, row)
    return engine.alerts


def said(engine):
    """In a form in which NaN equals NaN."""
    return to_strict_json({"alerts": [alert.to_dict() for alert in engine.alerts]})


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_fault_is_named_in_time(case):
    alerts = judge(case, case.faulty, case.facts)
    assert len(alerts) == 1
    (alert,) = alerts
    assert (alert.rule, str(alert.severity)) == (case.rule, case.severity)
    assert case.begins <= alert.opened - 1 <= case.begins + case.within


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_what_comes_close_is_left_alone(case):
    # the case of another data order differs from its fault in the facts alone
    facts = case.facts if case.rule != "resume_discontinuity" else {}
    assert judge(case, case.healthy, facts) == []


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_an_alert_has_numbers_causes_in_order_and_an_option(case):
    (alert,) = judge(case, case.faulty, case.facts)
    assert re.search(r"\d", alert.message) or case.rule == "tokenizer_setup"
    assert "\n" not in alert.message + alert.advice
    assert re.search(r"[a-z]+_[a-z_]+", alert.advice), "no option is named"


@pytest.mark.parametrize("case", CASES, ids=IDS)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_rule_resumes_in_the_middle_of_its_fault(case, share):
    cut = int(share * len(case.faulty))
    whole, before, after = (Engine([case.rule], facts=case.facts) for _ in range(3))
    for i, row in enumerate(case.faulty):
        if i == cut:
            after.load_state_dict(before.state_dict())
        if i == case.resumed_at:
            for engine in (whole, before, after):
                engine.resumed()
        whole.observe(i + 1, row)
        (before if i < cut else after).observe(i + 1, row)
    if case.resumed_at is None or cut <= case.resumed_at:
        assert said(after) == said(whole)


def test_every_rule_has_a_case():
    assert {case.rule for case in CASES} == set(RULES)


def test_every_threshold_belongs_to_a_rule_that_reads_it_and_is_named_once():
    names = [threshold.name for threshold in THRESHOLDS]
    assert len(set(names)) == len(names)
    assert {name.split(".")[0] for name in names} <= set(RULES)
    assert all(threshold.source and threshold.unit for threshold in THRESHOLDS)


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_every_rule_says_what_it_sees_why_it_matters_where_it_comes_from_and_its_default(rule):
    text = rule.__doc__
    assert "Sees" in text and "Matters:" in text and "Source:" in text
    assert "Default" in text or "at once" in text or "never" in text or "warning" in text


def test_causes_are_judged_before_what_they_explain():
    order = list(RULES)
    for rule in RULES.values():
        for cause in rule.explained_by:
            assert cause in RULES
            assert order.index(cause) < order.index(rule.name), (cause, rule.name)
    assert sum(map(len, FAMILIES.values())) == len(RULES)
