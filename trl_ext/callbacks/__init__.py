"""Callbacks for any TRL trainer: put one in `callbacks=[...]`."""

from trl_ext.callbacks.anomaly_detection import AnomalyDetectionCallback
from trl_ext.callbacks.best_checkpoint import BestCheckpointCallback
from trl_ext.callbacks.console import ConsoleCallback
from trl_ext.callbacks.ppo_monitoring import PPOMonitoringCallback
from trl_ext.callbacks.reporting_guard import guard_reporting
from trl_ext.callbacks.stopping import TrainingStopped
from trl_ext.callbacks.time_budget import TimeBudgetCallback

__all__ = [
    "AnomalyDetectionCallback",
    "BestCheckpointCallback",
    "ConsoleCallback",
    "PPOMonitoringCallback",
    "TimeBudgetCallback",
    "TrainingStopped",
    "guard_reporting",
]
