import math
import sys

import pytest

from trl_ext.monitor.alerts import Alert, Severity
from trl_ext.reporting import closing_summary, run_summary


def ramp(count):
    """Rewards 1, 2, ..., count: the mean of the first tenth is known in closed form."""
    return [{"step": i, "reward": float(i)} for i in range(1, count + 1)]


@pytest.mark.parametrize(("count", "first", "last"), [(100, 5.5, 95.5), (25, 1.5, 24.5), (9, 1.0, 9.0), (1, 1.0, 1.0)])
def test_first_and_last_are_the_means_of_a_tenth_of_the_run(count, first, last):
    summary = run_summary(ramp(count))
    assert summary["reward"] == {"first": first, "last": last, "count": count, "nonfinite": 0}
    assert (summary["step"], summary["logs"]) == (count, count)


@pytest.mark.parametrize(
    ("key", "quantity"),
    [
        ("reward", "reward"),
        ("objective/scores", "reward"),
        ("objective/kl", "kl"),
        ("kl", "kl"),
        ("policy/entropy_avg", "entropy"),
        ("entropy", "entropy"),
        ("value/explained_variance", "explained_variance"),
        ("completions/mean_length", "length"),
        ("completion_length", "length"),
        ("kl_per_sequence", "kl"),
        ("loss", "loss"),
    ],
)
def test_every_trainers_key_is_read(key, quantity):
    summary = run_summary([{"step": 1, key: 2.0}, {"step": 2, key: 4.0}])
    assert set(summary) == {"step", "logs", quantity}
    assert (summary[quantity]["first"], summary[quantity]["last"]) == (2.0, 4.0)


def test_the_sum_over_the_sequence_comes_before_the_mean_per_token():
    assert run_summary([{"step": 1, "kl": 0.1, "objective/kl": 5.0}])["kl"]["first"] == 5.0


def test_none_is_no_data_and_nan_is_counted():
    rows = [
        {"step": 1, "reward": 1.0},
        {"step": 2, "reward": None},
        {"step": 3, "reward": None, "nonfinite": ["reward"]},
        {"step": 4, "reward": math.nan},
        {"step": 5, "reward": 3.0},
        {"step": 5, "eval_reward": 100.0, "train_runtime": 1.0},
    ]
    assert run_summary(rows)["reward"] == {"first": 1.0, "last": 3.0, "count": 2, "nonfinite": 2}
    assert run_summary([{"step": 1, "kl": math.inf}])["kl"] == {"first": None, "last": None, "count": 0, "nonfinite": 1}


def test_an_empty_run_is_summed_up_too():
    assert run_summary([]) == {"step": 0, "logs": 0}
    assert "nothing was logged: set logging_steps" in closing_summary(run_summary([]))


ROWS = [
    {"step": i, "reward": i / 100, "objective/kl": 2.0, "entropy": 3.0, "completions/mean_length": 19.0, "loss": 0.5}
    for i in range(1, 101)
]


def alert(severity, rule, closed=None):
    return Alert(40, rule, Severity(severity), "kl", 12.3, "KL is 12.3", "Raise kl_coef.", opened=30, closed=closed)


def test_the_summary_says_where_each_quantity_went():
    text = closing_summary(run_summary(ROWS))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "After 100 steps"
    assert "reward 0.055 -> 0.955 (+0.900)" in lines
    assert "KL to the reference 2.00 -> 2.00" in lines
    assert "entropy 3.00 -> 3.00" in lines
    assert "completion length 19.0 -> 19.0" in lines
    assert "means of the first and the last 10 of 100 logs" in lines
    assert not any(line.startswith("loss") for line in lines)


def test_a_run_without_rewards_shows_its_loss():
    text = closing_summary(run_summary([{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}]))
    assert "loss 3.000 -> 2.000" in " ".join(text.split())


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (100, "means of the first and the last 10 of 100 logs"),
        (20, "means of the first and the last 2 of 20 logs"),
        (19, "the first and the last of 19 logs"),
    ],
)
def test_it_says_what_first_and_last_are(count, said):
    rows = [*ramp(count), {"step": count, "eval_reward": 1.0}]
    assert closing_summary(run_summary(rows)).splitlines()[-1] == f"  {said}"


def test_values_that_are_no_numbers_are_not_hidden():
    rows = [*ROWS, {"step": 101, "reward": math.nan, "value/explained_variance": math.nan}]
    text = " ".join(closing_summary(run_summary(rows)).split())
    assert "(+0.900) (not finite: 1)" in text
    assert "explained variance never a finite number" in text


def test_no_alerts_is_said_and_no_monitor_is_not_mistaken_for_it():
    assert "none: the monitor found nothing" in closing_summary(run_summary(ROWS), alerts=[])
    assert "Alerts" not in closing_summary(run_summary(ROWS))


def test_alerts_come_worst_first_from_objects_and_from_the_summary_file():
    alerts = [
        alert("info", "a"),
        alert("critical", "b", closed=35),
        alert("warning", "c").to_dict(),
        alert("error", "d"),
    ]
    lines = [line.strip() for line in closing_summary(run_summary(ROWS), alerts).split("Alerts (4)\n")[1].splitlines()]
    assert lines == [
        "critical from step 30, gone since step 35, b: KL is 12.3. Raise kl_coef.",
        "error from step 30, d: KL is 12.3. Raise kl_coef.",
        "warning from step 30, c: KL is 12.3. Raise kl_coef.",
        "info from step 30, a: KL is 12.3. Raise kl_coef.",
    ]


def test_many_alerts_are_cut_and_counted():
    text = closing_summary(run_summary(ROWS), [alert("warning", f"rule{i}") for i in range(12)])
    assert "Alerts (12)" in text
    assert text.count("Raise kl_coef") == 8
    assert "and 4 more in alerts.jsonl" in text


def test_files_and_commands_stay_whole_to_be_copied():
    long = "accelerate launch recipes/ppo.py --config recipes/ppo.yaml --kl_coef 0.1 --learning_rate 1e-4 " + "x" * 60
    text = closing_summary(run_summary(ROWS), files={"runs/ppo": "the policy"}, next_commands={long: "a calmer run"})
    assert "Files\n  runs/ppo  the policy" in text
    assert f"Try next\n  {long}\n      a calmer run" in text


def test_a_log_file_gets_plain_ascii_and_a_terminal_bold_headings(monkeypatch):
    plain = closing_summary(run_summary(ROWS), [alert("error", "d")])
    assert plain.isascii()
    assert "\x1b" not in plain
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    bold = closing_summary(run_summary(ROWS), [alert("error", "a_rule_with_a_name_of_a_certain_length")])
    assert bold.startswith("\x1b[1mAfter 100 steps\x1b[0m")
    assert max(map(len, bold.splitlines())) <= 60
