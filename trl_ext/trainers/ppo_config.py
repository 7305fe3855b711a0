import copy
import math
import warnings
from dataclasses import InitVar, dataclass, field
from typing import Literal

from transformers import TrainingArguments

from ..configuration.given import computing_options
from ..errors import UserError
from .batches import divisors, launched_processes, neighbours
from .reinforce_loo_config import LossType, ReinforceLOOConfig

# GRPO's name: the name stock PPO has for it, which is the one to set
STOCK_NAMES = {
    "beta": "kl_coef",
    "epsilon": "cliprange",
    "num_iterations": "num_ppo_epochs",
    "max_completion_length": "response_length",
}
# Options of stock PPO that change nothing here: (value that says nothing, what to know)
WITHOUT_EFFECT = {
    "local_rollout_forward_batch_size": (64, "rollouts are scored in chunks of per_device_train_batch_size"),
    "num_total_batches": (None, "it is computed from total_episodes"),
    "micro_batch_size": (None, "it is computed from per_device_train_batch_size"),
    "local_batch_size": (None, "it is computed from per_device_train_batch_size and gradient_accumulation_steps"),
    "batch_size": (None, "it is computed from per_device_train_batch_size and gradient_accumulation_steps"),
    "local_mini_batch_size": (None, "it is computed from num_mini_batches"),
    "mini_batch_size": (None, "it is computed from num_mini_batches"),
}
IN_UPDATES = ("logging_steps", "save_steps", "eval_steps", "warmup_steps")


