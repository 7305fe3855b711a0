"""`trl_ext.train`: a clean end where a callback had to raise."""

from types import SimpleNamespace

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


def test_the_result_of_the_trainer_comes_back(tmp_path):
    trainer = Trainer()
    assert train(trainer, resume_from_checkpoint=str(tmp_path)) == "output"
    assert trainer.received == str(tmp_path)


def test_a_checkpoint_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    (tmp_path / "checkpoint-4").mkdir()
    trainer = Trainer()
    trainer.args = SimpleNamespace(output_dir=str(tmp_path))
    with pytest.raises(UserError, match=r"no checkpoint 'last'.*has checkpoint-4"):
        train(trainer, resume_from_checkpoint="last")


@pytest.mark.parametrize("word", [True, "true", "True"])
def test_true_is_the_newest_checkpoint_that_was_saved_to_its_end(tmp_path, word):
    trainer = Trainer()
    trainer.args = SimpleNamespace(output_dir=str(tmp_path))
    for step in (4, 20, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
    with pytest.raises(UserError, match="no whole checkpoint in"):
        train(trainer, resume_from_checkpoint=word)
    for step in (4, 20):
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
    (tmp_path / "checkpoint-100" / "trainer_state.json").write_text('{"epoch": 1.0, "glob')  # killed in mid-write
    train(trainer, resume_from_checkpoint=word)
    assert trainer.received == str(tmp_path / "checkpoint-20")


def test_a_stopped_run_returns_and_says_why(capsys):
    assert train(Trainer(TrainingStopped("stopped at step 3"))) is None
    assert "stopped at step 3" in capsys.readouterr().out


def test_other_errors_pass():
    with pytest.raises(ZeroDivisionError):
        train(Trainer(ZeroDivisionError()))


def test_stock_ppo_which_takes_no_arguments_trains_and_refuses_to_resume(tmp_path):
    assert train(StockPPO(), resume_from_checkpoint=None) is None
    with pytest.raises(UserError, match="TRL_EXT_PPO=trl_ext"):
        train(StockPPO(), resume_from_checkpoint=str(tmp_path))
