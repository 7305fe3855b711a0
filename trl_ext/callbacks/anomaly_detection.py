"""The monitor for any trainer."""

from trl_ext.callbacks._monitoring import MonitoringCallback


class AnomalyDetectionCallback(MonitoringCallback):
    """Says within a few steps, and in plain words, that a run goes wrong, why, and what to change.

    For `callbacks=[...]` of any trainer built on `transformers.Trainer`, and of stock PPO (TRL 1.12): the rules judge
    whatever of their metrics is logged. Writes `metrics.jsonl`, `alerts.jsonl` and `summary.json`, and logs each alert.
    Its state is in every checkpoint and comes back on resume by itself.
    """
