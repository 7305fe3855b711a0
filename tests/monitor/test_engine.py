"""One root cause, one alert: opened, raised, closed; warm-up; faults in rules; state."""

import json
import logging
import math
from typing import ClassVar

import pytest

from trl_ext.errors import UserError
from trl_ext.monitor import Engine, Finding, Rule, Severity, Verdict
from trl_ext.monitor.strict_json import to_strict_json


class Scripted(Rule):
    """Says what the metric `say` tells it to: 0 healthy, 1 warning, 2 error, 3 critical; absent: no data."""

    name = "scripted"

    def check(self, row):
        say = row.metrics.get("say")
        if say is None:
            return Verdict.NO_DATA
        if say == 0:
            return Verdict.HEALTHY
        severity = list(Severity)[int(say)]
        return Finding(severity, "say", say, f"said {say:g}", "be quiet", {"said": say})


class ScriptedHistory(Scripted):
    name = "scripted_history"
    statistical: ClassVar[bool] = True


class Broken(Rule):
    name = "broken"

    def check(self, row):
        raise ZeroDivisionError("a fault in a rule")


def run(engine, says, start=1):
    return [
        [
            (alert.rule, str(alert.severity), alert.closed)
            for alert in engine.observe(start + i, {} if s is None else {"say": s})
        ]
        for i, s in enumerate(says)
    ]


def test_an_open_alert_is_updated_not_repeated():
    engine = Engine([Scripted({})])
    assert run(engine, [1, 1, 1]) == [[("scripted", "warning", None)], [], []]
    (alert,) = engine.alerts
    assert (alert.opened, alert.step, alert.evidence) == (1, 1, {"said": 1, "logs": 3, "last_step": 3, "last_value": 1})


def test_a_rise_in_severity_is_reported_and_a_fall_is_not():
    engine = Engine([Scripted({})])
    assert run(engine, [1, 3, 2, 3]) == [[("scripted", "warning", None)], [("scripted", "critical", None)], [], []]
    (alert,) = engine.alerts
    assert (alert.opened, alert.step, alert.message, alert.evidence["said"]) == (1, 2, "said 3", 3)


def test_it_closes_after_five_healthy_logs_in_a_row_and_may_open_again():
    engine = Engine([Scripted({})])
    says = [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0] + [0] * 9 + [2]
    news = run(engine, says)
    assert [i + 1 for i, new in enumerate(news) if new] == [1, 11, 21]
    assert [(alert.opened, alert.closed) for alert in engine.alerts] == [(1, 11), (21, None)]


def test_what_comes_back_within_ten_logs_is_the_same_alert():
    engine = Engine([Scripted({})])
    news = run(engine, [1, 0, 0, 0, 0, 0] + [0] * 8 + [1, 2, 0, 0, 0, 0, 0])
    assert [i + 1 for i, new in enumerate(news) if new] == [
        1,
        6,
        15,
        16,
        21,
    ]  # opened, closed, open again, raised, closed
    (alert,) = engine.alerts
    assert (alert.opened, alert.closed, alert.severity, alert.evidence["logs"]) == (1, 21, "error", 3)


class Consequence(Scripted):
    name = "consequence"
    explained_by = ("scripted",)


def test_what_a_cause_explains_is_not_told_twice_unless_it_is_worse():
    same = Engine([Scripted({}), Consequence({})])
    run(same, [1, 1, 1])
    assert [alert.rule for alert in same.alerts] == ["scripted"]

    class Worse(Consequence):
        def check(self, row):
            return Finding("critical", "say", 1.0, "worse", "")

    worse = Engine([Scripted({}), Worse({})])
    run(worse, [1])
    assert [(alert.rule, alert.severity) for alert in worse.alerts] == [
        ("scripted", "warning"),
        ("consequence", "critical"),
    ]


def test_a_rule_sees_only_logs_that_carry_one_of_its_metrics():
    seen = []

    class Reader(Scripted):
        name = "reader"
        metrics = ("kl_per_token", "reward/*")

        def check(self, row):
            seen.append(row.step)
            return Verdict.HEALTHY

    engine = Engine([Reader({})])
    for step, logs in enumerate([{"kl": 1.0}, {"loss": 1.0}, {"rewards/f/mean": 0.0}, {"kl": math.nan}, {"kl": None}]):
        engine.observe(step, logs)
    assert seen == [0, 2, 3, 4]


