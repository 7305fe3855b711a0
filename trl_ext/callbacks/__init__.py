"""Callbacks for any TRL trainer: put one in `callbacks=[...]`."""

import importlib

# Resolved on first use: the command line reads the files of rules and thresholds without waiting for Transformers
_HOME = {
    "AnomalyDetectionCallback": "anomaly_detection",
    "BestCheckpointCallback": "best_checkpoint",
    "CheckpointHealthCallback": "checkpoint_health",
    "ConsoleCallback": "console",
    "PPOMonitoringCallback": "ppo_monitoring",
    "RewardReliabilityCallback": "reward_reliability",
    "TimeBudgetCallback": "time_budget",
    "TrainingStopped": "stopping",
    "drop_raw_logs": "console",
    "guard_reporting": "reporting_guard",
}
__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'trl_ext.callbacks' has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(importlib.import_module(f"trl_ext.callbacks.{_HOME[name]}"), name)


def __dir__():
    return [*globals(), *__all__]