@dataclass
class PPOConfig(ReinforceLOOConfig):
    """The option names and defaults of `trl.experimental.ppo.PPOConfig` (up to TRL 1.12.0), on top of GRPO's options.

    One *update* is one batch of rollouts, `per_device_train_batch_size * gradient_accumulation_steps` a process, and
    `num_ppo_epochs * num_mini_batches` optimizer steps on it. As in the stock trainer `logging_steps`, `save_steps`,
    `eval_steps`, `warmup_steps` and `max_steps` count updates; the trainer turns them into optimizer steps, which is
    what `state.global_step` counts. `loss_type="bnpo"` is the stock mean over the tokens of a micro-batch.

    Different from the stock trainer, by intent: gradients are clipped to `max_grad_norm`, the learning rate is
    scheduled by optimizer step (stock ignores the first and schedules by update), moments are taken over all processes,
    and `num_mini_batches` optimizer steps are taken a pass (stock takes one where mini-batches are made of whole
    micro-batches, whatever the option says).
    """

    learning_rate: float = field(default=3e-6, metadata={"help": "The initial learning rate for AdamW."})
    logging_steps: float = field(default=1, metadata={"help": "Updates between two logs; stock logs every update."})
    temperature: float = field(default=0.7, metadata={"help": "Sampling temperature."})
    disable_dropout: bool = field(default=True, metadata={"help": "As the stock trainer, which always does."})
    loss_type: LossType = field(default="bnpo", metadata={"help": "See `GRPOConfig`. 'bnpo' is the stock aggregation."})
    baseline: Literal["loo", "value"] = field(default="value", metadata={"help": "PPO's is the value function."})
    num_generations: int = field(default=1, metadata={"help": "Completions a prompt; stock PPO has one."})
    advantage_normalize: Literal["none", "group", "batch"] = field(
        default="batch", metadata={"help": "As the stock trainer, which always does over the batch."}
    )

    num_ppo_epochs: int = field(default=4, metadata={"help": "Passes over one batch of rollouts."})
    num_mini_batches: int = field(default=1, metadata={"help": "Optimizer steps in one pass."})
    total_episodes: int | None = field(
        default=None, metadata={"help": "Completions to train on; default: num_train_epochs times the dataset."}
    )
    kl_coef: float = field(default=0.05, metadata={"help": "KL coefficient."})
    cliprange: float = field(default=0.2, metadata={"help": "Clip range of the ratio."})
    response_length: int = field(default=53, metadata={"help": "Longest completion, in tokens."})
    stop_token: Literal["eos"] | None = field(
        default=None,
        metadata={
            "help": "'eos' ends a completion at the tokenizer's EOS. None: nothing does, as in the stock trainer."
        },
    )
    stop_token_id: int | None = field(default=None, metadata={"help": "The token that ends a completion."})
    missing_eos_penalty: float | None = field(
        default=None, metadata={"help": "Subtracted from the score of a completion without its stop token."}
    )
    num_sample_generations: int = field(
        default=10, metadata={"help": "How often in a run a table of sample completions is printed."}
    )

    sft_model_path: str = field(default="EleutherAI/pythia-160m", metadata={"help": "For scripts; not read here."})
    reward_model_path: str = field(default="EleutherAI/pythia-160m", metadata={"help": "For scripts; not read here."})
    dataset_num_proc: int | None = field(default=None, metadata={"help": "For scripts; not read here."})
    model_adapter_name: str | None = field(default=None, metadata={"help": "PEFT adapter to train: 'default'."})
    ref_adapter_name: str | None = field(default=None, metadata={"help": "PEFT adapter of the reference: 'ref'."})
    local_rollout_forward_batch_size: int = field(default=64, metadata={"help": "Without effect: see WITHOUT_EFFECT."})
    num_total_batches: int | None = field(default=None, metadata={"help": "Computed: updates in the run."})
    micro_batch_size: int | None = field(default=None, metadata={"help": "Computed."})
    local_batch_size: int | None = field(default=None, metadata={"help": "Computed."})
    batch_size: int | None = field(default=None, metadata={"help": "Computed: completions an update."})
    local_mini_batch_size: int | None = field(default=None, metadata={"help": "Computed."})
    mini_batch_size: int | None = field(default=None, metadata={"help": "Computed."})
    world_size: InitVar[int | None] = None  # accepted as stock does; `TrainingArguments` knows the number of processes

    def __post_init__(self, world_size: int | None):
        self._check_types()
        self._take_stock_names()
        self._check_stock_options()
        super().__post_init__()

    def _take_stock_names(self):
        fields = self.__dataclass_fields__
        for name, stock in STOCK_NAMES.items():
            value, wanted = getattr(self, name), getattr(self, stock)
            if value not in (fields[name].default, wanted):
                raise UserError(
                    f"{name}={value} contradicts {stock}={wanted}: PPOConfig reads `{stock}`, set that one."
                )
            setattr(self, name, wanted)

    def _check_stock_options(self):
        for name, least in (
            ("num_mini_batches", 1), ("num_ppo_epochs", 1), ("response_length", 1), ("kl_coef", 0), ("cliprange", 0),
            ("per_device_train_batch_size", 1), ("gradient_accumulation_steps", 1),
        ):  # fmt: skip
            if not getattr(self, name) >= least:  # NaN is not at least anything
                raise UserError(f"{name}={getattr(self, name)}: must be at least {least}.")
        if self.total_episodes is not None and self.total_episodes < 1:
            raise UserError(f"total_episodes={self.total_episodes}: must be at least 1, or None.")
        if self.stop_token is not None and self.stop_token_id is not None:
            raise UserError("You cannot set both `stop_token` and `stop_token_id`: drop one.")
        if self.stop_token not in (None, "eos"):
            raise UserError(f"stop_token={self.stop_token!r}: use 'eos', or stop_token_id for another token.")
        if self.missing_eos_penalty is not None and not 0 <= self.missing_eos_penalty < math.inf:
            raise UserError(f"missing_eos_penalty={self.missing_eos_penalty}: make it positive, and finite.")
        for name, expected in (("model_adapter_name", "default"), ("ref_adapter_name", "ref")):
            if getattr(self, name) not in (None, expected):
                raise UserError(
                    f"{name}={getattr(self, name)!r} would be ignored: load that adapter under the name {expected!r}."
                )
        for name in ("generation_batch_size", "steps_per_generation"):
            if getattr(self, name) is not None:
                raise UserError(
                    f"{name}={getattr(self, name)} contradicts PPO's update: set per_device_train_batch_size and "
                    "gradient_accumulation_steps, whose product is the rollouts of an update, and num_mini_batches."
                )
        if self.total_episodes is not None and self.max_steps > 0:
            update = self.per_device_train_batch_size * launched_processes() * self.gradient_accumulation_steps
            raise UserError(
                f"total_episodes={self.total_episodes} and max_steps={self.max_steps} both set the length: set "
                f"total_episodes={self.max_steps * update} alone, which is {self.max_steps} updates of {update}."
            )
        for name, (silent, why) in WITHOUT_EFFECT.items():
            if getattr(self, name) != silent:
                warnings.warn(f"{name} has no effect in trl_ext: {why}.", stacklevel=4)
        self.mini_batch_layout()

    def mini_batch_layout(self) -> tuple[int, int]:
        """(per_device_train_batch_size, gradient_accumulation_steps) of one optimizer step, on one mini-batch.

        Raises:
            UserError: `num_mini_batches` cuts through a micro-batch.
        """
        batch, accumulation, parts = (
            self.per_device_train_batch_size,
            self.gradient_accumulation_steps,
            self.num_mini_batches,
        )
        if accumulation % parts == 0:
            return batch, accumulation // parts
        if accumulation == 1 and batch % parts == 0:
            return batch // parts, 1
        number = accumulation if accumulation > 1 else batch
        option = "gradient_accumulation_steps" if accumulation > 1 else "per_device_train_batch_size"
        raise UserError(
            f"num_mini_batches = {parts} does not divide {option} = {number}: set num_mini_batches to one of "
            f"{', '.join(map(str, divisors(number)))}, or {option} to {neighbours(number, parts)}."
        )

    def optimizer_steps_per_update(self) -> int:
        """Optimizer steps on one batch of rollouts."""
        return self.num_ppo_epochs * self.num_mini_batches

    def in_optimizer_steps(self, dataset_length: int | None) -> "PPOConfig":
        """A copy in which what counts updates counts optimizer steps, as in `GRPOTrainer`. `self` stays as it is."""
        args = copy.copy(self)
        with computing_options(args):
            self._count_optimizer_steps(args, dataset_length)
        return args

    def _count_optimizer_steps(self, args: "PPOConfig", dataset_length: int | None) -> None:
        steps = self.optimizer_steps_per_update()
        args.per_device_train_batch_size, args.gradient_accumulation_steps = self.mini_batch_layout()
        # completions an update stay what they were; with generation_batch_size given, GRPO has computed the steps
        args.steps_per_generation = (
            self.steps_per_generation * self.per_device_train_batch_size // (args.per_device_train_batch_size)
        )
        for name in IN_UPDATES:
            value = getattr(self, name)
            if value is not None and value >= 1:
                setattr(args, name, int(value * steps))
        updates = self.max_steps
        if updates <= 0:
            episodes = self.total_episodes
            if episodes is None and dataset_length is not None:
                episodes = int(self.num_train_epochs * dataset_length)
            updates = -1 if episodes is None else math.ceil(episodes / self.generation_batch_size)
        args.max_steps = updates * steps if updates > 0 else -1
        args.num_total_batches = updates if updates > 0 else None
        args.batch_size = self.generation_batch_size
        args.local_batch_size = self.per_device_train_batch_size * self.steps_per_generation
        args.micro_batch_size = args.per_device_train_batch_size * self.world_size
        args.mini_batch_size = self.generation_batch_size // self.num_mini_batches
        args.local_mini_batch_size = args.local_batch_size // self.num_mini_batches
        args.total_episodes = updates * self.generation_batch_size if updates > 0 else None


PPOConfig.world_size = TrainingArguments.world_size  # type: ignore[assignment,misc]  # the InitVar's default hid it
