"""The monitor with the PPO view."""

from trl_ext.callbacks._monitoring import MonitoringCallback
from trl_ext.callbacks._ppo_view import PPOView


class PPOMonitoringCallback(MonitoringCallback):
    """Says within a few steps, and in plain words, that a run goes wrong, why, and what to change.

    Works in `callbacks=[...]` of stock PPO (TRL 1.12) and of every trainer built on `transformers.Trainer`. Writes
    `metrics.jsonl`, `alerts.jsonl` and `summary.json`, and logs each alert. Its state is in every checkpoint and comes
    back on resume by itself.

    It is `AnomalyDetectionCallback`, with the same arguments, and the PPO view on top: the ratios `kl_policy_ratio` and
    `value_policy_ratio` (see `docs/callbacks.md`), statistics of each epoch, and trends. They are in `summary()`, and
    with the system metrics and the number of open alerts in the trainer's own logs under `trl_ext/`.
    """

    def _new_view(self) -> PPOView:
        return PPOView(self._options.window)
