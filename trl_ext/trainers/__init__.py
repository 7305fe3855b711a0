"""The trainers TRL lacks, as subclasses of its own."""

from .compiled_layers import compile_layers
from .launch import evaluate, save, train
from .ppo_config import PPOConfig
from .ppo_trainer import PPOTrainer
from .reinforce_loo_config import ReinforceLOOConfig
from .reinforce_loo_trainer import ReinforceLOOTrainer

__all__ = [
    "PPOConfig",
    "PPOTrainer",
    "ReinforceLOOConfig",
    "ReinforceLOOTrainer",
    "compile_layers",
    "evaluate",
    "save",
    "train",
]
