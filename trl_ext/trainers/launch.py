"""`train(trainer)`: train, and end cleanly where a callback had to stop the run by raising."""

import inspect
from pathlib import Path

from ..callbacks.stopping import TrainingStopped
from ..checkpoints.saved import (
    checkpoints,
    newest_whole,
    refuse_broken,
    refuse_other_engine,
    refuse_other_form,
    refuse_run,
    warn_of_lost_states,
    warn_of_the_end,
)
from ..errors import UserError
from .failures import telling_failures
from .termination import speaking_when_terminated


def train(trainer, **kwargs):
    """`trainer.train(**kwargs)`, where `TrainingStopped` is a clean return instead of a traceback.

    Stock PPO (trl 1.12) ignores `control.should_training_stop`: a callback can end it only by raising, which
    `PPOMonitoringCallback(on_critical="stop")` does after a checkpoint is saved. Other trainers stop by `control`.

    Args:
        kwargs: for `trainer.train`; those that are None or false are left out. `resume_from_checkpoint` is a folder, or
            True (also the word `true`) for the newest checkpoint in `output_dir` that was saved to its end.
    Returns:
        what `trainer.train` returns; None for stock PPO (always) and for a run that was stopped.
    Raises:
        UserError: no such checkpoint, one with a broken file, without weights or of another engine;
            stock PPO is asked to resume, which it cannot; one that cannot be loaded, no memory, a full disk or a lost
            process (`failures.py`).
    """
    kwargs = {name: value for name, value in kwargs.items() if value is not None and str(value).lower() != "false"}
    if kwargs and not inspect.signature(trainer.train).parameters:
        raise UserError(f"stock PPO of TRL 1.12 takes no {', '.join(kwargs)}: start anew, or set TRL_EXT_PPO=trl_ext.")
    checkpoint = kwargs.get("resume_from_checkpoint")
    needed = getattr(trainer, "checkpoint_files", ())
    if checkpoint is True or str(checkpoint).lower() == "true":
        checkpoint = kwargs["resume_from_checkpoint"] = newest_whole(trainer.args.output_dir, needed)
    elif isinstance(checkpoint, str | Path):
        if not (str(checkpoint) and Path(checkpoint).is_dir()):
            raise UserError(
                f"no checkpoint {str(checkpoint)!r}: set resume_from_checkpoint to a folder; {trainer.args.output_dir} "
                f"has {', '.join(path.name for path in checkpoints(trainer.args.output_dir)) or 'none'}."
            )
        checkpoint = kwargs["resume_from_checkpoint"] = str(checkpoint)
        refuse_run(Path(checkpoint), needed)
        refuse_broken(Path(checkpoint), needed)
        warn_of_lost_states(Path(checkpoint))
    if isinstance(checkpoint, str):
        refuse_other_engine(Path(checkpoint), trainer)
        refuse_other_form(Path(checkpoint), trainer)
        warn_of_the_end(Path(checkpoint), getattr(trainer, "args", None))
    try:
        with speaking_when_terminated(trainer), telling_failures(trainer, checkpoint):
            return trainer.train(**kwargs)
    except TrainingStopped as stopped:
        print(stopped)
        return None


def save(trainer) -> None:
    """`trainer.save_model()`, where a full disk is one line. All processes call it: divided weights are gathered.

    Raises:
        UserError: the disk is full, memory is, or another process is gone.
    """
    with telling_failures(trainer):
        trainer.save_model()


def evaluate(trainer) -> dict[str, float]:
    """`trainer.evaluate()` after training; its numbers go to `eval_results.json`, and to the card of a pushed model.

    All processes call it.
    """
    metrics = trainer.evaluate()
    trainer.save_metrics("eval", metrics)
    if trainer.args.push_to_hub:  # once more, with the numbers in the model card
        trainer.push_to_hub()
    return metrics
