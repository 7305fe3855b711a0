"""Agreement between the processes of one run.

All of them are collectives: every rank must call them, at the same point, or the run hangs. In a single process they
return what they were given.
"""

import torch
import torch.distributed as dist
from transformers import TrainingArguments

_TEXT = 4000  # bytes


def largest_over_ranks(value: int, args: TrainingArguments) -> int:
    """The largest `value` over all processes."""
    if not _several():
        return value
    shared = torch.tensor([value], device=_device(args))
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return int(shared.item())


def from_main_process(value: float | None, args: TrainingArguments) -> float | None:
    """The `value` of rank 0, which may be `None`, NaN or infinite."""
    if not _several():
        return value
    shared = torch.tensor([value is not None, value or 0.0], dtype=torch.float64, device=_device(args))
    dist.broadcast(shared, src=0)
    present, number = shared.tolist()
    return number if present else None


def text_of_any(text: str | None, args: TrainingArguments) -> tuple[str | None, int]:
    """The first 4,000 bytes of the `text` of the first process that has one, and its rank; `None` where none has."""
    if not _several():
        return text, 0
    world = dist.get_world_size()
    owner = world - largest_over_ranks(0 if text is None else world - dist.get_rank(), args)
    if owner == world:
        return None, owner
    data = (text or "").encode()[:_TEXT].ljust(_TEXT, b"\0") if owner == dist.get_rank() else bytes(_TEXT)
    shared = torch.tensor(list(data), dtype=torch.uint8, device=_device(args))
    dist.broadcast(shared, src=owner)
    return bytes(shared.tolist()).rstrip(b"\0").decode(errors="ignore"), owner


def _several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _device(args: TrainingArguments) -> torch.device:
    # NCCL moves tensors of its own device only, gloo those of the CPU
    return args.device if dist.get_backend() == "nccl" else torch.device("cpu")
