"""`train(trainer)`: train, and end cleanly where a callback had to stop the run by raising."""

import inspect
import json
import zipfile
from pathlib import Path

from safetensors import SafetensorError, safe_open

from ..callbacks.stopping import TrainingStopped
from ..checkpoints.naming import step_of
from ..errors import UserError


def train(trainer, **kwargs):
    """`trainer.train(**kwargs)`, where `TrainingStopped` is a clean return instead of a traceback.

    Stock PPO (trl 1.12) ignores `control.should_training_stop`: a callback can end it only by raising, which
    `PPOMonitoringCallback(on_critical="stop")` does after a checkpoint is saved. Other trainers stop by `control`.

    Args:
        kwargs: for `trainer.train`; those that are None are left out. `resume_from_checkpoint` is a folder, or True
            (also the word `true`) for the newest checkpoint in `output_dir` that was saved to its end.
    Returns:
        what `trainer.train` returns; None for stock PPO (always) and for a run that was stopped.
    Raises:
        UserError: no such checkpoint, one with a broken file or without the weights of its adapter, or stock PPO is
            asked to resume, which it cannot.
    """
    kwargs = {name: value for name, value in kwargs.items() if value is not None}
    checkpoint = kwargs.get("resume_from_checkpoint")
    if checkpoint is True or str(checkpoint).lower() == "true":
        checkpoint = kwargs["resume_from_checkpoint"] = _newest_whole(trainer.args.output_dir)
    if isinstance(checkpoint, str) and not Path(checkpoint).is_dir():
        raise UserError(
            f"no checkpoint {checkpoint!r}: set resume_from_checkpoint to a folder; {trainer.args.output_dir} has "
            f"{', '.join(path.name for path in _checkpoints(trainer.args.output_dir)) or 'none'}."
        )
    if isinstance(checkpoint, str):
        _refuse_broken(Path(checkpoint))
    if kwargs and not inspect.signature(trainer.train).parameters:
        raise UserError(f"stock PPO of TRL 1.12 takes no {', '.join(kwargs)}: start anew, or set TRL_EXT_PPO=trl_ext.")
    try:
        return trainer.train(**kwargs)
    except ValueError as error:
        if "valid checkpoint" not in str(error):  # Transformers': a folder without weights
            raise
        raise UserError(f"{checkpoint} holds no weights to resume from: choose another checkpoint.") from error
    except TrainingStopped as stopped:
        print(stopped)
        return None


def _checkpoints(folder: str) -> list[Path]:
    found = {path: step for path in Path(folder).glob("checkpoint-*") if (step := step_of(path)) is not None}
    return sorted(found, key=found.__getitem__)


def _newest_whole(folder: str) -> str:
    """`trainer_state.json` is what is saved last: without it, or with half of it, a run was killed while it saved."""
    whole = [path for path in _checkpoints(folder) if _is_json(path / "trainer_state.json")]
    if not whole:
        raise UserError(f"there is no whole checkpoint in {folder} to resume from: drop resume_from_checkpoint.")
    return str(whole[-1])


def _refuse_broken(checkpoint: Path) -> None:
    """Half a file, such as a full disk or a broken copy leaves it, by its frame alone: no weight is read."""
    state = checkpoint / "trainer_state.json"
    broken = [state] if state.exists() and not _is_json(state) else []
    broken += [path for path in sorted(checkpoint.glob("*.safetensors")) if not _is_safetensors(path)]
    broken += [path for path in sorted(checkpoint.glob("*.pt*")) if path.is_file() and not zipfile.is_zipfile(path)]
    if broken:
        raise UserError(f"{broken[0]} is broken: resume from another checkpoint, or copy this one again.")
    if (checkpoint / "adapter_config.json").exists() and not list(checkpoint.glob("adapter_model.*")):
        raise UserError(f"{checkpoint} has no adapter_model.safetensors: resume from another, or copy it again.")


def _is_safetensors(path: Path) -> bool:
    try:
        with safe_open(path, framework="pt"):
            return True
    except (OSError, SafetensorError):
        return False


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True
