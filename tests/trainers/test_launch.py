"""`trl_ext.train`: a clean end where a callback had to raise."""

import inspect
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from safetensors.torch import save_file
from transformers import Trainer as Trainer_

from trl_ext import TrainingStopped, UserError, train
from trl_ext.checkpoints import saved
from trl_ext.checkpoints.saved import _WEIGHTS, how_to_go_on, lost_states


class Trainer:
    """Stands for a trainer whose `train` takes what TRL's does."""

    def __init__(self, error=None):
        self.error, self.received = error, None

    def train(self, resume_from_checkpoint=None):
        self.received = resume_from_checkpoint
        if self.error:
            raise self.error
        return "output"


def run_in(folder, **attributes):
    trainer = Trainer()
    trainer.args = SimpleNamespace(output_dir=str(folder))
    vars(trainer).update(attributes)
    return trainer


class StockPPO:
    def train(self):
        return None


def test_the_result_of_the_trainer_comes_back(tmp_path):
    trainer = Trainer()
    path = str(checkpoint(tmp_path, 4))
    assert train(trainer, resume_from_checkpoint=path) == "output"
    assert trainer.received == path


def test_a_checkpoint_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    (tmp_path / "checkpoint-4").mkdir()
    trainer = run_in(tmp_path)
    with pytest.raises(UserError, match=r"no checkpoint 'last'.*has checkpoint-4"):
        train(trainer, resume_from_checkpoint="last")


@pytest.mark.parametrize(("max_steps", "told"), [(4, True), (3, True), (5, False), (-1, False)])
def test_a_run_that_is_at_its_end_is_told(tmp_path, caplog, max_steps, told):
    trainer = run_in(tmp_path)
    trainer.args.max_steps = max_steps
    train(trainer, resume_from_checkpoint=str(checkpoint(tmp_path, 4)))
    assert ("is at the end of this run (step 4 of" in caplog.text) == told


def test_the_folder_of_a_run_is_no_checkpoint(tmp_path):
    checkpoint(tmp_path, 4)
    (checkpoint(tmp_path, 6) / "trainer_state.json").unlink()
    with pytest.raises(UserError, match=r"is the folder of a run and no checkpoint: take .*checkpoint-4, the newest"):
        train(Trainer(), resume_from_checkpoint=str(tmp_path))
    shutil.copy(tmp_path / "checkpoint-4/trainer_state.json", tmp_path)  # `trainer.save_state()` writes it
    shutil.copy(tmp_path / "checkpoint-4/model.safetensors", tmp_path)
    with pytest.raises(UserError, match=r"is the folder of a run and no checkpoint: take .*checkpoint-4, the newest"):
        train(Trainer(), resume_from_checkpoint=str(tmp_path))
    shutil.rmtree(tmp_path / "checkpoint-4")
    with pytest.raises(UserError, match="no checkpoint: none of its checkpoints is whole"):
        train(Trainer(), resume_from_checkpoint=str(tmp_path))


def checkpoint(folder: Path, step: int) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(exist_ok=True)
    save_file({"weight": torch.ones(2)}, path / "model.safetensors")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


