"""A full disk ends the curves, not the run."""

import errno
import logging
from types import SimpleNamespace

import pytest
from transformers.integrations import TensorBoardCallback

from trl_ext import guard_reporting


class Curves(TensorBoardCallback):
    """Stands for TensorBoard's writer; it fails from the second log on."""

    def __init__(self):
        self.logs = 0

    def on_log(self, args, state, control, **kwargs):
        self.logs += 1
        if self.logs == 2:
            raise OSError(errno.ENOSPC, "No space left on device")


def test_training_goes_on_without_curves_after_one_warning(caplog):
    curves = Curves()
    guard_reporting(SimpleNamespace(callback_handler=SimpleNamespace(callbacks=[curves])))
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            curves.on_log(None, None, None)
    assert curves.logs == 2
    assert [record.getMessage() for record in caplog.records] == [
        "TensorBoard cannot write ([Errno 28] No space left on device): no more curves, training goes on."
    ]


def test_other_errors_pass():
    curves = Curves()
    curves.on_log = lambda *_: 1 / 0
    guard_reporting(SimpleNamespace(callback_handler=SimpleNamespace(callbacks=[curves])))
    with pytest.raises(ZeroDivisionError):
        curves.on_log(None, None, None)
