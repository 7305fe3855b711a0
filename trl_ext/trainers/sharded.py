"""Parameters that FSDP2 or ZeRO-3 divides over the processes, read and written whole."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.integrations import is_deepspeed_zero3_enabled


@contextmanager
def gathered(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Whole under ZeRO-3, where each process holds a part of every weight; what the main process writes stays."""
    if not is_deepspeed_zero3_enabled():
        yield
        return
    deepspeed = import_module("deepspeed")  # no dependency: there wherever ZeRO-3 is on
    with deepspeed.zero.GatheredParameters(parameters, modifier_rank=0):
        yield


def whole(parameter: torch.Tensor) -> torch.Tensor:
    """Of FSDP2's shards; a collective. Under ZeRO-3 inside `gathered`."""
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


@torch.no_grad()
def load_whole(targets: Mapping[str, torch.Tensor], names: Iterable[str], read: Callable[[str], torch.Tensor]) -> None:
    """Copies whole tensors into parameters, divided or not, one at a time; all processes call it with the same.

    Args:
        names: of the tensors that `read` gives.
    Raises:
        ValueError: other names, or other shapes.
    """
    if others := targets.keys() ^ set(names):
        raise ValueError(f"other names: {', '.join(sorted(others)[:3])}")
    for name, target in targets.items():
        with gathered([target] if isinstance(target, nn.Parameter) else []):
            given = read(name).to(target.device)
            if given.shape != target.shape:
                raise ValueError(f"{name} has shape {tuple(given.shape)}, not {tuple(target.shape)}")
            if isinstance(target, DTensor):
                given = distribute_tensor(given, target.device_mesh, target.placements)
            target.copy_(given)
