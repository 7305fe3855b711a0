import math
from dataclasses import dataclass, field
from typing import Literal

from trl import GRPOConfig

from ..errors import UserError
from .batches import launched_processes, require_divisible


@dataclass
class ReinforceLOOConfig(GRPOConfig):
    """GRPO's options with REINFORCE's defaults, and the few options below.

    `loss_type="dr_grpo"` sums a completion's token terms and divides by the constant `max_completion_length`, so its
    gradient is sequence-level REINFORCE times a constant. `beta` is the coefficient of the KL to the reference.
    `scale_rewards` has no effect: the advantages are computed here, and a leave-one-out advantage is never divided by a
    group's standard deviation.
    """

    num_generations: int = field(default=8, metadata={"help": "Completions a prompt; 1 needs baseline='value'."})
    beta: float = field(default=0.05, metadata={"help": "Coefficient of the KL to the reference. 0: no reference."})
    loss_type: str = field(
        default="dr_grpo", metadata={"help": "See `GRPOConfig`. 'dr_grpo' keeps REINFORCE's gradient."}
    )
    scale_rewards: str = field(default="none", metadata={"help": "Without effect: see the class docstring."})
    baseline: Literal["loo", "value"] = field(
        default="loo",
        metadata={"help": "'loo': mean of the other completions of the prompt. 'value': a learned value, with GAE."},
    )
    kl_in_reward: bool = field(
        default=True, metadata={"help": "Subtract `beta * kl` from the reward instead of adding it to the loss."}
    )
    kl_estimator: Literal["k1", "k2", "k3"] = field(
        default="k1", metadata={"help": "Estimator of the KL in the reward. http://joschu.net/blog/kl-approx.html"}
    )
    gamma: float = field(default=1.0, metadata={"help": "Discount per token, for baseline='value'."})
    lam: float = field(default=0.95, metadata={"help": "GAE's lambda, for baseline='value'."})
    vf_coef: float = field(default=0.1, metadata={"help": "Weight of the value loss, for baseline='value'."})
    cliprange_value: float | None = field(
        default=0.2, metadata={"help": "Clip range of the value function; None does not clip."}
    )
    whiten_rewards: bool = field(
        default=False, metadata={"help": "Scale the per-token rewards to variance 1 before GAE (mean kept)."}
    )
    normalize_advantages: bool = field(
        default=False, metadata={"help": "Scale the advantages to mean 0 and variance 1 over the whole batch."}
    )

    def __post_init__(self):
        self._check_options()
        self._check_batches()
        single = self.num_generations == 1
        if single:  # GRPO wants groups, a learned baseline does not: one pseudo-group passes the base class's checks
            self.num_generations = self._completions_per_generation()
            self.num_generations_eval = 1
        super().__post_init__()
        if single:
            self.num_generations = 1

    def _completions_per_generation(self) -> int:
        """Completions of one generation phase, over all processes."""
        if self.generation_batch_size is not None:
            return self.generation_batch_size
        steps = self.steps_per_generation or self.gradient_accumulation_steps
        return self.per_device_train_batch_size * launched_processes() * steps

    def _check_batches(self):
        minimum = 2 if self.baseline == "loo" else 1
        if self.baseline == "loo" and self.num_generations == 1:
            raise UserError(
                "num_generations = 1 leaves nothing to leave out: set it to 2 or more, or set baseline='value'."
            )
        made_of = (
            "generation_batch_size"
            if self.generation_batch_size is not None
            else "per_device_train_batch_size x processes x steps_per_generation "
            f"({self.per_device_train_batch_size} x {launched_processes()} x "
            f"{self.steps_per_generation or self.gradient_accumulation_steps})"
        )
        require_divisible(
            "Completions per generation",
            self._completions_per_generation(),
            made_of,
            "num_generations",
            self.num_generations,
            minimum,
        )

    def _check_options(self):
        def require(condition: bool, message: str):
            if not condition:
                raise UserError(message)

        for name, low, high in (("gamma", 0, 1), ("lam", 0, 1), ("vf_coef", 0, math.inf), ("epsilon", 0, math.inf)):
            value = getattr(self, name)
            require(low <= value <= high, f"{name}={value}: must be from {low} to {high:g}.")
        require(self.temperature > 0, f"temperature={self.temperature}: sampling needs a number above 0.")
        require(self.baseline in ("loo", "value"), f"baseline={self.baseline!r}: use 'loo' or 'value'.")
        require(self.kl_estimator in ("k1", "k2", "k3"), f"kl_estimator={self.kl_estimator!r}: use 'k1', 'k2' or 'k3'.")
        require(
            self.kl_in_reward or self.kl_estimator == "k3",
            "kl_in_reward=False uses GRPO's loss term, which is k3: set kl_estimator='k3'.",
        )
        require(
            self.baseline == "value" or self.gamma == 1.0,
            "gamma discounts per-token rewards, which baseline='loo' has none of: set gamma=1.0 or baseline='value'.",
        )
        require(
            self.baseline == "value" or not self.whiten_rewards,
            "whiten_rewards scales per-token rewards, which baseline='loo' has none of: set baseline='value', or "
            "normalize_advantages=True.",
        )
        require(
            not (self.kl_in_reward and self.sync_ref_model),
            "sync_ref_model=True copies parameters by position, which a policy with a value function breaks: set "
            "sync_ref_model=False (the reference is frozen).",
        )
        require(
            self.multi_objective_aggregation == "sum_then_normalize",
            f"multi_objective_aggregation={self.multi_objective_aggregation!r} normalises per reward function, which "
            "this trainer does not: set 'sum_then_normalize', or use trl.GRPOTrainer.",
        )
