"""Greedy completions of the prompts of a batch: what a self-critical baseline compares with."""

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from trl import GRPOTrainer

from ..rewards.probing import probing
from ..stand_in import StandIn
from .json_actions import JsonActions

_SAMPLING = ("temperature", "top_p", "top_k", "min_p")


def greedy_rewards(
    trainer: GRPOTrainer, inputs: list[dict[str, Any]], actions: JsonActions | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the greedy completion of each row's prompt, of all processes: its rewards, `(completions, functions)`, and
    whether it acts validly, `(completions,)`, always so without `actions`.

    Each different prompt is completed once; the reward functions see one row for every sampled completion, as they must
    on all processes alike. Metrics and completions that are logged stay those of the sampled ones.
    """
    prompts = [row["prompt"] for row in inputs]
    places: dict[str, int] = {}
    of_row = [places.setdefault(json.dumps(prompt, sort_keys=True, default=str), len(places)) for prompt in prompts]
    different = [prompts[of_row.index(place)] for place in range(len(places))]
    count = torch.tensor([len(different)], device=trainer.accelerator.device)
    most = int(trainer.accelerator.gather(count).max())  # every process must generate as many
    different += [different[-1]] * (most - len(different))
    with _unlogged(trainer), _greedy(trainer), probing():
        _, ids, own, completions, _, fields, *_ = trainer._generate(different)
        rows = [
            row | {name: values[place] for name, values in fields.items()}
            for row, place in zip(inputs, of_row, strict=True)
        ]  # what ended the greedy episode, where there are tools, not the sampled one
        rewards = GRPOTrainer._calculate_rewards(
            trainer, rows, prompts, [completions[place] for place in of_row], [ids[place] for place in of_row]
        )
    valid = torch.ones(len(different), dtype=torch.bool)
    if actions is not None:
        masks = own if own is not None else [[1] * len(row) for row in ids]
        padded = [pad_sequence([torch.tensor(row) for row in kind], batch_first=True) for kind in (ids, masks)]
        valid = actions.find(*padded).valid
    return rewards, trainer.accelerator.gather(valid[of_row].to(trainer.accelerator.device))


@contextmanager
def _greedy(trainer: GRPOTrainer) -> Iterator[None]:
    """The most likely token each time. Both places count: `generate` fills what one leaves at its default from the
    other (transformers#42762)."""
    config = copy.deepcopy(trainer.generation_config)
    config.do_sample = False
    for name in _SAMPLING:
        setattr(config, name, None)
    options = {k: v for k, v in trainer.generation_kwargs.items() if k not in _SAMPLING} | {"do_sample": False}
    with StandIn(trainer, generation_config=config, generation_kwargs=options):
        yield


@contextmanager
def _unlogged(trainer: GRPOTrainer) -> Iterator[None]:
    metrics, logs = copy.deepcopy(trainer._metrics), copy.deepcopy(trainer._logs)
    tokens = trainer.state.num_input_tokens_seen
    try:
        yield
    finally:
        trainer._metrics, trainer._logs, trainer.state.num_input_tokens_seen = metrics, logs, tokens
