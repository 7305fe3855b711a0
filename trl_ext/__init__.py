"""A thin extension layer over Hugging Face TRL: watch a run, swap rewards, train with REINFORCE-LOO and PPO."""

import importlib

# Resolved on first use: `trl_ext.monitor` must work on a machine without torch or TRL
_HOME = {
    "FastGeneration": "trl_ext.generation",
    "PPOConfig": "trl_ext.trainers",
    "PPOTrainer": "trl_ext.trainers",
    "ReinforceLOOConfig": "trl_ext.trainers",
    "ReinforceLOOTrainer": "trl_ext.trainers",
    "compile_layers": "trl_ext.trainers",
    "evaluate": "trl_ext.trainers",
    "save": "trl_ext.trainers",
    "train": "trl_ext.trainers",
    "AnomalyDetectionCallback": "trl_ext.callbacks",
    "BestCheckpointCallback": "trl_ext.callbacks",
    "CheckpointHealthCallback": "trl_ext.callbacks",
    "PPOMonitoringCallback": "trl_ext.callbacks",
    "RewardReliabilityCallback": "trl_ext.callbacks",
    "TimeBudgetCallback": "trl_ext.callbacks",
    "ConsoleCallback": "trl_ext.callbacks",
    "TrainingStopped": "trl_ext.callbacks",
    "drop_raw_logs": "trl_ext.callbacks",
    "guard_reporting": "trl_ext.callbacks",
    "check_reward_funcs": "trl_ext.rewards",
    "load_reward_funcs": "trl_ext.rewards",
    "as_reward_model": "trl_ext.rewards",
    "UserError": "trl_ext.errors",
}
__all__ = sorted(_HOME)
__version__ = "0.1.0"


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'trl_ext' has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__():
    return [*globals(), *__all__]
