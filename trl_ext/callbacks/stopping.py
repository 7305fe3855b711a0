"""How a callback stops a trainer that does not listen."""

from transformers import TrainerState


class TrainingStopped(RuntimeError):  # noqa: N818 - a decision, not an error
    """Raised after the checkpoint is saved, in trainers that ignore `control.should_training_stop` (stock PPO).

    `trl_ext.train(trainer)` turns it into a clean return. The message says what was found and where.
    """


def ignores_control(state: TrainerState) -> bool:
    """Whether the trainer reads `control.should_save` alone: stock PPO of TRL 0.12 to 1.12 (and RLOO up to 0.21).

    Told by the class of its state, which those trainers alone use and hand to every event; the trainer itself never
    reaches a callback, and users subclass the arguments and the trainer, but not this. By name, since its module moved.
    """
    return any(cls.__name__ == "OnlineTrainerState" for cls in type(state).__mro__)
