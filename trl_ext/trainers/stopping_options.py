"""When a recipe stops: `patience`, `validation_frequency` and `time_budget`, as callbacks and TRL's own evaluation."""

import math
from typing import Any

from datasets import Dataset
from transformers import TrainerCallback
from transformers.trainer_utils import IntervalStrategy

from ..callbacks.best_checkpoint import BestCheckpointCallback
from ..callbacks.time_budget import TimeBudgetCallback
from ..configuration.arguments import RLScriptArguments
from ..data import load_prompts
from ..errors import UserError
from .batches import require_divisible
from .reinforce_loo_config import ReinforceLOOConfig


def stopping_of(script_args: RLScriptArguments, training_args: Any) -> tuple[list[TrainerCallback], Dataset | None]:
    """The callbacks that stop a run, and the held-out prompts. With the options' defaults: none, and `None`.

    Call it first: the time budget counts from here. With `validation_frequency` it sets `eval_strategy` and
    `eval_steps` of `training_args`, and `best_metric` is taken from the evaluations.

    Raises:
        UserError: options that contradict each other or make no sense, no such split, or stock PPO of TRL 1.12 is asked
            to evaluate, which it cannot.
    """
    callbacks: list[TrainerCallback] = []
    if script_args.time_budget is not None:
        if not 0 < script_args.time_budget < math.inf:
            raise UserError(f"time_budget={script_args.time_budget} is no number of hours above 0: set 1.5, or drop it")
        callbacks.append(TimeBudgetCallback(hours=script_args.time_budget))
    metric = _metric(script_args)
    if script_args.patience is not None:
        _check_patience(script_args.patience, script_args.min_improvement, training_args)
        callbacks.append(
            BestCheckpointCallback(metric, patience=script_args.patience, min_improvement=script_args.min_improvement)
        )
    elif script_args.min_improvement != 0:
        raise UserError(
            f"min_improvement={script_args.min_improvement} is what patience waits for: set patience to a number of "
            "values, or drop min_improvement"
        )
    if script_args.validation_frequency is None:
        return callbacks, None
    _set_evaluation(script_args.validation_frequency, training_args)
    return callbacks, _held_out(script_args)


def _metric(script_args: RLScriptArguments) -> str:
    name, of_evaluation = script_args.best_metric, script_args.best_metric.startswith(("eval_", "eval/"))
    if script_args.validation_frequency is not None:
        return name if of_evaluation else f"eval_{name}"
    if of_evaluation:
        raise UserError(
            f"best_metric={name} comes from validations, and there are none: set validation_frequency, or "
            f"best_metric={name[5:]}"
        )
    return name


def _check_patience(patience: int, min_improvement: float, training_args: Any) -> None:
    if patience < 1:
        raise UserError(f"patience={patience}: set it to 1 or more, or drop it")
    if not 0 <= min_improvement < math.inf:
        raise UserError(f"min_improvement={min_improvement}: set it to 0 or more")
    if training_args.metric_for_best_model is not None:
        raise UserError(
            "patience keeps the best model by best_metric: drop metric_for_best_model, load_best_model_at_end and "
            "save_strategy=best"
        )


def _set_evaluation(frequency: int, training_args: Any) -> None:
    if frequency < 1:
        raise UserError(f"validation_frequency={frequency}: set it to 1 step or more, or drop it")
    if not isinstance(training_args, ReinforceLOOConfig):
        raise UserError(
            "stock PPO of TRL 1.12 cannot evaluate: drop validation_frequency (patience then watches the reward of "
            "training), or set TRL_EXT_PPO=trl_ext"
        )
    if training_args.eval_strategy != IntervalStrategy.NO:
        raise UserError("validation_frequency sets eval_strategy and eval_steps: drop these, or validation_frequency")
    rows = training_args.per_device_eval_batch_size * training_args.world_size
    require_divisible(
        "Completions of an evaluation", rows,
        f"per_device_eval_batch_size x processes ({training_args.per_device_eval_batch_size} x "
        f"{training_args.world_size})",
        "num_generations_eval", training_args.num_generations_eval or training_args.num_generations,
    )  # fmt: skip
    training_args.eval_strategy, training_args.eval_steps = IntervalStrategy.STEPS, frequency
    training_args.do_eval = True


def _held_out(script_args: RLScriptArguments) -> Dataset:
    prompts = load_prompts(
        script_args.dataset_name,
        script_args.dataset_test_split,
        script_args.dataset_prompt_column,
        script_args.dataset_config,
    )
    most = script_args.validation_prompts
    if most is not None and most < 1:
        raise UserError(f"validation_prompts={most}: set it to 1 or more, or leave it out")
    return prompts if most is None else prompts.select(range(min(most, len(prompts))))
