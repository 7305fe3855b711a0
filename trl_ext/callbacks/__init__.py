"""Callbacks for any TRL trainer: put one in `callbacks=[...]`."""

from trl_ext.callbacks.anomaly_detection import AnomalyDetectionCallback
from trl_ext.callbacks.console import ConsoleCallback
from trl_ext.callbacks.ppo_monitoring import PPOMonitoringCallback
from trl_ext.callbacks.reporting_guard import guard_reporting
from trl_ext.callbacks.stopping import TrainingStopped

__all__ = [
    "AnomalyDetectionCallback",
    "ConsoleCallback",
    "PPOMonitoringCallback",
    "TrainingStopped",
    "guard_reporting",
]
