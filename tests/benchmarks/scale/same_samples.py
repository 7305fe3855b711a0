"""Samples that depend on the step and the row of the global batch alone, not on how many processes share it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def same_samples(trainer: Any) -> Iterator[None]:
    """While `trainer` generates, `torch.multinomial` draws by the Gumbel trick, from noise of the global row."""
    original, multinomial = trainer._generate_single_turn, torch.multinomial
    accelerator, place = trainer.accelerator, [0, 0]

    def draw(probs: torch.Tensor, num_samples: int, *_: Any, **__: Any) -> torch.Tensor:
        assert num_samples == 1
        rows, rank, count = len(probs), accelerator.process_index, accelerator.num_processes
        seed = hash((trainer.args.seed, trainer.state.global_step, *place, trainer.model.training))
        place[1] += 1
        noise = torch.rand(rows * count, probs.size(1), generator=torch.Generator().manual_seed(seed))
        own = noise[rank * rows : (rank + 1) * rows].clamp(min=1e-12).to(probs.device)
        return (probs / -own.log()).argmax(-1, keepdim=True)

    def generate(*args: Any, **kwargs: Any) -> Any:
        place[:] = place[0] + 1 if not trainer.model.training else 0, 0  # an evaluation generates several batches
        torch.multinomial = draw
        try:
            return original(*args, **kwargs)
        finally:
            torch.multinomial = multinomial

    trainer._generate_single_turn = generate
    try:
        yield
    finally:
        trainer.__dict__.pop("_generate_single_turn", None)
