"""`train(trainer)`: train, and end cleanly where a callback had to stop the run by raising."""

from ..callbacks.stopping import TrainingStopped


def train(trainer, **kwargs):
    """`trainer.train(**kwargs)`, where `TrainingStopped` is a clean return instead of a traceback.

    Stock PPO (trl 1.12) ignores `control.should_training_stop`: a callback can end it only by raising, which
    `PPOMonitoringCallback(on_critical="stop")` does after a checkpoint is saved. Other trainers stop by `control`.

    Returns:
        what `trainer.train` returns; None for stock PPO (always) and for a run that was stopped.
    """
    try:
        return trainer.train(**kwargs)
    except TrainingStopped as stopped:
        print(stopped)
        return None
