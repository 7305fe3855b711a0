"""Checkpoints in a folder: which one a run can go on from, and why another cannot be taken."""

import json
import logging
import re
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from safetensors import SafetensorError, safe_open

from trl_ext.checkpoints.naming import step_of
from trl_ext.errors import UserError
from trl_ext.monitor.strict_json import is_strict_json

logger = logging.getLogger(__name__)

# What Transformers takes for weights: whole, as shards by their index, an adapter, divided by FSDP or DeepSpeed
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
            "adapter_model.safetensors", "adapter_model.bin", "*/adapter_model.safetensors", "*/adapter_model.bin",
            "pytorch_model_fsdp.bin", "pytorch_model_fsdp_*/*", "global_step*/*_states.pt")  # fmt: skip
STATE_FILE = "reinforce_loo_state.json"
_JSON = ("config.json", "generation_config.json", "adapter_config.json", STATE_FILE)
_INDEX = ".index.json"
_NUMBERS = {"type": "object", "additionalProperties": {"type": "number"}}
_OWN_STATE = Draft202012Validator(
    {"type": "object", "required": ["baseline", "kl"], "additionalProperties": _NUMBERS,
     "properties": {"kl": {"required": ["value"]}}}
)  # fmt: skip
# Of `trainer_state.json`; others' and later fields are let be
_TRAINER_STATE = Draft202012Validator({
    "type": "object", "required": ["global_step"],
    "properties": {
        "global_step": {"type": "integer", "minimum": 0}, "max_steps": {"type": "integer"},
        "epoch": {"type": ["number", "null"]}, "log_history": {"type": "array"},
        "best_model_checkpoint": {"type": ["string", "null"]}, "stateful_callbacks": {"type": "object"},
        "logging_steps": {"type": "number"}, "save_steps": {"type": "number"}, "total_flos": {"type": "number"},
    },
})  # fmt: skip
# What training goes on with besides the weights
STATES = {
    "optimizer": re.compile(r"optimizer(_\d+)?(\.(pt|bin))?(/.*)?|.*optim_states\.pt"),
    "scheduler": re.compile(r"scheduler(_\d+)?\.(pt|bin)"),
    "random state": re.compile(r"rng_state(_\d+)?\.pth|random_states_\d+\.pkl"),
}
_BY_TORCH = re.compile(  # what a resume loads; others' files of these kinds are none of its business
    r"(pytorch_model|adapter_model|optimizer|scheduler|scaler|rng_state).*\.(bin|pt|pth)|.*_states\.pt"
)
_CONFIGURATIONS = {"FSDP": "fsdp2.yaml", "ZeRO-2": "zero2.yaml", "ZeRO-3": "zero3.yaml"}


def checkpoints(folder: str) -> list[Path]:
    """Of all steps, the newest last."""
    found = {path: step for path in Path(folder).glob("checkpoint-*") if (step := step_of(path)) is not None}
    return sorted(found, key=found.__getitem__)


def is_whole(checkpoint: Path) -> bool:
    """`trainer_state.json` is what is saved last: without it, or with half of it, a run was killed while it saved."""
    state = _json(checkpoint / "trainer_state.json")
    return _TRAINER_STATE.is_valid(state) and isinstance(state["global_step"], int)  # 6.0 is an integer of JSON Schema


def saved_step(checkpoint: Path) -> int:
    """Of a whole one."""
    return _json(checkpoint / "trainer_state.json")["global_step"]


def newest_whole(folder: str, needed: Collection[str] = ()) -> str:
    """The newest checkpoint that was saved to its end and lacks no file; of those passed over it warns.

    One without a state of optimizer, scheduler or random numbers is passed over where another has them all; one
    without all three is what `save_only_model` saves.

    Args:
        needed: files that the run's own trainer loads, besides those of every checkpoint.
    Raises:
        UserError: there is none.
    """
    path, passed_over = _newest(folder, needed)
    if path is None:
        why = f" ({passed_over[0]})" if passed_over else ""
        raise UserError(f"there is no whole checkpoint in {folder} to resume from{why}: drop resume_from_checkpoint.")
    for fault in passed_over:
        logger.warning("%s. Taking %s.", fault, path)
    warn_of_lost_states(path)
    return str(path)


def how_to_go_on(folder: str, needed: Collection[str] = ()) -> str:
    """A sentence for the end of a message: where a run that failed goes on from."""
    path, _ = _newest(folder, needed)
    if path is None:
        return f"There is no whole checkpoint in {folder} to go on from; save_strategy: steps and save_steps make them."
    return f"To go on: resume_from_checkpoint: true takes {path}."


