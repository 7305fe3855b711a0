"""What alerts, samples and the model card rest on in Transformers and TRL; a failure names the file that has to follow.

Trackers that fail are in `trl_ext/callbacks/reporting_guard.py`, which rests on the table of reporting callbacks.
"""

import inspect

import pytest
import trl
from transformers import Trainer, TrainerState
from transformers.integrations import TensorBoardCallback, TrackioCallback, WandbCallback
from trl.trainer.base_trainer import _BaseTrainer

TRACKERS, TABLES, CARD = (f"trl_ext/callbacks/{name}.py" for name in ("_trackers", "_sample_tables", "_model_card"))
SAVING = ("SFTTrainer", "DPOTrainer", "RewardTrainer", "KTOTrainer", "GRPOTrainer", "RLOOTrainer")


LOGS = 'log({**non_scalar_logs, "train/global_step": state.global_step})'


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        (TensorBoardCallback, ["self.tb_writer = tb_writer", "self.tb_writer.close()", "self.tb_writer = None"]),
        (WandbCallback, ["self._wandb = wandb", f"self._wandb.{LOGS}"]),
        (TrackioCallback, ["self._trackio = trackio", "self._initialized = True", f"self._trackio.{LOGS}"]),
    ],
)
def test_trackers_keep_their_packages_and_writers_where_they_did(kind, lines):
    source = inspect.getsource(kind)
    assert [line for line in lines if line not in source] == [], TRACKERS


@pytest.mark.parametrize("name", ["GRPOTrainer", "RLOOTrainer"])
def test_completions_are_kept_whether_they_are_logged_or_not(name):
    source = inspect.getsource(getattr(trl, name))
    for line in (
        'self._logs["prompt"].extend(',
        'self._logs["completion"].extend(',
        'self._logs["rewards"][name].extend(',
    ):
        assert line in source, TABLES
    scoring = inspect.getsource(getattr(trl, name)._generate_and_score_completions)
    before = scoring[: scoring.index('self._logs["prompt"].extend(')]
    assert "log_completions" not in before, TABLES
    log = inspect.getsource(getattr(trl, name).log)
    assert log.index("super().log(logs, start_time)") < log.index('logging_backend.log({"completions":'), TABLES


def _order(source, *lines):
    return [source.index(line) for line in lines]


@pytest.mark.parametrize("name", SAVING)
def test_the_card_is_written_before_a_checkpoint_is_uploaded(name):
    source = inspect.getsource(getattr(trl, name)._save_checkpoint)
    places = _order(source, "self.create_model_card(model_name=model_name)", "super()._save_checkpoint(model, trial)")
    assert places == sorted(places), CARD
    assert getattr(trl, name).create_model_card is _BaseTrainer.create_model_card, CARD


def test_and_before_the_upload_at_the_end():
    assert "self._push_from_checkpoint(output_dir)" in inspect.getsource(Trainer._save_checkpoint), CARD
    places = _order(
        inspect.getsource(Trainer.push_to_hub), "on_push_begin", "self.create_model_card(", "upload_folder("
    )
    assert places == sorted(places), CARD
    assert 'os.path.join(self.args.output_dir, "README.md")' in inspect.getsource(_BaseTrainer.create_model_card), CARD
    assert 'ignore_patterns=["_*"' in inspect.getsource(Trainer.push_to_hub), CARD  # our temporary file


@pytest.mark.stock_ppo
def test_stock_ppo_writes_its_card_as_the_others_do():
    from trl.experimental.ppo import PPOTrainer

    source = inspect.getsource(PPOTrainer._save_checkpoint)
    places = _order(source, "self.create_model_card(model_name=model_name)", "super()._save_checkpoint(model, trial)")
    assert places == sorted(places), CARD


def test_the_state_knows_the_length_of_the_run():
    assert {"max_steps", "global_step", "is_world_process_zero"} <= set(
        vars(TrainerState()) | {"is_world_process_zero": 0}
    )
