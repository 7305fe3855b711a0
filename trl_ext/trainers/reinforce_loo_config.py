import math
from dataclasses import dataclass, field
from typing import Literal

from ..configuration.saved_config import SavedConfig
from ..errors import UserError
from .batches import launched_processes, require_divisible
from .episode_config import EpisodeConfig

# Numbers that may be as large as one likes, and not infinite
UNBOUNDED = ("beta", "kl_target", "learning_rate", "entropy_coef", "vf_coef", "weight_decay", "num_train_epochs")
# TRL checks these when the first loss is computed: after a generation
LossType = Literal["grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo"]


@dataclass
class ReinforceLOOConfig(SavedConfig, EpisodeConfig):
    """GRPO's options with REINFORCE's defaults, and the few options below.

    `loss_type="dr_grpo"` sums a completion's token terms and divides by the constant `max_completion_length`, so its
    gradient is sequence-level REINFORCE times a constant. `beta` is the coefficient of the KL to the reference.
    `scale_rewards` has no effect: the advantages are computed here, and a leave-one-out advantage is never divided by a
    group's standard deviation.
    """

    num_generations: int = field(
        default=8, metadata={"help": "Completions a prompt; 1 needs baseline='value', 'ema' or 'greedy'."}
    )
    beta: float = field(default=0.05, metadata={"help": "Coefficient of the KL to the reference. 0: no reference."})
    loss_type: LossType = field(
        default="dr_grpo", metadata={"help": "See `GRPOConfig`. 'dr_grpo' keeps REINFORCE's gradient."}
    )
    importance_sampling_level: Literal["token", "sequence"] = field(
        default="token", metadata={"help": "See `GRPOConfig`. What a ratio is of."}
    )
    scale_rewards: str = field(default="none", metadata={"help": "Without effect: see the class docstring."})
    baseline: Literal["loo", "mean", "ema", "greedy", "value"] = field(
        default="loo",
        metadata={
            "help": "What rewards are compared with. 'loo': the mean of the prompt's other completions. 'mean': of all "
            "of them. 'ema': a moving average over batches. 'greedy': the prompt's greedy completion, which costs a "
            "second generation. 'value': a learned value of each state, with GAE."
        },
    )
    ema_decay: float = field(
        default=0.9, metadata={"help": "Of the moving average, a batch, for baseline='ema'; corrected for its start."}
    )
    kl_in_reward: bool = field(
        default=True, metadata={"help": "Subtract `beta * kl` from the reward instead of adding it to the loss."}
    )
    kl_estimator: Literal["k1", "k2", "k3"] = field(
        default="k1", metadata={"help": "Estimator of the KL. http://joschu.net/blog/kl-approx.html"}
    )
    kl_target: float | None = field(
        default=None,
        metadata={
            "help": "KL to the reference, summed over a completion, that beta is moved towards "
            "(https://huggingface.co/papers/1909.08593). None holds beta."
        },
    )
    kl_horizon: int = field(
        default=10_000, metadata={"help": "Completions after which a KL 20% off has moved beta by 20%, for kl_target."}
    )
    reference: Literal["frozen", "periodic", "ema"] = field(
        default="frozen",
        metadata={
            "help": "'frozen': the policy as it was given. 'periodic': the policy every ref_update_interval steps. "
            "'ema': its moving average. With adapters the last two keep a frozen copy of the adapter."
        },
    )
    ref_update_interval: int = field(
        default=100, metadata={"help": "Optimizer steps between two updates, for reference='periodic'."}
    )
    ema_tau: float = field(
        default=0.999, metadata={"help": "Share of the reference that stays at each step, for reference='ema'."}
    )
    mask: Literal["completion", "json_actions"] = field(
        default="completion",
        metadata={"help": "Which tokens learn: all that the policy chose, or those of the JSON objects in it alone."},
    )
    invalid_json: Literal["keep", "drop", "penalise"] = field(
        default="keep",
        metadata={
            "help": "A completion with a turn without a JSON object, or with one that action_schema refuses. 'drop': "
            "it does not learn and leaves its group's baseline. 'penalise': invalid_json_penalty less, and all of it "
            "learns."
        },
    )
    invalid_json_penalty: float = field(
        default=1.0, metadata={"help": "Taken off the reward of such a completion, for invalid_json='penalise'."}
    )
    action_schema: str | None = field(
        default=None, metadata={"help": "Path of a JSON Schema that every action must agree with."}
    )
    entropy_decay: float = field(
        default=1.0, metadata={"help": "Share of entropy_coef that is left after each optimizer step; 1 holds it."}
    )
    min_entropy_coef: float = field(default=0.0, metadata={"help": "entropy_coef decays no further than this."})
    gae_steps: Literal["token", "turn"] = field(
        default="token",
        metadata={"help": "What a step of GAE is, for baseline='value': a token, or all that is said in one turn."},
    )
    gamma: float = field(default=1.0, metadata={"help": "Discount per step of GAE, for baseline='value'."})
    lam: float = field(default=0.95, metadata={"help": "GAE's lambda per step, for baseline='value'."})
    vf_coef: float = field(default=0.1, metadata={"help": "Weight of the value loss, for baseline='value'."})
    cliprange_value: float | None = field(
        default=0.2, metadata={"help": "Clip range of the value function; None does not clip."}
    )
    whiten_rewards: bool = field(
        default=False, metadata={"help": "Scale the per-token rewards to variance 1 before GAE (mean kept)."}
    )
    advantage_normalize: Literal["none", "group", "batch"] = field(
        default="none",
        metadata={
            "help": "'batch': scale the advantages to mean 0 and variance 1 over the batch. 'group': divide by the "
            "standard deviation of the prompt's rewards, as GRPO does; never by that of the others alone."
        },
    )

    fast_generation: bool = field(
        default=False,
        metadata={"help": "Generate with a compiled copy of the policy in 16 bits, on a GPU. See docs/generation.md."},
    )
    sampling_correction: bool = field(
        default=False,
        metadata={"help": "With fast_generation: TRL's importance sampling corrects what 16 bits sample otherwise."},
    )
    compile_layers: bool = field(
        default=False, metadata={"help": "Compile each layer of the models that train or score. Adds a minute or two."}
    )

    def __post_init__(self):
        self._check_types()
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
        minimum = 2 if self.baseline in ("loo", "mean") else 1
        if self.num_generations < minimum:
            raise UserError(
                f"num_generations = {self.num_generations} leaves baseline='{self.baseline}' nothing to compare with: "
                "set it to 2 or more, or set baseline='value', 'ema' or 'greedy'."
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

        for name, low, high in (
            ("gamma", 0, 1), ("lam", 0, 1), ("ema_decay", 0, 1), ("ema_tau", 0, 1), ("vf_coef", 0, math.inf),
            ("epsilon", 0, math.inf), ("entropy_decay", 0, 1), ("ref_update_interval", 1, math.inf),
            ("kl_horizon", 1, math.inf), ("beta", 0, math.inf), ("entropy_coef", 0, math.inf),
            ("learning_rate", 0, math.inf), ("max_grad_norm", 0, math.inf),
            ("per_device_train_batch_size", 1, math.inf), ("gradient_accumulation_steps", 1, math.inf),
            ("max_completion_length", 1, math.inf), ("top_p", 0, 1), ("num_iterations", 1, math.inf),
            ("num_train_epochs", 0, math.inf), ("cliprange_value", 0, math.inf), ("epsilon_high", 0, math.inf),
            ("per_device_eval_batch_size", 1, math.inf), ("num_generations_eval", 1, math.inf),
            ("steps_per_generation", 1, math.inf), ("generation_batch_size", 1, math.inf), ("delta", 0, math.inf),
            ("kl_target", 0, math.inf), ("top_entropy_quantile", 0, 1), ("weight_decay", 0, math.inf),
        ):  # fmt: skip
            value = getattr(self, name)
            endless = value == math.inf and name in UNBOUNDED
            fits = value is None or (low <= value <= high and not endless)
            require(fits, f"{name}={value}: must be from {low} to {high:g}.")
        for name in ("temperature", "top_p", "sapo_temperature_pos", "sapo_temperature_neg"):
            value = getattr(self, name, 1.0)
            require(0 < value < math.inf, f"{name}={value}: must be a finite number above 0.")
        require(
            self.max_completion_length is not None,
            "max_completion_length=None: set the most tokens that a completion may have.",
        )
        require(
            self.reward_weights is None or all(map(math.isfinite, self.reward_weights)),
            f"reward_weights={self.reward_weights}: each must be a finite number.",
        )
        require(
            self.fast_generation or not self.sampling_correction,
            "sampling_correction=True corrects fast generation alone: set fast_generation=True as well.",
        )
        require(
            self.kl_in_reward or self.kl_estimator != "k1",
            "kl_estimator='k1' in the loss has a gradient that is zero on average: set kl_estimator='k2' or 'k3', or "
            "kl_in_reward=True.",
        )
        require(
            self.beta != 0 or (self.reference == "frozen" and self.kl_target is None),
            f"beta=0 has no reference: set beta above 0, or reference='frozen' (it is {self.reference!r}) and "
            f"kl_target=None (it is {self.kl_target}).",
        )
        require(
            self.entropy_decay == 1.0 or (self.entropy_coef > 0 and not self.use_adaptive_entropy),
            f"entropy_decay={self.entropy_decay} has no entropy bonus to decay, or one that adapts: set entropy_coef "
            f"above 0 (it is {self.entropy_coef}) and use_adaptive_entropy=False, or entropy_decay=1.0.",
        )
        require(
            0 <= self.min_entropy_coef <= max(self.entropy_coef, 0.0),
            f"min_entropy_coef={self.min_entropy_coef}: must be from 0 to entropy_coef ({self.entropy_coef}).",
        )
        require(
            self.action_schema is None or self.mask == "json_actions" or self.invalid_json != "keep",
            f"action_schema={self.action_schema!r} says which actions are invalid, and invalid_json='keep' does "
            "nothing with those: set invalid_json='drop' or 'penalise', or mask='json_actions'.",
        )
        require(
            self.ema_decay < 1,
            f"ema_decay={self.ema_decay}: the moving average would never learn: set it below 1, say to 0.95.",
        )
        require(
            0 <= self.invalid_json_penalty < math.inf,
            f"invalid_json_penalty={self.invalid_json_penalty}: it is taken off the reward; set it to a number, 0 or "
            "more.",
        )
        require(self.kl_target is None or self.kl_target > 0, f"kl_target={self.kl_target}: must be above 0, or None.")
        require(
            self.baseline == "value" or self.gamma == 1.0,
            f"gamma discounts the rewards of steps, which baseline={self.baseline!r} has none of: set gamma=1.0 or "
            "baseline='value'.",
        )
        require(
            self.baseline == "value" or not self.whiten_rewards,
            f"whiten_rewards scales the rewards of steps, which baseline={self.baseline!r} has none of: set "
            "baseline='value', or advantage_normalize='batch'.",
        )
        require(
            self.baseline == "value" or self.gae_steps == "token",
            f"gae_steps='turn' is of baseline='value'; with baseline={self.baseline!r} a completion has one advantage.",
        )
        require(
            self.advantage_normalize != "group" or (self.baseline != "value" and self.num_generations > 1),
            "advantage_normalize='group' divides by the deviation of a prompt's rewards: set num_generations to 2 or "
            "more and a baseline other than 'value', or advantage_normalize='batch'.",
        )
        require(
            self.baseline != "greedy" or not (self.use_vllm or self.use_transformers_continuous_batching),
            "baseline='greedy' decodes with Transformers' generate: set use_vllm=False and "
            "use_transformers_continuous_batching=False, or baseline='loo'.",
        )
        require(
            not (self.sync_ref_model and (self.kl_in_reward or self.reference != "frozen")),
            "sync_ref_model=True copies parameters by position, which a policy with a value function breaks, and which "
            "reference='ema' and 'periodic' do by name: set sync_ref_model=False and one of these.",
        )
        require(
            self.multi_objective_aggregation == "sum_then_normalize",
            f"multi_objective_aggregation={self.multi_objective_aggregation!r} normalises per reward function, which "
            "this trainer does not: set 'sum_then_normalize', or use trl.GRPOTrainer.",
        )
