"""`trl_ext.train`: a clean end where a callback had to raise."""

import pytest

from trl_ext import TrainingStopped, UserError, train


class Trainer:
    """Stands for a trainer whose `train` takes what TRL's does."""

    def __init__(self, error=None):
        self.error, self.received = error, None

    def train(self, resume_from_checkpoint=None):
        self.received = resume_from_checkpoint
        if self.error:
            raise self.error
        return "output"


class StockPPO:
    def train(self):
        return None


def test_the_result_of_the_trainer_comes_back():
    trainer = Trainer()
    assert train(trainer, resume_from_checkpoint="checkpoint-4") == "output"
    assert trainer.received == "checkpoint-4"


def test_a_stopped_run_returns_and_says_why(capsys):
    assert train(Trainer(TrainingStopped("stopped at step 3"))) is None
    assert "stopped at step 3" in capsys.readouterr().out


def test_other_errors_pass():
    with pytest.raises(ZeroDivisionError):
        train(Trainer(ZeroDivisionError()))


def test_stock_ppo_which_takes_no_arguments_trains_and_refuses_to_resume():
    assert train(StockPPO(), resume_from_checkpoint=None) is None
    with pytest.raises(UserError, match="TRL_EXT_PPO=trl_ext"):
        train(StockPPO(), resume_from_checkpoint="checkpoint-4")
