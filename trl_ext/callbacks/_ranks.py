"""Agreement between the processes of one run."""

import torch
import torch.distributed as dist
from transformers import TrainingArguments


def largest_over_ranks(value: int, args: TrainingArguments) -> int:
    """The largest `value` over all processes; `value` itself in a single process.

    A collective: every rank must call it, at the same point, or the run hangs.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return value
    # NCCL moves tensors of its own device only, gloo those of the CPU
    shared = torch.tensor([value], device=args.device if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return int(shared.item())