@pytest.mark.parametrize("word", [True, "true", "True"])
def test_true_is_the_newest_checkpoint_that_was_saved_to_its_end(tmp_path, word):
    trainer = run_in(tmp_path)
    for step in (4, 20, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
    with pytest.raises(UserError, match="no whole checkpoint in"):
        train(trainer, resume_from_checkpoint=word)
    for step in (4, 20):
        checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-100" / "trainer_state.json").write_text('{"epoch": 1.0, "glob')  # killed in mid-write
    train(trainer, resume_from_checkpoint=word)
    assert trainer.received == str(tmp_path / "checkpoint-20")


@pytest.mark.parametrize(
    ("name", "content"),
    [("trainer_state.json", b'{"epoch": 1.0, "glob'), ("trainer_state.json", b"{}"),
     ("model.safetensors.index.json", b'{"metadata": {}}'), ("model.safetensors.index.json", b'{"weight_map": {}}'),
     ("config.json", b'{"model_type"'), ("reinforce_loo_state.json", b"{}"),
     ("model.safetensors", b"\x02\x00\x00\x00\x00\x00\x00\x00{}"), ("value_function.safetensors", b""),
     ("model.safetensors", b"\x40\x00\x00\x00\x00\x00\x00\x00{"), ("optimizer.pt", b"PK half"), ("rng_state.pth", b"")],
)  # fmt: skip
def test_a_broken_file_of_a_checkpoint_is_named_before_anything_is_loaded(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    trainer = Trainer()
    with pytest.raises(UserError, match=rf"{name} is broken"):
        train(trainer, resume_from_checkpoint=str(tmp_path))
    assert trainer.received is None


def test_whole_files_of_a_checkpoint_are_taken(tmp_path):
    save_file({"weight": torch.ones(2)}, tmp_path / "model.safetensors")
    torch.save({"state": {}}, tmp_path / "optimizer.pt")
    (tmp_path / "trainer_state.json").write_text('{"global_step": 4}')
    assert train(Trainer(), resume_from_checkpoint=str(tmp_path)) == "output"


@pytest.mark.parametrize("lost", ["model.safetensors", "value_function.safetensors", "reference/model.safetensors"])
def test_a_checkpoint_that_lacks_what_the_trainer_loads_is_passed_over(tmp_path, lost):
    trainer = run_in(tmp_path, checkpoint_files=["value_function.safetensors", "reference/model.safetensors"])
    for step in (4, 20):
        (checkpoint(tmp_path, step) / "reference").mkdir()
        for name in trainer.checkpoint_files:
            save_file({"weight": torch.ones(2)}, tmp_path / f"checkpoint-{step}" / name)
    (tmp_path / "checkpoint-20" / lost).unlink()
    train(trainer, resume_from_checkpoint=True)
    assert trainer.received == str(tmp_path / "checkpoint-4")


STATES = ("optimizer.pt", "scheduler.pt", "rng_state.pth")


def with_states(folder, step):
    path = checkpoint(folder, step)
    for name in STATES:
        torch.save({}, path / name)
    return path


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text('{"epoch": 1.0, "glob')])
def test_one_that_was_not_saved_to_its_end_is_passed_over_with_a_line(tmp_path, caplog, damage):
    for step in (4, 20):
        with_states(tmp_path, step)
    damage(tmp_path / "checkpoint-20" / "trainer_state.json")
    trainer = run_in(tmp_path)
    train(trainer, resume_from_checkpoint=True)
    assert trainer.received == str(tmp_path / "checkpoint-4")
    (line,) = caplog.messages
    assert "checkpoint-20" in line and "trainer_state.json" in line and line.endswith(f"Taking {trainer.received}.")


@pytest.mark.parametrize("lost", STATES)
def test_one_without_a_state_of_the_training_is_passed_over_by_true_and_warned_of_by_name(tmp_path, caplog, lost):
    for step in (4, 20):
        with_states(tmp_path, step)
    (tmp_path / "checkpoint-20" / lost).unlink()
    trainer = run_in(tmp_path)
    train(trainer, resume_from_checkpoint=True)
    assert trainer.received == str(tmp_path / "checkpoint-4")
    assert len(caplog.messages) == 1
    train(trainer, resume_from_checkpoint=str(tmp_path / "checkpoint-20"))
    anew = "random numbers are others" if lost == STATES[2] else "optimizer and learning rate begin anew"
    assert caplog.messages[1].startswith(f"{tmp_path}/checkpoint-20 has no ") and anew in caplog.messages[1]


@pytest.mark.parametrize("first", [checkpoint, with_states])
def test_where_weights_alone_were_saved_they_are_taken_with_a_line(tmp_path, caplog, first):
    first(tmp_path, 4)
    checkpoint(tmp_path, 20)
    trainer = run_in(tmp_path)
    train(trainer, resume_from_checkpoint=True)
    assert trainer.received == str(tmp_path / "checkpoint-20")
    (line,) = caplog.messages
    assert "no optimizer and no scheduler and no random state: after a resume optimizer and learning rate begin" in line


