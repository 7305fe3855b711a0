"""`train(trainer)`: train, and end cleanly where a callback had to stop the run by raising."""

import inspect
from pathlib import Path

from ..callbacks.stopping import TrainingStopped
from ..errors import UserError


def train(trainer, **kwargs):
    """`trainer.train(**kwargs)`, where `TrainingStopped` is a clean return instead of a traceback.

    Stock PPO (trl 1.12) ignores `control.should_training_stop`: a callback can end it only by raising, which
    `PPOMonitoringCallback(on_critical="stop")` does after a checkpoint is saved. Other trainers stop by `control`.

    Args:
        kwargs: for `trainer.train`; those that are None are left out.
    Returns:
        what `trainer.train` returns; None for stock PPO (always) and for a run that was stopped.
    Raises:
        UserError: no such checkpoint, or stock PPO is asked to resume, which it cannot.
    """
    kwargs = {name: value for name, value in kwargs.items() if value is not None}
    checkpoint = kwargs.get("resume_from_checkpoint")
    if isinstance(checkpoint, str) and not Path(checkpoint).is_dir():
        folder = trainer.args.output_dir
        found = sorted(path.name for path in Path(folder).glob("checkpoint-*"))
        raise UserError(
            f"no checkpoint {checkpoint!r}: set resume_from_checkpoint to a folder; {folder} has "
            f"{', '.join(found) or 'none'}."
        )
    if kwargs and not inspect.signature(trainer.train).parameters:
        raise UserError(f"stock PPO of TRL 1.12 takes no {', '.join(kwargs)}: start anew, or set TRL_EXT_PPO=trl_ext.")
    try:
        return trainer.train(**kwargs)
    except TrainingStopped as stopped:
        print(stopped)
        return None
