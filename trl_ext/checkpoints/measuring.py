"""Reads the tensors of a checkpoint once: the numbers of each, and how far it is from its reference."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trl_ext.checkpoints.blocks import Other, map_blocks
from trl_ext.checkpoints.drift import Drift, compare
from trl_ext.checkpoints.errors import UnreadableError
from trl_ext.checkpoints.lora import LoraUpdate, lora_pairs, lora_update
from trl_ext.checkpoints.moments import TensorStatistics, moments_of, statistics_of
from trl_ext.checkpoints.naming import weight_name
from trl_ext.checkpoints.reader import Checkpoint
from trl_ext.checkpoints.stored import StoredTensor

_MOST_WORKERS = 12  # of 17 MiB each, with a reference; more wait for memory


@dataclass
class Measured:
    """
    Attributes:
        tensors: statistics by name, in the order in which they lie in the files.
        drifts: from the reference, by name; of the tensors that both have in one shape.
        lora: what adapters add.
        alone: matrices of LoRA without a partner.
        missing, extra: names of tensors that only the reference has, or only the checkpoint.
        reshaped: names of those whose shape differs.
        not_compared: names of those that lie in another order than in the reference, or are packed.
    """

    tensors: dict[str, TensorStatistics] = field(default_factory=dict)
    drifts: dict[str, Drift] = field(default_factory=dict)
    lora: list[LoraUpdate] = field(default_factory=list)
    alone: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    reshaped: list[str] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)


def measure(checkpoint: Checkpoint, reference: Checkpoint | None = None, workers: int | None = None) -> Measured:
    """What cannot be read is added to `checkpoint.problems`.

    Args:
        reference: the base model, or another checkpoint of the run.
        workers: threads; as many as there are cores by default, 12 at most.
    """
    measured = Measured()
    workers = workers or min(len(os.sched_getaffinity(0)), _MOST_WORKERS)
    others = {} if reference is None else _pair(measured, checkpoint, reference)
    for done in map_blocks(checkpoint.folder, checkpoint.tensors, compare, workers, others):
        result = done.result
        if done.error is not None:
            checkpoint.cannot_read(done.tensor.pieces[0].file, done.error)
            continue
        measured.tensors[done.tensor.name] = statistics_of(done.tensor, result.moments if result else None)
        if result is not None and result.drift is not None:
            measured.drifts[done.tensor.name] = result.drift.drift()
    _measure_lora(measured, checkpoint, reference, workers)
    return measured


def _pair(measured: Measured, checkpoint: Checkpoint, reference: Checkpoint) -> dict[str, Other]:
    """What each tensor is compared with. An adapter has nothing in common with its base."""
    known = {weight_name(tensor.name): tensor for tensor in reference.tensors}
    own = {weight_name(tensor.name): tensor for tensor in checkpoint.tensors}
    others = {}
    for name, tensor in own.items():
        other = known.get(name)
        if other is None:
            measured.extra.append(tensor.name)
        elif other.shape != tensor.shape:
            measured.reshaped.append(tensor.name)
        elif _comparable(tensor, other):
            others[tensor.name] = Other(reference.folder, other)
        else:
            measured.not_compared.append(tensor.name)
    compared = {own[weight_name(name)].pieces for name in others}
    measured.extra = [name for name in measured.extra if own[weight_name(name)].pieces not in compared]  # tied
    measured.missing = [tensor.name for name, tensor in known.items() if name not in own]
    return others


def _comparable(tensor: StoredTensor, other: StoredTensor) -> bool:
    same_form = tensor.form == other.form and (tensor.form is None or tensor.dtype == other.dtype)
    known = tensor.torch_dtype is not None and other.torch_dtype is not None
    alike = [piece.size for piece in tensor.pieces] == [piece.size for piece in other.pieces]
    return same_form and known and ((tensor.ordered and other.ordered) or (tensor.ordered == other.ordered and alike))


def _measure_lora(measured: Measured, checkpoint: Checkpoint, reference: Checkpoint | None, workers: int) -> None:
    pairs, measured.alone = lora_pairs(checkpoint.tensors)
    configuration = checkpoint.documents.get("adapter_config.json")
    for a, b in pairs:
        try:
            update = lora_update(checkpoint.folder, a, b, configuration if isinstance(configuration, dict) else {})
        except UnreadableError as error:
            checkpoint.cannot_read(a.pieces[0].file if a.pieces else a.name, error)
            continue
        if update is not None:
            measured.lora.append(update)
    if reference is not None and measured.lora:
        norms = _norms(reference, {update.target for update in measured.lora}, workers)
        measured.lora = [
            replace(update, relative=update.norm / norms[update.target]) if norms.get(update.target) else update
            for update in measured.lora
        ]


def _norms(reference: Checkpoint, targets: set[str], workers: int) -> Mapping[str, float]:
    wanted = [t for t in reference.tensors if weight_name(t.name) in targets and t.form is None]
    norms = {}
    for done in map_blocks(reference.folder, wanted, moments_of, workers):
        if done.error is None:
            norms[weight_name(done.tensor.name)] = statistics_of(done.tensor, done.result).norm
    return norms