@pytest.mark.parametrize("names", [["global_step4/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "rng_state_0.pth"],
                                   ["optimizer_0/__0_0.distcp", "scheduler.pt", "rng_state_1.pth"],
                                   ["optimizer.bin", "scheduler.bin", "random_states_0.pkl"]])  # fmt: skip
def test_states_of_every_engine_are_known(tmp_path, names):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert lost_states(tmp_path) == []


def test_the_scheduler_of_transformers_is_missed_under_deepspeed_too(tmp_path):
    for step in (4, 20):
        path = checkpoint(tmp_path, step)
        for name in ("zero_pp_rank_0_mp_rank_00_optim_states.pt", "scheduler.pt", "rng_state_0.pth"):
            torch.save({}, path / name)
    (tmp_path / "checkpoint-20" / "scheduler.pt").unlink()
    trainer = run_in(tmp_path)
    train(trainer, resume_from_checkpoint=True)
    assert trainer.received == str(tmp_path / "checkpoint-4")


def test_a_checkpoint_that_goes_while_it_is_looked_at_is_passed_over(tmp_path, monkeypatch):
    """Process 0 deletes old ones."""
    for step in (4, 20):
        with_states(tmp_path, step)
    look = saved._fault
    monkeypatch.setattr(saved, "_fault", lambda path, needed: shutil.rmtree(path) or look(path, needed))
    assert "There is no whole checkpoint" in how_to_go_on(str(tmp_path))


@pytest.mark.parametrize("content", ['{"baseline": {"weight": NaN}, "kl": {"value": 1}}', '{"baseline": {}}', "[]",
                                     '{"kl": 1', '{"baseline": {}, "kl": {}}'])  # fmt: skip
def test_an_unsound_state_of_ours_is_passed_over(tmp_path, content):
    for step in (4, 20):
        (with_states(tmp_path, step) / "reinforce_loo_state.json").write_text('{"baseline": {}, "kl": {"value": 0.1}}')
    (tmp_path / "checkpoint-20" / "reinforce_loo_state.json").write_text(content)
    trainer = run_in(tmp_path, checkpoint_files=["reinforce_loo_state.json"])
    train(trainer, resume_from_checkpoint=True)
    assert trainer.received == str(tmp_path / "checkpoint-4")


def test_what_the_trainer_loads_is_looked_for_by_name_too(tmp_path):
    trainer = run_in(tmp_path, checkpoint_files=["value_function.safetensors"])
    path = with_states(tmp_path, 4)
    with pytest.raises(UserError, match=r"checkpoint-4 has no value_function.safetensors, which the options of this "):
        train(trainer, resume_from_checkpoint=str(path))


def test_a_path_is_checked_as_its_name_is(tmp_path):
    path = with_states(tmp_path, 4)
    trainer = run_in(tmp_path)
    train(trainer, resume_from_checkpoint=path)
    assert trainer.received == str(path)
    (path / "model.safetensors").unlink()
    with pytest.raises(UserError, match="holds no weights"):
        train(trainer, resume_from_checkpoint=path)
    with pytest.raises(UserError, match="no checkpoint"):
        train(trainer, resume_from_checkpoint=tmp_path / "last")


def test_the_sentence_for_the_end_of_a_message_is_all_that_is_said(tmp_path, caplog):
    for step in (4, 20):
        with_states(tmp_path, step)
    (tmp_path / "checkpoint-20" / "trainer_state.json").unlink()
    assert how_to_go_on(str(tmp_path)).endswith(f"true takes {tmp_path}/checkpoint-4.")
    assert caplog.messages == []


def test_shards_without_their_index_are_no_weights(tmp_path):
    path = checkpoint(tmp_path, 4)
    (path / "model.safetensors").rename(path / "model-00001-of-00002.safetensors")
    with pytest.raises(UserError, match="checkpoint-4 holds no weights to resume from"):
        train(Trainer(), resume_from_checkpoint=str(path))


def test_a_shard_that_is_gone_is_named(tmp_path):
    (tmp_path / "trainer_state.json").write_text('{"global_step": 4}')
    files = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict(zip("ab", files, strict=True))})
    )
    save_file({"a": torch.ones(2)}, tmp_path / files[0])
    with pytest.raises(UserError, match=rf"{files[1]} is gone"):
        train(Trainer(), resume_from_checkpoint=str(tmp_path))
    save_file({"b": torch.ones(2)}, tmp_path / files[1])
    assert train(Trainer(), resume_from_checkpoint=str(tmp_path)) == "output"


