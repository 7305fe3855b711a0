"""Reward functions as the reward model that TRL's stock PPO (until 1.12) wants."""

import logging
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from trl_ext.errors import UserError
from trl_ext.rewards.calls import Call, ask
from trl_ext.rewards.checking import CheckedReward
from trl_ext.rewards.options import shown
from trl_ext.rewards.trying import ask_strictly, sample_call

logger = logging.getLogger(__name__)


def as_reward_model(
    reward_funcs: Sequence[Callable],
    processing_class: Any,
    reward_weights: Sequence[float] | None = None,
    prompt_length: int | None = None,
) -> "FunctionRewardModel":
    """An `nn.Module` whose score is the weighted sum of `reward_funcs` on the decoded completion.

    Stock PPO knows prompts and completions as token ids alone, so functions get no dataset columns, and the step is
    unknown to them. It needs a score for every completion: one whose functions all failed (see `CheckedReward`), or say
    that they do not apply, gets the mean of the others in its batch, 0 where there is none, which teaches nothing.

    Args:
        reward_funcs: reward functions of TRL's signature; coroutine functions are awaited one after another.
        processing_class: the trainer's tokenizer, or a processor that holds one.
        reward_weights: one for each function; 1 by default.
        prompt_length: tokens a prompt takes after padding, the same for all prompts. `None`: the functions are asked
            with an empty prompt and the whole text as completion.
    Raises:
        UserError: arguments that do not fit, or a function that needs a dataset column.
    """
    funcs = [CheckedReward(func) if not isinstance(func, CheckedReward) else func for func in reward_funcs]
    for func in funcs:
        if isinstance(func, nn.Module):
            raise UserError("as_reward_model takes functions: give a model to PPOTrainer itself, as reward_model")
    weights = [1.0] * len(funcs) if reward_weights is None else list(reward_weights)
    if not funcs or len(weights) != len(funcs):
        raise UserError(f"{len(funcs)} reward functions have {len(weights)} weights: give each function one weight")
    for func in funcs:
        _refuse_columns(func)
    return FunctionRewardModel(_Backbone(funcs, weights, processing_class, prompt_length))


def _refuse_columns(func: CheckedReward) -> None:
    """It would fail at every completion; another failure may be one of the sample's, and is told in training."""
    try:
        ask_strictly(func, sample_call())
    except UserError as error:
        if "column" in str(error):
            raise UserError(f"{error} (stock PPO passes prompts and completions alone)") from error


class FunctionRewardModel(nn.Module):
    """`getattr(model, model.base_model_prefix)(...)`, then `model.score(hidden_states[-1])`: the protocol of stock PPO.

    It has no parameters: devices and dtypes do not matter to it.
    """

    base_model_prefix = "backbone"

    def __init__(self, backbone: "_Backbone") -> None:
        super().__init__()
        self.backbone = backbone
        self.score = nn.Identity()


class _Backbone(nn.Module):
    def __init__(
        self, funcs: list[CheckedReward], weights: list[float], processing_class: Any, prompt_length: int | None
    ) -> None:
        super().__init__()
        self.funcs, self.weights, self.prompt_length = funcs, weights, prompt_length
        self._told = False
        self.tokenizer = getattr(processing_class, "tokenizer", processing_class)
        # each hears `(call, rewards)`, the latter with a list for each function; stock PPO has no event for rollouts
        self.observers: list[Callable[[Call, list[list[float | None]]], None]] = []

    @torch.no_grad()
    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **kwargs: Any) -> SimpleNamespace:
        """Hidden states of shape `(batch, sequence, 1)`: the reward at every position, whichever one is read."""
        rows = [self._split(*row) for row in zip(input_ids.tolist(), attention_mask.bool().tolist(), strict=True)]
        prompt_ids, completion_ids = [row[0] for row in rows], [row[1] for row in rows]
        rewards = self._rewards(self._decode(prompt_ids), self._decode(completion_ids), completion_ids)
        scores = torch.tensor(rewards, dtype=torch.float32, device=input_ids.device)
        return SimpleNamespace(hidden_states=(scores[:, None, None].expand(*input_ids.shape, 1),))

    def _split(self, ids: list[int], mask: list[bool]) -> tuple[list[int], list[int]]:
        """The tokens of prompt and completion. Masked ids are none: the trainer has overwritten the padding with 0.

        A completion ends before its first masked position, where the trainer's own `get_reward` ends it.
        """
        start = mask.index(True) if self.prompt_length is None and True in mask else self.prompt_length or 0
        end = mask.index(False, start) if False in mask[start:] else len(ids)
        return [i for i, keep in zip(ids[:start], mask[:start], strict=True) if keep], ids[start:end]

    def _decode(self, rows: list[list[int]]) -> list[str]:
        return self.tokenizer.batch_decode(rows, skip_special_tokens=True)

    def _rewards(self, prompts: list[str], completions: list[str], completion_ids: list[list[int]]) -> list[float]:
        call = Call(prompts, completions, completion_ids, {})
        columns: list[list[float | None]] = []
        failures = 0
        for func in self.funcs:
            before = func.failures
            columns.append(ask(func, call))
            failures += func.failures - before
        for observer in self.observers:
            observer(call, columns)
        totals = [_total(row, self.weights) for row in zip(*columns, strict=True)]
        if None in totals and not failures and not self._told:
            self._told = True
            logger.warning(
                "%s gave no number for the completion %s: stock PPO needs one for every completion, so that it gets "
                "the mean of its batch. Return e.g. 0.0 instead of None.",
                ", ".join(func.__name__ for func in self.funcs), shown(completions[totals.index(None)]),
            )  # fmt: skip
        known = [total for total in totals if total is not None]
        neutral = math.fsum(known) / len(known) if known else 0.0
        return [neutral if total is None else total for total in totals]


def _total(rewards: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """The weighted sum of the rewards that apply; `None` where none does."""
    parts = [weight * reward for weight, reward in zip(weights, rewards, strict=True) if reward is not None]
    return math.fsum(parts) if parts else None
