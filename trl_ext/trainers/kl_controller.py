"""The coefficient of the KL penalty, held, or moved towards a target."""

from typing import Any

_CLIP = 0.2  # of the relative error, as in the paper


class KLController:
    """`value` is the coefficient; with a target it grows while the KL is above and shrinks while it is below.

    beta <- beta * (1 + clip(KL / target - 1, -0.2, 0.2) * min(completions / horizon, 1)), the log-space proportional
    controller of https://huggingface.co/papers/1909.08593 (section 2.2).

    Args:
        value: coefficient at the start.
        target: KL to the reference summed over a completion, in nats; `None` holds the coefficient.
        horizon: completions after which a lasting error of 20% has moved it by 20%.
    """

    def __init__(self, value: float, target: float | None, horizon: int) -> None:
        self.value, self._target, self._horizon = value, target, horizon

    def update(self, kl: float, completions: int) -> None:
        """After a batch of `completions` with this mean `kl`; NaN is no data."""
        if self._target is None or kl != kl:
            return
        error = max(-_CLIP, min(_CLIP, kl / self._target - 1))
        self.value *= 1 + error * min(completions / self._horizon, 1.0)  # a horizon below the batch: never negative

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = float(state["value"])
