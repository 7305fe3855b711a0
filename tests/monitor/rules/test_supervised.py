"""An easy task is not memorised: what counts is how much lower the loss is on text that was seen before."""

import random

import pytest

from trl_ext.monitor import Engine


@pytest.mark.parametrize(
    ("first_epoch", "later", "memorised"), [(0.12, 0.02, True), (0.05, 0.03, False), (0.5, 0.03, True)]
)
def test_a_low_loss_is_memorised_only_when_it_was_twice_as_high_on_new_text(first_epoch, later, memorised):
    engine = Engine(["overfitting"])
    losses = [2.0] * 3 + [first_epoch] * 17 + [later] * 40
    for i, loss in enumerate(losses):
        engine.observe(i + 1, {"loss": loss, "epoch": i / 20})
    assert bool(engine.alerts) == memorised


def test_it_takes_a_third_epoch():
    engine = Engine(["overfitting"])
    for i in range(41):
        engine.observe(i + 1, {"loss": 2.0 if i < 20 else 0.01, "epoch": i / 20})
    assert not engine.alerts
    for i in range(41, 50):
        engine.observe(i + 1, {"loss": 0.01, "epoch": i / 20})
    assert engine.alerts[0].opened == 46


def test_evaluations_count_from_the_lowest_and_only_while_training_still_falls():
    def alerts(trains, evaluations):
        engine = Engine(["overfitting"])
        for i, (train, evaluation) in enumerate(zip(trains, evaluations, strict=True)):
            for _ in range(8):
                engine.observe(10 * i, {"loss": train})
            engine.observe(10 * i, {"eval_loss": evaluation})
        return [alert.opened for alert in engine.alerts]

    assert alerts([1.0, 0.8, 0.6, 0.4], [1.0, 0.9, 0.95, 0.96]) == [30]
    assert alerts([1.0, 0.8, 0.9, 0.9], [1.0, 0.9, 0.95, 0.96]) == []  # both rise: that is no overfitting
    assert alerts([1.0, 0.8, 0.6, 0.4], [1.0, 0.9, 0.93, 0.94]) == []  # 5% is the noise of an evaluation
    assert alerts([1.0, 0.8, 0.6, 0.4], [1.0, 0.9, 0.96, 0.9]) == []  # once


def test_each_evaluation_set_is_followed_by_itself():
    engine = Engine(["overfitting"])
    for i, (train, a, b) in enumerate([(1.0, 1.0, 5.0), (0.8, 0.9, 4.0), (0.6, 0.95, 3.0), (0.4, 0.96, 2.0)]):
        for _ in range(8):
            engine.observe(10 * i, {"loss": train})
        engine.observe(10 * i, {"eval_easy_loss": a})
        engine.observe(10 * i, {"eval_hard_loss": b})
    (alert,) = engine.alerts
    assert (alert.opened, alert.metric) == (30, "eval/easy/loss") and "(eval/easy/loss)" in alert.message


@pytest.mark.parametrize("shape", [1.0, 3.0, 30.0])
def test_a_noisy_loss_that_stays_is_no_divergence(shape):
    for seed in range(8):
        draw = random.Random(seed)
        engine = Engine(["loss_divergence"])
        for step in range(1500):
            engine.observe(step, {"loss": draw.gammavariate(shape, 1.2 / shape)})
        assert not engine.alerts, (seed, engine.alerts)


def test_another_source_of_data_is_one_alert_at_most():
    for seed in range(8):
        draw = random.Random(seed)
        engine = Engine(["loss_divergence"])
        for step in range(1000):
            engine.observe(step, {"loss": (0.8 if step < 500 else 1.3) + draw.gauss(0, 0.1)})
        assert len(engine.alerts) <= 1
