"""What the PPO view adds to the metrics of a log: ratios, statistics of each epoch, trends."""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from trl_ext.monitor.metrics import canonical_names
from trl_ext.monitor.run_summary import RunSummary

EPOCHS_KEPT = 5
TREND_METRICS = (
    "reward", "kl_per_sequence", "kl_per_token", "entropy_per_token", "value_loss", "explained_variance",
    "completion_length",
)  # fmt: skip


class PPOView:
    """Args:
    window: logs over which the policy loss is averaged and trends are fitted. Trends are logged every quarter of it.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._recent: deque[Mapping[str, float]] = deque(maxlen=window)
        self._logs = 0
        self._policy_losses = 0
        self._policy_loss_size = 0.0
        self._keys: tuple[Any, ...] = ()  # of the latest log
        self._read = ("", "", "")  # those of its KL, policy loss and value loss
        self._epochs: dict[int, RunSummary] = {}
        self._past_epochs: list[dict[str, Any]] = []

    def derive(self, logs: Mapping[str, Any], keys: tuple[Any, ...]) -> dict[str, float]:
        """Numbers to add to one log of training, of those that can be told:

        * `kl_policy_ratio`: KL to the reference (as logged: of a sequence, or of a token) over the running mean of the
          magnitude of the policy loss. The mean, since the loss itself is near 0 by construction whenever the ratio
          is 1. Exponential over `window` logs, plain until there are so many.
        * `value_policy_ratio`: value loss over the same.
        * `trend/<metric>`: see `trends`; every quarter of the window.

        `keys` are those of `logs`.
        """
        if keys != self._keys:
            self._keys, self._read = keys, _keys(keys)
        derived = self._ratios(logs)
        if self._logs and self._logs % (self._window // 4) == 0:
            derived.update({f"trend/{name}": slope for name, slope in self.trends().items()})
        return derived

    def _ratios(self, logs: Mapping[str, Any]) -> dict[str, float]:
        kl_key, policy_key, value_key = self._read
        policy_loss = _number(logs.get(policy_key))
        if policy_loss is not None:
            self._policy_losses += 1
            weight = 1 / min(self._policy_losses, self._window)
            self._policy_loss_size += (abs(policy_loss) - self._policy_loss_size) * weight
        ratios = {}
        if policy_loss is not None and self._policy_loss_size > 0:
            for name, value in (("kl_policy_ratio", logs.get(kl_key)), ("value_policy_ratio", logs.get(value_key))):
                number = _number(value)
                if number is not None and math.isfinite(ratio := number / self._policy_loss_size):
                    ratios[name] = ratio
        return ratios

    def add(self, step: int, epoch: float | None, metrics: Mapping[str, float]) -> None:
        """One log of training: `Row.metrics`, which must not change afterwards."""
        self._logs += 1
        self._recent.append(metrics)
        if epoch is None:
            return
        number = max(1, math.ceil(epoch))  # a log at exactly 1.0 closes the first epoch
        if number not in self._epochs:
            self._past_epochs = self.epochs()[1 - EPOCHS_KEPT :]
            self._epochs = {number: RunSummary()}
        self._epochs[number].add(step, metrics)

    def epochs(self) -> list[dict[str, Any]]:
        """The last five epochs: `{"epoch": 1, "logs": 10, "metrics": {name: {"mean", "min", "max"}}}`, oldest first."""
        current = []
        for number, totals in self._epochs.items():
            seen = totals.to_dict()
            metrics = {name: {k: of[k] for k in ("mean", "min", "max")} for name, of in seen["metrics"].items()}
            current.append({"epoch": number, "logs": seen["logs"], "metrics": metrics})
        return [*self._past_epochs, *current]

    def trends(self) -> dict[str, float]:
        """Least-squares slope a log, over the last `window` logs, of each of the main metrics that came four times."""
        slopes = {}
        for name in TREND_METRICS:
            values = [metrics[name] for metrics in self._recent if name in metrics]
            if len(values) >= 4 and math.isfinite(slope := _slope(values)):
                slopes[name] = slope
        return slopes

    def summary(self) -> dict[str, Any]:
        return {"epochs": self.epochs(), "trends": self.trends()}

    def state_dict(self) -> dict[str, Any]:
        """JSON. The logs behind the trends are not in it: they are fitted afresh after a resume."""
        return {
            "policy_losses": self._policy_losses, "policy_loss_size": self._policy_loss_size,
            "past_epochs": self._past_epochs,
            "epochs": {str(number): totals.to_dict() for number, totals in self._epochs.items()},
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._policy_losses, self._policy_loss_size = int(state["policy_losses"]), float(state["policy_loss_size"])
        self._past_epochs = state["past_epochs"]
        self._epochs = {}
        for number, totals in state["epochs"].items():
            self._epochs[int(number)] = RunSummary()
            self._epochs[int(number)].load(totals)


def _keys(keys: tuple[Any, ...]) -> tuple[str, str, str]:
    """The logged keys of the KL to the reference, the policy loss and the value loss; `""` where there is none."""
    where = {name: key for key, name in zip(keys, canonical_names(keys), strict=True)}
    kl = where.get("kl_per_sequence", where.get("kl_per_token", ""))
    return kl, where.get("policy_loss", ""), where.get("value_loss", "")


def _number(value: Any) -> float | None:
    """`value` if it is a finite number of Python (or NumPy's double), which is what trainers log."""
    return value if isinstance(value, float) and math.isfinite(value) else None


def _slope(values: list[float]) -> float:
    n, center = len(values), (len(values) - 1) / 2
    return sum((i - center) * value for i, value in enumerate(values)) * 12 / (n * (n * n - 1))
