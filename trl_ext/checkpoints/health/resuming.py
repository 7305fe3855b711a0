"""What a trainer needs to go on from a checkpoint."""

import re
from collections.abc import Iterator
from dataclasses import replace

import torch

from trl_ext.checkpoints.blocks import map_blocks
from trl_ext.checkpoints.health.finding import Case, HealthFinding, Rule, counted, listed, named, whole_number
from trl_ext.checkpoints.moments import moments_of
from trl_ext.checkpoints.naming import step_of
from trl_ext.checkpoints.saved import STATES, missing_states, what_begins_anew
from trl_ext.checkpoints.stored import StoredTensor
from trl_ext.monitor.alerts import Severity

_PART, _PARTS_OF_A_STATE = 32 << 10, 8  # bytes of an optimizer's state that are looked at
_MOMENTS = (torch.float32, torch.bfloat16, torch.float16)


def cannot_resume(case: Case) -> Iterator[HealthFinding]:
    if not case.is_checkpoint:
        return
    if "trainer_state.json" not in case.checkpoint.files:
        yield HealthFinding(
            "trainer_state_missing", Severity.ERROR, "a checkpoint without trainer_state.json",
            "Training cannot go on from here: the save was interrupted, or the file was not copied.",
        )  # fmt: skip
    names = [*case.checkpoint.files, *case.checkpoint.folder.folders()]
    lost = missing_states(names, by_deepspeed="DeepSpeed" in case.checkpoint.form)
    if len(lost) == len(STATES) and "trainer_state.json" in case.checkpoint.files:
        yield HealthFinding(
            "resume_weights_only", Severity.INFO, "no optimizer, scheduler and random state: weights alone",
            "As save_only_model=True saves; training cannot go on from here exactly.",
        )  # fmt: skip
    elif lost and case.checkpoint.files:
        yield HealthFinding(
            "resume_incomplete", Severity.WARNING, f"training cannot go on exactly: no {listed(lost)}",
            f"The save was interrupted, or these files were not copied: {what_begins_anew(lost)}",
            numbers={"missing": lost},
        )  # fmt: skip


def step_disagrees(case: Case) -> Iterator[HealthFinding]:
    said = whole_number(case.document("trainer_state.json").get("global_step"))
    folder = case.checkpoint.path.resolve()
    if said is not None and step_of(folder) not in (None, said):
        yield HealthFinding(
            "step_disagrees", Severity.WARNING,
            f"the folder is {folder.name}, trainer_state.json is of step {said:,}",
            "Files of two saves lie in one folder: do not resume from here.", numbers={"step": said},
        )  # fmt: skip


def optimizer_state(case: Case) -> Iterator[HealthFinding]:
    """An optimizer that was saved before it made a step."""
    files = [name for name in case.checkpoint.files if re.fullmatch(r"optimizer\.(pt|bin)", name)]
    read = not any(problem.file in files for problem in case.checkpoint.problems)
    if files and read and case.step and not case.checkpoint.optimizer:
        yield HealthFinding(
            "optimizer_empty", Severity.WARNING, f"'{files[0]}' holds no state after {case.step:,} steps",
            "SGD has none; any other optimizer never made a step: look whether it has the model's parameters.",
            numbers={"file": files[0]},
        )  # fmt: skip


def optimizer_finite(case: Case) -> Iterator[HealthFinding]:
    """Some parts of each state: what makes one element NaN, a norm that is clipped by, mostly makes all so."""
    if any(one.nan for one in case.measured.tensors.values()):
        return  # said of the weights
    looked_at = [_parts(tensor) for tensor in case.checkpoint.optimizer if tensor.torch_dtype in _MOMENTS]
    bad = []
    for done in map_blocks(case.checkpoint.folder, looked_at, moments_of):
        if done.error is None and done.result is not None and (done.result.nan or done.result.infinite):
            bad.append(done.tensor.name)
    if bad:
        yield HealthFinding(
            "optimizer_nonfinite", Severity.ERROR,
            f"{counted(bad, 'state')} of the optimizer {'holds' if len(bad) == 1 else 'hold'} NaN or infinity: "
            f"{listed(bad)}",
            "The first step after resuming makes the weights NaN: go back to an earlier checkpoint.", bad[0],
            named(bad),
        )  # fmt: skip


def _parts(tensor: StoredTensor) -> StoredTensor:
    """The first, the last and those between at even distances."""
    pieces = []
    for piece in tensor.pieces[:_PARTS_OF_A_STATE]:
        few = max(1, _PARTS_OF_A_STATE // len(tensor.pieces))
        size = min(piece.size, _PART)
        for i in range(few if piece.size > size else 1):
            begin = (piece.size - size) * i // max(few - 1, 1) // 8 * 8
            pieces.append(replace(piece, offset=piece.offset + begin, size=size))
    elements = sum(piece.size for piece in pieces) // tensor.read_as.itemsize
    return replace(tensor, shape=(elements,), pieces=tuple(pieces))


RULES: tuple[Rule, ...] = (cannot_resume, step_disagrees, optimizer_state, optimizer_finite)