def _newest(folder: str, needed: Collection[str]) -> tuple[Path | None, list[str]]:
    """The newest one to go on from, and what those after it lack."""
    without_states: tuple[Path, list[str]] | None = None
    passed_over: list[str] = []
    for path in reversed(checkpoints(folder)):
        try:
            fault, lost = _fault(path, needed), lost_states(path)
        except OSError:  # process 0 deletes old ones
            passed_over.append(f"{path} is gone")
            continue
        if fault:
            passed_over.append(fault[0])
        elif lost and len(lost) < len(STATES):
            without_states = without_states or (path, passed_over[:])
            passed_over.append(f"{path} has no {' and no '.join(lost)}")
        else:
            return path, passed_over
    return without_states or (None, passed_over)


def lost_states(checkpoint: Path) -> list[str]:
    """Which of optimizer, scheduler and random state are not there."""
    names = [path.relative_to(checkpoint).as_posix() for path in checkpoint.rglob("*")]
    # DeepSpeed may have a scheduler of its own, in its states: then no checkpoint of the run has the other
    own = any(name.endswith("_optim_states.pt") for name in names) and not any(
        checkpoint.parent.glob("checkpoint-*/scheduler.pt")
    )
    return missing_states(names, own)


def missing_states(names: Collection[str], by_deepspeed: bool) -> list[str]:
    """The same by the names of files and folders; the scheduler not where DeepSpeed's own states may hold it."""
    return [
        state for state, pattern in STATES.items()
        if not any(map(pattern.fullmatch, names)) and not (by_deepspeed and state == "scheduler")
    ]  # fmt: skip


def warn_of_lost_states(checkpoint: Path) -> None:
    if lost := lost_states(checkpoint):
        logger.warning("%s has no %s: %s", checkpoint, " and no ".join(lost), what_begins_anew(lost))


def warn_of_the_end(checkpoint: Path, args: Any) -> None:
    """Transformers asks whether a run is at its end behind a step, never before the first."""
    step, last = saved_step(checkpoint), getattr(args, "max_steps", None) or 0
    if 0 < last <= step:
        logger.warning(
            "%s is at the end of this run (step %d of %d): Transformers may train a step more. Raise the run's length "
            "to go on from it.", checkpoint, step, last,
        )  # fmt: skip


def what_begins_anew(lost: Collection[str]) -> str:
    """Transformers loads optimizer and scheduler together, or neither."""
    anew = ["optimizer and learning rate begin anew"] if {"optimizer", "scheduler"} & set(lost) else []
    anew += ["random numbers are others"] if "random state" in lost else []
    return f"after a resume {', and '.join(anew)}."


def refuse_run(folder: Path, needed: Collection[str] = ()) -> None:
    """
    Raises:
        UserError: the folder of a run in the place of a checkpoint; names its newest whole one.
    """
    if checkpoints(str(folder)) and (not is_whole(folder) or lost_states(folder)):  # `save_state` writes there as well
        whole, _ = _newest(str(folder), needed)
        take = f"take {whole}, the newest of its checkpoints" if whole else "none of its checkpoints is whole"
        raise UserError(f"{folder} is the folder of a run and no checkpoint: {take}.")


def refuse_broken(checkpoint: Path, needed: Collection[str] = ()) -> None:
    """Half a file, such as a full disk or a broken copy leaves it, by its frame alone, and what is gone: no weight is
    read.

    Raises:
        UserError: names the file.
    """
    if fault := _fault(checkpoint, needed):
        raise UserError(": ".join(fault))


