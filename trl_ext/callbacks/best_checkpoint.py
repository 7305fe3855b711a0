"""Keeps the best checkpoint, stops when nothing gets better, and ends with the best model."""

import logging
import math
from typing import Any

import numpy as np
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from trl_ext.callbacks._best import greater_is_better_for, is_better, load_best_model
from trl_ext.callbacks._checkpoint_state import KeptInTrainerState, checkpoint_folder, keep_one
from trl_ext.callbacks._frames import calling_handler, calling_trainer
from trl_ext.callbacks._stop import StopDecision
from trl_ext.callbacks.stopping import ignores_control
from trl_ext.errors import UserError
from trl_ext.monitor.rows import metric_value
from trl_ext.ranks import from_main_process

logger = logging.getLogger(__name__)
_KEYS_NAMED = 60


class BestCheckpointCallback(KeptInTrainerState, TrainerCallback, ExportableState):
    """Saves a checkpoint whenever `metric` is better than ever, and loads the best one when training ends.

    What `load_best_model_at_end` and `EarlyStoppingCallback` of Transformers do for evaluations, this does for any
    metric that is logged, and on stock PPO (TRL 1.12). It uses their fields (`state.best_metric`,
    `state.best_model_checkpoint`: safe from `save_total_limit`, and in every checkpoint, so that a resume goes on) and
    their loader, which knows LoRA, DeepSpeed and FSDP and reads safetensors, or pickles with `weights_only` alone.

    Args:
        metric: as logged (`"eval_loss"`, `"rewards/accuracy/mean"`) or by its canonical name (`"reward"`). A metric of
            training belongs to the checkpoint of the step it is logged at.
        greater_is_better: guessed from the name (a loss is better low, a reward high).
        patience: values of the metric in a row that bring no improvement, after which training stops.
        min_improvement: by how much a value must beat the best, in the metric's unit.
        restore_best: whether to load the best checkpoint into the model at the end.
    Raises:
        UserError: a value that makes no sense; when training begins also where the metric cannot come, and where
            `metric_for_best_model` has Transformers write into the same fields.

    Attributes:
        best: `{"step", "value", "checkpoint"}` of the best so far, or `None`.
    """

    def __init__(
        self,
        metric: str = "eval_loss",
        greater_is_better: bool | None = None,
        patience: int | None = None,
        min_improvement: float = 0.0,
        restore_best: bool = True,
    ):
        if not isinstance(metric, str) or not metric:
            raise UserError(f"metric must be the name of a metric, such as 'eval_loss', not {metric!r}")
        given: list[Any] = [x.item() if isinstance(x, np.generic) else x for x in (patience, min_improvement)]
        patience, min_improvement = given
        if patience is not None and (isinstance(patience, bool) or not isinstance(patience, int) or patience < 1):
            raise UserError(f"patience must be a whole number of at least 1, or None, not {patience!r}")
        for name, value in (("greater_is_better", greater_is_better), ("restore_best", restore_best)):
            if not (isinstance(value, bool) or (value is None and name == "greater_is_better")):
                raise UserError(f"{name} must be True or False, not {value!r}")
        number = isinstance(min_improvement, int | float) and not isinstance(min_improvement, bool)
        if not number or not 0 <= min_improvement < math.inf:
            raise UserError(f"min_improvement must be a number of at least 0, not {min_improvement!r}")
        self._metric, self._patience, self._min_improvement = metric, patience, min_improvement
        self._greater = greater_is_better_for(metric) if greater_is_better is None else greater_is_better
        self._restore_best = restore_best
        self.best: dict[str, Any] | None = None
        self._begin()

    def _begin(self) -> None:
        self._stop = StopDecision()
        self._waited = 0
        self._keys: set[Any] = set()
        self._training = False

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        handler = calling_handler(self)
        if handler is not None and sum(isinstance(other, BestCheckpointCallback) for other in handler.callbacks) > 1:
            raise UserError("two BestCheckpointCallbacks in one trainer: only one can say which checkpoint is best")
        if args.metric_for_best_model is not None:
            raise UserError(
                "BestCheckpointCallback does what load_best_model_at_end, metric_for_best_model and "
                "save_strategy='best' do: leave these out of the arguments"
            )
        if self._metric.startswith(("eval_", "eval/")) and (args.eval_strategy == "no" or ignores_control(state)):
            raise UserError(
                f"{self._metric!r} comes from evaluations, and there are none: set eval_strategy='steps', or name a "
                "metric of training"
            )
        self._begin()
        self._training = True
        self._resume(state)
        keep_one(state, type(self).__name__, self.state())

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **_: Any
    ) -> TrainerControl:
        logs = logs or {}
        if not self._training or state.global_step == 0 or "train_loss" in logs:  # nothing can be saved for these
            return control
        self._keys.update(key for key in list(logs)[:_KEYS_NAMED] if len(self._keys) < _KEYS_NAMED)
        value = from_main_process(metric_value(self._metric, state.global_step, logs), args)
        if value is not None:
            self._judge(value, args, state, control)
        return self._stop.ask(control)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        return self._stop.ask(control)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any) -> None:
        if self._stop.must_raise(state):
            self._end(state)
            self._stop.raise_after_the_others(self, args, state, control, event)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._end(state)

    def state(self) -> dict[str, Any]:
        """For `trainer_state.json`: the arguments, and the count that `patience` is compared with."""
        arguments = {
            "metric": self._metric, "greater_is_better": self._greater, "patience": self._patience,
            "min_improvement": self._min_improvement, "restore_best": self._restore_best,
        }  # fmt: skip
        return {"args": arguments, "attributes": {"kept": {"metric": self._metric, "waited": self._waited}}}

    def _resume(self, state: TrainerState) -> None:
        """Transformers has read its own fields; they may be of another metric."""
        kept = self.stored(state) or {}
        if state.global_step > 0 and kept.get("metric") == self._metric and state.best_metric is not None:
            self._waited = kept["waited"]
            self.best = {"step": state.best_global_step, "value": state.best_metric,
                         "checkpoint": state.best_model_checkpoint}  # fmt: skip
        else:
            self.best = state.best_metric = state.best_global_step = state.best_model_checkpoint = None

    def _judge(self, value: float, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        if is_better(value, state.best_metric, self._greater, self._min_improvement):
            self._waited = 0
            state.best_metric, state.best_global_step = value, state.global_step
            state.best_model_checkpoint = str(checkpoint_folder(args, state))
            self.best = {"step": state.global_step, "value": value, "checkpoint": state.best_model_checkpoint}
            control.should_save = True
            return
        self._waited += 1
        if self._patience is not None and self._waited >= self._patience:
            best = "none so far" if self.best is None else f"{self.best['value']:.4g} at step {self.best['step']}"
            self._stop.take(
                f"stopped at step {state.global_step}: {self._waited} values of {self._metric} in a row brought no "
                f"improvement (the best is {best}, the last {value:.4g})"
            )
            logger.warning("%s", self._stop.taken)

    def _end(self, state: TrainerState) -> None:
        self._training = False
        if self.best is None:
            if state.is_world_process_zero:
                keys = ", ".join(sorted(map(str, self._keys))) or "none"
                logger.error("No best checkpoint: no finite %r was logged. The keys that were: %s", self._metric, keys)
        elif self._restore_best and load_best_model(calling_trainer(self), state):
            logger.info("The model is that of step %d (%s %.4g).", self.best["step"], self._metric, self.best["value"])
