"""What the callbacks rest on in Transformers: who calls them, in which order, and what a restored callback replaces.

A failure here means that `trl_ext/callbacks/_frames.py` or `_order.py` has to follow Transformers.
"""

import inspect

import pytest
import torch
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import INTEGRATION_TO_CALLBACK, TensorBoardCallback
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback

from trl_ext.callbacks import AnomalyDetectionCallback, PPOMonitoringCallback
from trl_ext.callbacks._frames import calling_handler, calling_trainer
from trl_ext.callbacks._order import move_before_reporting


class Recorder(TrainerCallback):
    """Writes down each event it hears."""

    def __init__(self, name, heard):
        self.name, self.heard = name, heard

    def on_train_begin(self, args, state, control, **kwargs):
        self.heard.append(self.name)


class Curves(TensorBoardCallback):
    """A reporting callback without a writer."""

    def __init__(self, name, heard):
        self.name, self.heard = name, heard

    def on_train_begin(self, args, state, control, **kwargs):
        self.heard.append(self.name)


class Mover(Recorder):
    def on_train_begin(self, args, state, control, **kwargs):
        super().on_train_begin(args, state, control)
        move_before_reporting(self)


def begin(*callbacks):
    handler = CallbackHandler([DefaultFlowCallback(), *callbacks], None, None, None, None)
    handler.on_train_begin(None, TrainerState(), TrainerControl())
    return [getattr(callback, "name", "flow") for callback in handler.callbacks]


def test_it_moves_before_the_first_reporting_callback_and_nobody_is_skipped_or_called_twice():
    heard = []
    order = begin(
        Recorder("a", heard), Curves("tb", heard), Recorder("b", heard), Curves("tb2", heard), Mover("m1", heard),
        Recorder("c", heard), Mover("m2", heard), Recorder("d", heard),
    )  # fmt: skip
    assert heard == ["a", "tb", "b", "tb2", "m1", "c", "m2", "d"]
    assert order == ["flow", "a", "m1", "m2", "tb", "b", "tb2", "c", "d"]


def test_without_reporting_nothing_moves():
    assert begin(Recorder("a", []), Mover("m", []), Recorder("b", [])) == ["flow", "a", "m", "b"]


def test_where_it_is_ahead_already_it_stays():
    heard = []
    assert begin(Mover("m", heard), Curves("tb", heard)) == ["flow", "m", "tb"]
    assert heard == ["m", "tb"]


def test_called_by_hand_it_does_nothing():
    Mover("m", []).on_train_begin(None, None, None)


def test_transformers_still_puts_the_users_callbacks_behind_the_reporting_ones(tmp_path):
    args = TrainingArguments(str(tmp_path), report_to="tensorboard", use_cpu=True)
    trainer = Trainer(torch.nn.Linear(1, 1), args, callbacks=[PPOMonitoringCallback()])
    kinds = [type(callback) for callback in trainer.callback_handler.callbacks]
    assert kinds[0] is DefaultFlowCallback
    assert kinds.index(TensorBoardCallback) < kinds.index(PPOMonitoringCallback)


def test_the_table_of_reporting_callbacks_is_where_it_was():
    assert {"tensorboard", "wandb", "trackio", "mlflow", "comet_ml"} <= set(INTEGRATION_TO_CALLBACK)
    assert all(issubclass(kind, TrainerCallback) for kind in INTEGRATION_TO_CALLBACK.values())


class AsksWho(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        self.handler, self.trainer = calling_handler(self), calling_trainer(self)

    on_init_end = on_train_begin


def test_handler_and_trainer_are_found(scripted_trainer):
    callback = AsksWho()
    trainer = scripted_trainer(callback)
    assert callback.handler is trainer.callback_handler and callback.trainer is trainer
    callback.handler = callback.trainer = None
    trainer.train()
    assert callback.handler is trainer.callback_handler and callback.trainer is trainer


def test_called_by_hand_nobody_is_found():
    callback = AsksWho()
    callback.on_train_begin(None, None, None)
    assert callback.handler is None and callback.trainer is None


@pytest.mark.stock_ppo
def test_stock_ppo_keeps_its_handler_under_the_same_name():
    from trl.experimental.ppo import ppo_trainer

    source = inspect.getsource(ppo_trainer)
    assert "self.callback_handler = CallbackHandler(" in source
    assert "self.control = self.callback_handler.on_train_begin(args, self.state, self.control)" in source


def test_what_a_restored_callback_replaces_is_the_local_callback():
    source = inspect.getsource(Trainer._load_callback_state)
    assert "new_callback = type(callback)(**args)" in source
    assert "setattr(new_callback, attribute, value)" in source


@pytest.mark.parametrize("kind", [PPOMonitoringCallback, AnomalyDetectionCallback])
def test_a_restored_callback_keeps_what_json_cannot_hold(scripted_trainer, kind):
    def heard(alert):
        pass

    def my_rule(metrics):
        return None

    saving = {"save_strategy": "steps", "save_steps": 2, "restore_callback_states_from_checkpoint": True}
    scripted_trainer(kind(on_alert=heard, custom_rules=[my_rule]), **saving).train()
    callback = kind(on_alert=heard, custom_rules=[my_rule])
    trainer = scripted_trainer(callback, max_steps=4, **saving)
    trainer.train(resume_from_checkpoint=True)
    (running,) = (c for c in trainer.callback_handler.callbacks if isinstance(c, kind))
    assert running is not callback  # Transformers did restore it
    assert running._options.on_alert is heard and running._options.custom_rules == [my_rule]
    assert callback.summary()["last_step"] == 4  # the user's variable still names the monitor


@pytest.fixture
def scripted_trainer(tmp_path):
    class OneNumber(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x, labels):
            return {"loss": ((x * self.weight - labels) ** 2).mean()}

    def build(callback, **arguments):
        options = {"max_steps": 2, "logging_steps": 1, "report_to": "none", "use_cpu": True, "save_strategy": "no",
                   "disable_tqdm": True, "per_device_train_batch_size": 2, **arguments}  # fmt: skip
        data = [{"x": torch.ones(1), "labels": torch.ones(1)}] * 64
        args = TrainingArguments(str(tmp_path / "run"), **options)
        trainer = Trainer(OneNumber(), args, train_dataset=data, callbacks=[callback])
        trainer.remove_callback(PrinterCallback)
        return trainer

    return build


def test_the_loader_of_the_best_model_reads_what_the_callback_writes():
    """`load_best_model` in `trl_ext/callbacks/_best.py` calls it, `BestCheckpointCallback` fills the fields."""
    assert list(inspect.signature(Trainer._load_best_model).parameters) == ["self"]
    assert "self.state.best_model_checkpoint" in inspect.getsource(Trainer._load_best_model)
    assert "best_model_checkpoint=self.state.best_model_checkpoint" in inspect.getsource(Trainer._save_checkpoint)
    assert {"best_metric", "best_global_step", "best_model_checkpoint"} <= set(vars(TrainerState()))


@pytest.mark.stock_ppo
def test_stock_ppo_saves_the_policy_of_its_wrapper_alone():
    from trl.experimental.ppo.ppo_trainer import PPOTrainer

    assert "self.model.policy" in inspect.getsource(PPOTrainer.save_model)
