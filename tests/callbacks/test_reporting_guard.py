"""A tracker that fails ends its curves, not the run."""

import errno
import logging
from types import SimpleNamespace

import pytest
from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback

from trl_ext import TrainingStopped, guard_reporting


class Curves(TensorBoardCallback):
    """Stands for TensorBoard's writer; it fails from the second log on."""

    def __init__(self, error):
        self.logs, self.error = 0, error

    def on_log(self, args, state, control, **kwargs):
        self.logs += 1
        if self.logs == 2:
            raise self.error

    def on_train_end(self, args, state, control, **kwargs):
        self.logs = -1


def guarded(*callbacks):
    guard_reporting(SimpleNamespace(callback_handler=SimpleNamespace(callbacks=callbacks)))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "[Errno 28] No space left on device"),
        (ZeroDivisionError("division by zero"), "division by zero"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_training_goes_on_without_curves_after_one_warning(caplog, error, said):
    curves = Curves(error)
    guarded(curves)
    guarded(curves)  # a second time it does nothing
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            curves.on_log(None, None, None)
        curves.on_train_end(None, None, None)
    assert curves.logs == 2
    assert [record.getMessage() for record in caplog.records] == [
        f"TensorBoard failed ({said}): no more curves there, training goes on."
    ]
    assert bool(caplog.records[0].exc_info) is not isinstance(error, OSError)  # a full disk needs no traceback


def test_a_decision_to_stop_passes():
    curves = Curves(TrainingStopped("stop"))
    guarded(curves)
    curves.on_log(None, None, None)
    with pytest.raises(TrainingStopped):
        curves.on_log(None, None, None)


def test_a_callback_that_is_no_tracker_is_left_as_it_is():
    class Users(TrainerCallback):
        def on_log(self, *args, **kwargs):
            raise ZeroDivisionError

    users = Users()
    guarded(users)
    with pytest.raises(ZeroDivisionError):
        users.on_log(None, None, None)