def test_two_rules_of_one_name_are_refused():
    with pytest.raises(UserError, match="two rules are named 'scripted'"):
        Engine([Scripted({}), Scripted({})])


def test_a_log_without_the_metric_never_counts_as_recovery():
    engine = Engine([Scripted({})])
    run(engine, [1] + [None] * 50)
    assert engine.alerts[0].closed is None


def test_severity_is_that_of_this_very_log():
    engine = Engine([Scripted({})])
    seen = []
    for step, say in enumerate([0, 3, 1, None, 3]):
        engine.observe(step, {} if say is None else {"say": say})
        seen.append(engine.severity)
    assert seen == [None, "critical", "warning", None, "critical"]


def test_severity_is_the_worst_of_all_rules():
    for order in ([Severity.ERROR, Severity.WARNING], [Severity.WARNING, Severity.ERROR]):
        kl, ratio = ({"warning": 12.0, "error": 40.0}[order[0]], {"warning": 1.5, "error": 3.0}[order[1]])
        engine = Engine(["kl_high", "ratio_out_of_band"])
        for step in range(3):
            engine.observe(step, {"objective/kl": kl, "val/ratio": ratio})
        assert engine.severity == "error"


def test_rules_that_need_a_history_stay_quiet_in_warm_up_and_others_do_not():
    engine = Engine([Scripted({}), ScriptedHistory({})], warmup_steps=3)
    news = run(engine, [1, 1, 1, 1])
    assert [[rule for rule, *_ in new] for new in news] == [["scripted"], [], [], ["scripted_history"]]


def test_evaluation_logs_are_no_warm_up():
    engine = Engine([ScriptedHistory({})], warmup_steps=2)
    for step in range(5):
        engine.observe(step, {"eval_loss": 1.0})
    assert run(engine, [1, 1, 1]) == [[], [], [("scripted_history", "warning", None)]]


def test_real_rules_obey_the_warm_up():
    rows = [{"entropy": 1.0, "reward": 0.0}] * 3 + [{"entropy": 0.1, "reward": 0.0}] * 17
    opened = []
    for warmup in (0, 15):
        engine = Engine(["entropy_collapse"], warmup_steps=warmup)
        for step, row in enumerate(rows, 1):
            engine.observe(step, row)
        opened.append(engine.alerts[0].opened)
    assert opened == [8, 16]
    engine = Engine(warmup_steps=100)
    assert engine.observe(1, {"loss": math.nan})[0].severity == "critical"


def test_a_fault_in_a_rule_switches_that_rule_off_with_one_traceback(caplog):
    engine = Engine([Broken({}), Scripted({})])
    with caplog.at_level(logging.ERROR):
        assert run(engine, [1, 1, 1])[0] == [("scripted", "warning", None)]
    (record,) = caplog.records
    assert "broken" in record.getMessage() and record.exc_info[0] is ZeroDivisionError


def test_memory_does_not_grow_with_alerts():
    engine = Engine([Scripted({}), ScriptedHistory({})], warmup_steps=0, max_alerts=5)
    engine.observe(0, {"say": 1})
    run(engine, ([2] + [0] * 15) * 40)
    assert len(engine.alerts) == 5
    assert engine.alerts[-1].opened > 200


def test_unknown_rules_and_thresholds_name_the_nearest():
    with pytest.raises(UserError, match="did you mean 'kl_high'"):
        Engine(["kl_hihg"])
    with pytest.raises(UserError, match=r"did you mean 'kl_high\.logs'"):
        Engine(thresholds={"kl_high.log": 3})
    with pytest.raises(UserError, match="unknown rule"):
        Engine([3])


@pytest.mark.parametrize("options", [{"window": 2}, {"window": 8.5}, {"warmup_steps": -1}, {"warmup_steps": "10"}])
def test_numbers_that_make_no_sense_are_named(options):
    with pytest.raises(UserError, match=next(iter(options))):
        Engine(**options)


def test_one_rule_by_name_judges_alone():
    engine = Engine("kl_high")
    for step in range(4):
        engine.observe(step, {"objective/kl": 50.0, "reward": math.nan})
    assert {alert.rule for alert in engine.alerts} == {"kl_high"}


def test_thresholds_reach_their_rule():
    engine = Engine(["kl_high"], thresholds={"kl_high": {"per_sequence_warning": 3, "logs": 1}})
    (alert,) = engine.observe(1, {"objective/kl": 4.0})
    assert alert.rule == "kl_high" and "above 3 for 1" in alert.message


