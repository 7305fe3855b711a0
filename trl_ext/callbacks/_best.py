"""Which value of a metric is the best, and loading the checkpoint it belongs to."""

import logging
import math
import os
import re
from typing import Any

from transformers import TrainerState

from trl_ext.callbacks.stopping import ignores_control
from trl_ext.errors import UserError

logger = logging.getLogger(__name__)

_LOWER = {"loss", "perplexity", "ppl", "nll", "kl", "error", "wer", "cer", "mse", "rmse", "mae"}
_HIGHER = {"reward", "rewards", "score", "scores", "accuracy", "accuracies", "margin", "margins", "f1", "bleu", "rouge",
           "precision", "recall", "auc", "explained"}  # fmt: skip
_UNCLEAR = {"std", "rejected", "zero", "min", "max", "coef"}  # a spread or a part of a reward is no goal


def greater_is_better_for(metric: str) -> bool:
    """Told by the words of the name.

    Raises:
        UserError: they tell nothing.
    """
    words = set(re.split(r"[^a-z0-9]+", metric.lower()))
    lower, higher = bool(words & _LOWER), bool(words & _HIGHER)
    if lower == higher or words & _UNCLEAR:
        raise UserError(f"is a greater {metric!r} better? Say greater_is_better=True or False")
    return higher


def is_better(value: float, best: float | None, greater: bool, by: float) -> bool:
    """Whether `value` beats `best` by more than `by`; NaN and infinities never do."""
    if not math.isfinite(value):
        return False
    return best is None or (value - best if greater else best - value) > by


def load_best_model(trainer: Any, state: TrainerState) -> bool:
    """Loads `state.best_model_checkpoint` into the trainer's model, by Transformers' own loader; whether it did.

    Stock PPO holds policy and value model in one wrapper and saves the policy alone, so that is what is loaded.
    """
    folder = state.best_model_checkpoint
    stock_ppo = ignores_control(state)
    deepspeed_ppo = stock_ppo and getattr(trainer, "is_deepspeed_enabled", False)
    if trainer is None or folder is None or not os.path.isdir(folder) or deepspeed_ppo:
        why = "it is not there" if trainer is not None and not deepspeed_ppo else "the trainer cannot"
        logger.error("The best checkpoint, %s of step %s, is not loaded: %s.", folder, state.best_global_step, why)
        return False
    whole = trainer.model
    if stock_ppo:
        trainer.model = trainer.accelerator.unwrap_model(whole).policy
    try:
        trainer._load_best_model()
    finally:
        trainer.model = whole
    return True
