"""A run ends in time, with a checkpoint."""

import time
from datetime import datetime, timedelta, timezone

import pytest

from trl_ext.callbacks import TimeBudgetCallback
from trl_ext.callbacks._deadline import find_end
from trl_ext.errors import UserError


class Clock:
    """`time.monotonic` of the callback, moved by hand."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr("trl_ext.callbacks.time_budget.time.monotonic", lambda: self.now)

    def slow_steps(self, trainer, seconds):
        """Each step of training takes so many seconds (`{step: seconds}` or one number)."""
        take = trainer.training_step

        def slowly(*args, **kwargs):
            self.now += seconds[trainer.state.global_step + 1] if isinstance(seconds, dict) else seconds
            return take(*args, **kwargs)

        trainer.training_step = slowly
        return trainer


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.mark.parametrize(
    ("seconds", "reserve", "step", "last"),
    [
        (100, 0, 10, 10),  # after ten steps nothing is left
        (100, 20, 10, 8),
        (95, 0, 10, 9),  # a tenth would not fit
        (100, None, 10, 9),  # 5 seconds in reserve
        (1000, 0, 200, 5),
    ],
)
def test_it_stops_before_the_step_that_would_not_fit(scripted, tmp_path, clock, seconds, reserve, step, last):
    callback = TimeBudgetCallback(seconds=seconds, reserve=reserve)
    trainer = clock.slow_steps(scripted(callback, steps=30), step)
    trainer.train()
    assert trainer.state.global_step == last
    assert (tmp_path / "run" / f"checkpoint-{last}" / "trainer_state.json").is_file()


def test_the_slowest_step_counts(scripted, clock):
    durations = {step: 20 if step == 2 else 1 for step in range(1, 99)}
    trainer = clock.slow_steps(scripted(TimeBudgetCallback(seconds=45, reserve=0), steps=40), durations)
    trainer.train()
    # 26 are gone after step 7, and another 20 would not fit into the rest
    assert trainer.state.global_step == 7


def test_the_slowest_step_is_forgotten_in_time(scripted, clock):
    durations = {step: 30 if step == 1 else 1 for step in range(1, 99)}
    trainer = clock.slow_steps(scripted(TimeBudgetCallback(seconds=91, reserve=0), steps=90), durations)
    trainer.train()
    assert trainer.state.global_step > 50


def test_a_slow_save_raises_the_reserve(scripted, clock):
    callback = TimeBudgetCallback(seconds=1000)
    trainer = clock.slow_steps(scripted(callback, steps=3, save_strategy="steps", save_steps=1), 1)
    save = trainer._save_checkpoint

    def slowly(*args, **kwargs):
        clock.now += 70
        save(*args, **kwargs)

    trainer._save_checkpoint = slowly
    trainer.train()
    assert callback._reserve == 140


def test_a_run_within_its_time_is_left_alone(scripted, tmp_path):
    trainer = scripted(TimeBudgetCallback(hours=1), steps=3)
    trainer.train()
    assert trainer.state.global_step == 3 and not list((tmp_path / "run").glob("checkpoint-*"))


def test_a_resumed_run_has_its_own_budget(scripted, clock):
    clock.slow_steps(scripted(TimeBudgetCallback(seconds=100, reserve=0), steps=15), 10).train()
    trainer = clock.slow_steps(scripted(TimeBudgetCallback(seconds=100, reserve=0), steps=15), 10)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 15


def test_the_units_add_up_and_the_earliest_end_counts(monkeypatch):
    assert find_end(1, 2, 3, None, None) == 3723
    soon = datetime.now() + timedelta(seconds=50)
    for deadline in (soon, soon.astimezone(timezone(timedelta(hours=9))), soon.isoformat(), soon.timestamp()):
        assert find_end(1, None, None, deadline, None) == pytest.approx(50, abs=5)
        assert find_end(None, None, 10, deadline, None) == 10


def test_slurm_says_when_it_ends(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time() + 500)))
    assert find_end(None, None, None, None, None) == pytest.approx(500, abs=5)
    assert find_end(1, None, None, None, None) == 3600
    monkeypatch.setenv("SLURM_JOB_END_TIME", "tomorrow")
    with pytest.raises(UserError, match="SLURM_JOB_END_TIME"):
        TimeBudgetCallback()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give hours"),
        ({"hours": -1}, "hours"),
        ({"minutes": "5"}, "minutes"),
        ({"seconds": 0}, "over"),
        ({"seconds": 10, "reserve": 20}, "over"),
        ({"deadline": "soon"}, "deadline"),
        ({"deadline": 5}, "over"),
        ({"deadline": [1]}, "deadline"),
        ({"seconds": 10, "reserve": -1}, "reserve"),
    ],
)
def test_a_mistake_is_one_line_at_once(options, message, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    with pytest.raises(UserError, match=message) as raised:
        TimeBudgetCallback(**options)
    assert "\n" not in str(raised.value)
