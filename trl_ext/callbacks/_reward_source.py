"""Hears what a trainer's reward functions are asked and say, and can have them asked again.

TRL has no event for that. Current trainers (GRPO, RLOO, SDPO, ours) score in one method, `_calculate_rewards`, which is
wrapped on the one trainer object; `tests/contract/test_trl_seams.py` pins its signature. Stock PPO asks the module that
`as_reward_model` made, which has observers.
"""

import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from trl_ext.rewards.calls import Call, ask
from trl_ext.rewards.checking import CheckedReward
from trl_ext.rewards.text import completion_text
from trl_ext.stand_in import StandIn

Hear = Callable[[Call, np.ndarray], None]
_SEAM = ["inputs", "prompts", "completions", "completion_ids_list"]


class TRLRewards:
    """`trainer._calculate_rewards`, whose result is gathered from all processes.

    Args:
        trainer: with `reward_funcs`.
    Attributes:
        names, weights: of the reward functions.
        can_score: whether they can be asked again. Environments of TRL hold the episode that they judge: no.
    """

    def __init__(self, trainer: Any) -> None:
        self.names: list[str] = list(trainer.reward_func_names)
        self.weights: list[float] = [float(weight) for weight in trainer.reward_weights]
        self.can_score = getattr(trainer, "environments", None) is None
        self._trainer = trainer
        self._original = trainer._calculate_rewards

    def attach(self, hear: Hear) -> None:
        """`hear(call, rewards)` after each batch of training in this process; `rewards` of shape
        `(completions, functions)`, NaN where one does not apply."""
        original, trainer = self._original, self._trainer

        def heard(inputs, prompts, completions, completion_ids_list):
            gathered = original(inputs, prompts, completions, completion_ids_list)
            if trainer.model.training:
                call = Call(prompts, completions, completion_ids_list, {"inputs": inputs})
                hear(call, self._own(gathered, len(prompts)))
            return gathered

        trainer._calculate_rewards = heard

    def detach(self) -> None:
        self._trainer.__dict__.pop("_calculate_rewards", None)

    def score(self, call: Call) -> np.ndarray:
        """A collective: every process must ask about equally many completions."""
        ids = call.completion_ids
        if ids is None:
            processing_class = self._trainer.processing_class
            ids = _token_ids(getattr(processing_class, "tokenizer", processing_class), call)
        with self._quietly():
            gathered = self._original(call.others["inputs"], call.prompts, call.completions, ids)
        return self._own(gathered, len(call.prompts))

    def columns(self, call: Call) -> dict[str, list]:
        """The dataset columns of a batch, as reward functions get them."""
        inputs = call.others["inputs"]
        keys = [key for key in inputs[0] if key not in ("prompt", "completion", "completion_ids")] if inputs else []
        return {key: [row[key] for row in inputs] for key in keys}

    def _own(self, gathered: Any, count: int) -> np.ndarray:
        start = self._trainer.accelerator.process_index * count
        return gathered[start : start + count].detach().float().cpu().numpy()

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        """Without a trace in TRL's logs, and so that no function of one process raises: the others would wait."""

        def unheard(*_: Any) -> None:
            pass

        functions = [_unfailing(function) for function in self._trainer.reward_funcs]
        with StandIn(self._trainer, _log_metric=unheard, _log_completion_extra=unheard, reward_funcs=functions):
            yield


class StockRewards:
    """The functions behind stock PPO's reward module, in this process."""

    can_score = True

    def __init__(self, backbone: Any) -> None:
        self.names: list[str] = [function.__name__ for function in backbone.funcs]
        self.weights: list[float] = [float(weight) for weight in backbone.weights]
        self._backbone = backbone
        self._observer: Any = None

    def attach(self, hear: Hear) -> None:
        self._observer = lambda call, columns: hear(call, _matrix(columns))
        self._backbone.observers.append(self._observer)

    def detach(self) -> None:
        if self._observer in self._backbone.observers:
            self._backbone.observers.remove(self._observer)

    def score(self, call: Call) -> np.ndarray:
        call = call._replace(others={})
        if call.completion_ids is None:
            call = call._replace(completion_ids=_token_ids(self._backbone.tokenizer, call))
        return _matrix([ask(_unfailing(function), call) for function in self._backbone.funcs])

    def columns(self, call: Call) -> dict[str, list]:
        """Stock PPO knows token ids alone."""
        return {}


def reward_source(trainer: Any) -> TRLRewards | StockRewards | None:
    """`None` for a trainer whose rewards cannot be heard."""
    backbone = getattr(getattr(trainer, "reward_model", None), "backbone", None)
    if hasattr(backbone, "observers"):
        return StockRewards(backbone)
    seam = getattr(trainer, "_calculate_rewards", None)
    if seam is None or not getattr(trainer, "reward_funcs", None):
        return None
    return TRLRewards(trainer) if list(inspect.signature(seam).parameters) == _SEAM else None


@contextmanager
def undisturbed() -> Iterator[None]:
    """Random numbers that are drawn inside do not change those drawn afterwards: a run is the same with and without
    probes."""
    python, arrays = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)


def _unfailing(function: Any) -> Any:
    """That function without failures; an `nn.Module` as it is. One that has just failed on a whole batch (an endpoint
    that is down, a loop) is not asked again: probes would wait for its time-out a dozen times."""
    if not isinstance(function, CheckedReward):
        return CheckedReward(function)
    if function.is_broken:
        return _Nothing()
    return CheckedReward(function.func, function.__name__, "none", function.timeout)


class _Nothing:
    __name__ = "nothing"

    def __call__(self, completions: list, **kwargs: Any) -> list[None]:
        return [None] * len(completions)


def _token_ids(tokenizer: Any, call: Call) -> list[list[int]]:
    """Of edited completions, which have none of their own."""
    texts = [completion_text(completion) for completion in call.completions]
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


def _matrix(columns: list[list[float | None]]) -> np.ndarray:
    return np.array(columns, dtype=float).T