def _fault(checkpoint: Path, needed: Collection[str]) -> tuple[str, str] | None:
    """What is wrong, and what to do."""
    another = "resume from another checkpoint, or copy this one again."
    state = checkpoint / "trainer_state.json"
    broken = [state] if state.exists() and not is_whole(checkpoint) else []
    broken += [path for path in map(checkpoint.joinpath, _JSON) if path.exists() and not _json(path)]
    own = checkpoint / STATE_FILE
    broken += [own] if STATE_FILE in needed and own.exists() and read_own_state(own) is None else []
    broken += [path for path in sorted(checkpoint.rglob("*.safetensors")) if not _is_safetensors(path)]
    broken += [
        path for path in sorted(checkpoint.rglob("*.*")) if _BY_TORCH.fullmatch(path.name) and not _is_torch(path)
    ]
    indices = sorted(checkpoint.glob("*.index.json"))
    # beside a file of all weights Transformers takes that
    files = {index: _files_of(index) for index in indices if not index.with_name(index.name[: -len(_INDEX)]).is_file()}
    broken += [index for index, names in files.items() if not names]
    if broken:
        return f"{broken[0]} is broken", another
    gone = [checkpoint / name for names in files.values() for name in names if not (checkpoint / name).is_file()]
    if gone:
        return f"{gone[0]} is gone", another
    lost = [name for name in needed if not (checkpoint / name).exists()]
    if lost:
        return f"{checkpoint} has no {lost[0]}, which the options of this run load", another
    if (checkpoint / "adapter_config.json").exists() and not any(checkpoint.glob("adapter_model.*")):
        return f"{checkpoint} has no adapter_model.safetensors", another
    if any(checkpoint.glob("adapter_model.*")) and not (checkpoint / "adapter_config.json").exists():
        return f"{checkpoint} has no adapter_config.json", another
    if not any(any(checkpoint.glob(pattern)) for pattern in _WEIGHTS):
        return f"{checkpoint} holds no weights to resume from", another
    if not state.exists():
        return f"{checkpoint} was not saved to its end, {state.name} is missing", "resume from another checkpoint."
    return None


def refuse_other_engine(checkpoint: Path, trainer: Any) -> None:
    """States of the optimizer are saved in the form of the engine that divided them, and loaded by it alone."""
    saved, parts = _engine_of(checkpoint)
    own = "FSDP" if getattr(trainer, "is_fsdp_enabled", False) else None
    if getattr(trainer, "is_deepspeed_enabled", False):
        own = "ZeRO-3" if trainer.accelerator.state.deepspeed_plugin.zero_stage == 3 else "ZeRO-2"
    if saved == own:
        if parts and parts != trainer.args.world_size:
            raise UserError(
                f"{checkpoint} was saved by {parts} processes, and ZeRO resumes on the same number alone: set "
                f"--num_processes {parts}, or begin anew from its weights (model_name_or_path: {checkpoint})"
            )
        return
    start = f"with accelerate_configs/{_CONFIGURATIONS[saved]}" if saved else "without FSDP and DeepSpeed"
    raise UserError(
        f"{checkpoint} was saved {f'under {saved}' if saved else 'by an undivided run'}, and this run "
        f"{f'is one of {own}' if own else 'is undivided'}: start it {start}, or begin anew from its weights "
        f"(model_name_or_path: {checkpoint})"
    )


def _engine_of(checkpoint: Path) -> tuple[str | None, int]:
    """What divided it, and under ZeRO into how many parts."""
    parts = len(list(checkpoint.glob("global_step*/*_optim_states.pt")))
    if parts:
        divided = any(checkpoint.glob("global_step*/zero_pp_rank_*_model_states.pt"))
        return ("ZeRO-3" if divided else "ZeRO-2"), parts
    return ("FSDP" if any(checkpoint.glob("pytorch_model_fsdp*")) else None), 0


def refuse_other_form(checkpoint: Path, trainer: Any) -> None:
    """An adapter's optimizer knows other weights than a whole model's."""
    trained = (
        getattr(trainer, "accelerator", trainer).unwrap_model(trainer.model) if hasattr(trainer, "model") else None
    )
    adapts, is_adapter = hasattr(trained, "peft_config"), (checkpoint / "adapter_config.json").exists()
    if adapts == is_adapter:
        return
    has, trains = ("an adapter", "all weights") if is_adapter else ("a whole model", "an adapter")
    change = "set use_peft: true" if is_adapter else "drop use_peft"
    raise UserError(
        f"{checkpoint} is of {has}, and this run trains {trains}: {change}, or begin anew from its weights "
        f"(model_name_or_path: {checkpoint})"
    )


def _is_safetensors(path: Path) -> bool:
    try:
        with safe_open(path, framework="pt") as file:
            return bool(file.keys())
    except (OSError, SafetensorError):
        return False


def _is_torch(path: Path) -> bool:
    """A zip archive, or the older form, which begins as a pickle does and has no frame."""
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"\x80\x02" or zipfile.is_zipfile(file)
    except OSError:  # a folder of that name as well
        return False


def _files_of(index: Path) -> list[str]:
    """The files that an index of Transformers names, each once; none where it is broken."""
    content = _json(index)
    names = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        return []
    return list(dict.fromkeys(names.values()))


def read_own_state(path: Path) -> dict[str, dict[str, float]] | None:
    """What `ReinforceLOOTrainer` saves of its baseline and its KL coefficient; `None`: it is none, or half of it."""
    state = _json(path)
    return state if _OWN_STATE.is_valid(state) and is_strict_json(state) else None


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