def long_run():
    """A run in which many rules fire, and rest."""
    rows = []
    for i in range(120):
        row = {
            "objective/kl": 5.0,
            "policy/entropy_avg": 2.0,
            "loss/value_avg": 0.5,
            "val/ratio": 1.0,
            "objective/scores": 1.0,
        }
        if i > 40:
            row["objective/kl"] = 12.0 + (i % 3)
        if i > 50:
            row |= {"policy/entropy_avg": 0.2, "loss/value_avg": 0.5 * 1.2 ** (i - 50)}
        if 60 < i < 64:
            row["val/ratio"] = 3.0
        if i == 80:
            row["objective/scores"] = math.nan
        rows.append(row)
    return rows


def told(news):
    """What was said, without how the numbers went on behind it."""
    return sorted(
        (a["rule"], a["opened"], a["step"], str(a["severity"]), a["closed"] or -1, a["message"]) for a in news
    )


@pytest.mark.parametrize("cut", [1, 43, 53, 62, 81, 100])
def test_a_resumed_engine_goes_on_as_if_never_stopped(cut):
    rows = long_run()
    whole, before, after = Engine(), Engine(), Engine()
    expected = [a.to_dict() for i, row in enumerate(rows) for a in whole.observe(i, row)]
    expected += [a.to_dict() for a in whole.flush()]
    assert len({alert.rule for alert in whole.alerts}) > 5
    news = [a.to_dict() for i, row in enumerate(rows[:cut]) for a in before.observe(i, row)]
    news += [a.to_dict() for a in before.flush()]
    after.load_state_dict(json.loads(to_strict_json(before.state_dict())))
    news += [a.to_dict() for i, row in enumerate(rows[cut:], cut) for a in after.observe(i, row)]
    news += [a.to_dict() for a in after.flush()]
    assert told(news) == told(expected)
    states = [json.loads(to_strict_json(engine.state_dict())) for engine in (after, whole)]
    assert states[0] == states[1]


def test_state_of_other_options_starts_that_rule_afresh_and_says_so(caplog):
    before, after = Engine(["kl_high", "ratio_out_of_band"]), Engine(["kl_high", "entropy_collapse"])
    for i in range(2):
        before.observe(i, {"objective/kl": 12.0})
    state = before.state_dict()
    state["rules"]["entropy_collapse"] = {"_start": {"of": "another version"}}
    after.load_state_dict(state)
    assert "entropy_collapse" in caplog.text and "kl_high" not in caplog.text
    assert after.observe(2, {"objective/kl": 12.0})[0].rule == "kl_high"


class Patient(Scripted):
    name = "patient"
    patient = True


def test_a_patient_rule_is_asked_about_four_logs_at_once_and_knows_their_steps():
    engine = Engine([Patient({})])
    assert run(engine, [0, 1, 1, 0, 3]) == [[], [], [], [("patient", "warning", None)], []]
    assert engine.alerts[0].severity == "critical"  # who looks at the alerts sees the latest log, too
    assert [(alert.opened, alert.step) for alert in engine.alerts] == [(2, 5)]
    assert [str(alert.severity) for alert in engine.observe(6, {"say": 3})] == ["critical"]  # and it is still told


def test_what_opens_and_closes_within_four_logs_is_told_twice():
    class Brief(Patient):
        close_after = 1

    engine = Engine([Brief({})])
    news = run(engine, [0, 1, 0, 0])[-1]
    assert news == [("patient", "warning", None), ("patient", "warning", 3)]


def test_nothing_is_lost_when_a_run_ends_between():
    engine = Engine([Patient({})])
    run(engine, [1, 1])
    assert [alert.rule for alert in engine.flush()] == ["patient"]
    assert engine.flush() == []
    again = Engine([Patient({})])
    run(again, [1, 1])
    state = again.state_dict()
    assert [alert["rule"] for alert in state["alerts"]] == ["patient"]


def test_a_cause_counts_at_the_step_it_was_open():
    class Consequence(Patient):
        name = "patient_consequence"
        explained_by = ("scripted",)

    brief = type("Brief", (Scripted,), {"close_after": 1})
    engine = Engine([brief({}), Consequence({})])
    run(engine, [1, 0, 0, 1])  # the cause was open at steps 1 and 4, when the consequence was seen
    assert [alert.rule for alert in engine.alerts if alert.rule == "patient_consequence"] == []