def test_an_adapter_without_its_weights_is_named(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(UserError, match=r"no adapter_model\.safetensors"):
        train(Trainer(), resume_from_checkpoint=str(tmp_path))


def test_an_adapter_without_its_configuration_is_no_whole_model(tmp_path):
    path = checkpoint(tmp_path, 4)
    (path / "model.safetensors").rename(path / "adapter_model.safetensors")
    with pytest.raises(UserError, match=r"no adapter_config\.json"):
        train(Trainer(), resume_from_checkpoint=str(path))


@pytest.mark.parametrize("state", [
    {"global_step": True}, {"global_step": -3}, {"global_step": 4.0}, {"global_step": 4, "log_history": "abc"},
    {"global_step": 4, "save_steps": "x"}, {"global_step": 4, "epoch": "x"},
    {"global_step": 4, "stateful_callbacks": None}, [],
])  # fmt: skip
def test_a_state_of_other_types_is_broken(tmp_path, state):
    path = checkpoint(tmp_path, 4)
    (path / "trainer_state.json").write_text(json.dumps(state))
    with pytest.raises(UserError, match=r"trainer_state\.json is broken"):
        train(Trainer(), resume_from_checkpoint=str(path))


def test_an_empty_name_is_no_checkpoint_and_false_none(tmp_path):
    trainer = run_in(tmp_path)
    with pytest.raises(UserError, match="no checkpoint ''"):
        train(trainer, resume_from_checkpoint="")
    train(trainer, resume_from_checkpoint="false")
    assert not hasattr(trainer, "received") or trainer.received is None


def test_a_checkpoint_that_was_cut_short_is_named(tmp_path):
    path = checkpoint(tmp_path, 4)
    (path / "trainer_state.json").unlink()
    with pytest.raises(UserError, match=r"not saved to its end, trainer_state\.json is missing"):
        train(Trainer(), resume_from_checkpoint=str(path))


def test_what_is_whole_or_none_of_a_resumes_business_is_taken(tmp_path):
    path = checkpoint(tmp_path, 4)
    torch.save({"state": {}}, path / "optimizer.pt", _use_new_zipfile_serialization=False)
    for name in ("tokens.bin", "x.pt.trace.json", "notes.json", "special_tokens_map.json"):
        (path / name).write_text("null")
    (path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}')
    assert train(Trainer(), resume_from_checkpoint=str(path)) == "output"


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


def test_a_checkpoint_without_weights_is_one_line(tmp_path):
    (checkpoint(tmp_path, 4) / "model.safetensors").unlink()
    with pytest.raises(UserError, match="checkpoint-4 holds no weights to resume from"):
        train(Trainer(), resume_from_checkpoint=str(tmp_path / "checkpoint-4"))


@pytest.mark.parametrize("name", ["WEIGHTS_NAME", "WEIGHTS_INDEX_NAME", "SAFE_WEIGHTS_NAME", "SAFE_WEIGHTS_INDEX_NAME",
                                  "ADAPTER_WEIGHTS_NAME", "ADAPTER_SAFE_WEIGHTS_NAME"])  # fmt: skip
def test_what_transformers_resumes_from_counts_as_weights(tmp_path, name):
    assert name in inspect.getsource(Trainer_._load_from_checkpoint)
    assert getattr(transformers.trainer, name) in _WEIGHTS
