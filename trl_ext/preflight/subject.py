"""A trainer as it is about to train, and what several checks ask of it: computed once, when it is first asked for."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import torch

from trl_ext.configuration.derived import processes_of
from trl_ext.errors import UserError
from trl_ext.rewards.calls import Call
from trl_ext.rewards.checking import is_async
from trl_ext.stand_in import StandIn

MOST_COMPLETIONS, MOST_COMPLETIONS_QUICK = 256, 64
MOST_ROWS, MOST_ROWS_QUICK = 5_000, 1_000  # of the dataset that are looked at
# Trainers by what they have: GRPO, RLOO and ours score rollouts of their own
_KINDS = {"SFTTrainer": "sft", "RewardTrainer": "reward", "DPOTrainer": "dpo"}


class MissingError(UserError):
    """What several families cannot do without is not there.

    Args:
        check: the name of the check that tells the same, so that it is told once.
    """

    def __init__(self, check: str, message: str) -> None:
        super().__init__(message)
        self.check = check


class Rollouts(NamedTuple):
    """A scored batch, as the trainer makes it before it learns.

    Attributes:
        rows: of the dataset, one for each completion.
        prompts, completions: as reward functions got them.
        completion_ids: without padding.
        own: for each completion, 1 on the tokens that the policy chose, as the loop of tools or a `rollout_func` marked
            them; None where all of them are its own.
        rewards: `(completions, functions)`, NaN where a function gave None.
        changed: which of the lists that reward functions got (`"prompts"`, `"completions"`) they changed in place.
        output: what the trainer's loss takes.
    """

    rows: list[dict[str, Any]]
    prompts: list
    completions: list
    completion_ids: list[list[int]]
    own: list[list[int]] | None
    rewards: torch.Tensor
    changed: list[str]
    output: dict[str, Any]


class Subject:
    """
    Args:
        trainer: of TRL or trl_ext, built and not yet trained: GRPO, RLOO, REINFORCE-LOO, our PPO, SFT, reward, DPO.
        quick: fewer completions and rows.
    Raises:
        UserError: another trainer.
    """

    def __init__(self, trainer: Any, quick: bool = False) -> None:
        self.trainer, self.quick = trainer, quick
        self.args = trainer.args
        names = [base.__name__ for base in type(trainer).__mro__]
        if hasattr(trainer, "_generate_and_score_completions"):
            self.kind = "rl"
        else:
            kinds = [_KINDS[name] for name in names if name in _KINDS]
            if not kinds:
                raise UserError(
                    f"preflight knows GRPO, RLOO, ReinforceLOO, trl_ext's PPO, SFT, reward and DPO trainers, not "
                    f"{names[0]}; stock PPO of TRL 1.12 is checked as trl_ext's: set TRL_EXT_PPO=trl_ext"
                )
            self.kind = kinds[0]
        processing_class = trainer.processing_class
        self.tokenizer = getattr(processing_class, "tokenizer", processing_class)
        self.policy = trainer.accelerator.unwrap_model(trainer.model)
        for module in self.policy.modules():  # bitsandbytes
            if hasattr(module, "support_avx512bf16_for_cpu"):  # would repack weights in place for evaluations alone
                module.support_avx512bf16_for_cpu = False
        trainer.current_gradient_accumulation_steps = 1  # what `train` sets, and the loss divides by

    @property
    def name(self) -> str:
        return type(self.trainer).__name__

    @property
    def has_adapter(self) -> bool:
        return bool(getattr(self.policy, "peft_config", None))

    @cached_property
    def parameters(self) -> int:
        """Of the model, those of a quantised one counted as what they stand for."""
        return int(self.policy.num_parameters()) if hasattr(self.policy, "num_parameters") else 0

    @cached_property
    def precision(self) -> str:
        """`float32`, or `half` where weights, autocast or quantisation compute with less."""
        half = {torch.bfloat16, torch.float16}
        reduced = self.args.bf16 or self.args.fp16 or any(p.dtype in half for p in self.policy.parameters())
        return "half" if reduced or getattr(self.policy, "is_quantized", False) else "float32"

    @property
    def chat_template(self) -> Any:
        """What renders messages: the trainer's, or else the tokenizer's; None where there is neither."""
        return getattr(self.trainer, "chat_template", None) or self.tokenizer.chat_template

    @cached_property
    def dataset(self) -> Any:
        return self.trainer.train_dataset

    @property
    def column_names(self) -> list[str]:
        """Of the dataset; none of a stream that does not say."""
        return getattr(self.dataset, "column_names", None) or []

    @property
    def is_empty(self) -> bool:
        return hasattr(self.dataset, "select") and not len(self.dataset)

    def require_data(self) -> None:
        if self.is_empty:
            raise MissingError("rows", "the dataset is empty")

    def require_trainable(self) -> None:
        if not any(p.requires_grad for p in self.policy.parameters()):
            raise MissingError(
                "every_parameter", "no parameter trains: requires_grad is False everywhere, or the adapter was loaded "
                "with is_trainable=False"
            )  # fmt: skip

    @property
    def is_scored(self) -> bool:
        """Whether any completion has a reward."""
        return bool(self.rollouts.rewards.isfinite().any())

    def require_rewards(self) -> None:
        if not self.is_scored:
            raise MissingError("scored", "no completion has a reward: all reward functions gave None or NaN")

    @cached_property
    def num_generations(self) -> int:
        return int(getattr(self.trainer, "num_generations", 1))

    @cached_property
    def batches(self) -> int | None:
        """Of one pass over the data; None where it is a stream."""
        if self.is_empty:
            return 0
        try:
            return len(self.trainer.get_train_dataloader())
        except TypeError:
            return None

    @cached_property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run; 0 where there are none, or where nobody knows."""
        args = self.args
        if args.max_steps > 0:
            return int(args.max_steps)
        if not self.batches:
            return 0
        return int(max(self.batches // args.gradient_accumulation_steps, 1) * args.num_train_epochs)

    @property
    def learning_rate(self) -> float:
        """The peak: of the user's own optimizer, where there is one, whatever its schedule has made of it."""
        optimizer = getattr(self.trainer, "optimizer", None)
        rates = [group.get("initial_lr", group["lr"]) for group in optimizer.param_groups] if optimizer else []
        return float(max(rates, default=self.args.learning_rate))

    @cached_property
    def rows_a_step(self) -> int:
        """Completions, texts or pairs in an optimizer step, of all processes."""
        args = self.args
        return args.per_device_train_batch_size * processes_of(args) * args.gradient_accumulation_steps

    @cached_property
    def completions_a_generation(self) -> int:
        """What is sampled at once."""
        return int(getattr(self.args, "generation_batch_size", None) or self.rows_a_step)

    @cached_property
    def eos_ids(self) -> list[int]:
        """The tokens that end a completion, as the trainer knows them: TRL before 1.14 knows the tokenizer's alone."""
        return list(getattr(self.trainer, "eos_token_ids", [self.tokenizer.eos_token_id]))

    @cached_property
    def text_ends(self) -> list[int]:
        """The tokens behind which generation stops after training: the tokenizer's EOS, which `train` writes into
        generation_config, and what stands there already."""
        stored = getattr(getattr(self.policy, "generation_config", None), "eos_token_id", None)
        ends = [*self.eos_ids, *(stored if isinstance(stored, list) else [stored])]
        return sorted({end for end in ends if end is not None})

    @cached_property
    def rollouts(self) -> Rollouts:
        self.require_data()
        rows = next(iter(self.trainer.get_train_dataloader()))
        most = MOST_COMPLETIONS_QUICK if self.quick else MOST_COMPLETIONS
        size = self.num_generations
        count = max(min(len(rows), most) // size, 1) * size
        heard: dict[str, Any] = {}
        original, generate = self.trainer._calculate_rewards, self.trainer._generate

        def calculate_rewards(inputs, prompts, completions, completion_ids_list):
            given = Call(prompts, completions, completion_ids_list, {}).copied()
            with _asked_by_name(self.trainer):
                rewards = original(inputs, prompts, completions, completion_ids_list)
            pairs = {"prompts": (given.prompts, prompts), "completions": (given.completions, completions)}
            heard.update(prompts=given.prompts, completions=given.completions, ids=given.completion_ids,
                         rewards=rewards, changed=[name for name, pair in pairs.items() if _differ(*pair)])  # fmt: skip
            return rewards

        def generated(prompts):
            result = generate(prompts)
            if "own" not in heard:  # a greedy baseline generates once more
                heard["own"] = _tool_mask(result)
            return result

        self.policy.train()
        ours = StandIn(self.trainer, _calculate_rewards=calculate_rewards, _generate=generated)
        try:
            with ours, self.trainer.compute_loss_context_manager():
                output = self.trainer._generate_and_score_completions(rows[:count])
        except Exception as error:
            if any(isinstance(row.get("prompt"), str) and not row["prompt"] for row in rows[:count]):
                raise MissingError("empty", "a prompt without text cannot be gone on from") from error
            raise
        return Rollouts(
            rows[:count], heard["prompts"], heard["completions"], [list(ids) for ids in heard["ids"]],
            heard["own"], heard["rewards"].float().cpu(), heard["changed"], output,
        )  # fmt: skip

    @cached_property
    def batch(self) -> dict[str, Any]:
        """The first batch of a trainer that learns from a dataset, on its device."""
        self.require_data()
        batch = next(iter(self.trainer.get_train_dataloader()))
        return self.trainer._prepare_inputs(batch)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """No dropout, no gradients, the precision of training."""
        was_training = self.policy.training
        self.policy.eval()
        try:
            with torch.no_grad(), self.trainer.compute_loss_context_manager():
                yield
        finally:
            self.policy.train(was_training)

    def log_probabilities(self, output: dict, model: Any = None, rows: slice = slice(None)) -> torch.Tensor:
        """`(B, T)`, of the completions, by the trainer's own forward; of the policy unless another model is given."""
        ids, mask = (torch.cat([output[f"prompt_{k}"], output[f"completion_{k}"]], 1)[rows] for k in ("ids", "mask"))
        length = output["completion_ids"].size(1)
        size = self.args.per_device_train_batch_size
        with self._scoring(model):
            chosen = self.trainer.model if model is None else model
            return self.trainer._get_per_token_logps_and_entropies(chosen, ids, mask, length, batch_size=size)[0]

    @contextmanager
    def _scoring(self, model: Any) -> Iterator[None]:
        """A reference has no value function: our trainers ask for values where they do not score somebody else."""
        if model is None or not hasattr(self.trainer, "_scoring"):
            yield
            return
        self.trainer._scoring = {"policy_next": False}
        try:
            yield
        finally:
            self.trainer._scoring = None

    def forget(self) -> None:
        """What the trainer has logged of the batches made here."""
        for metrics in self.trainer._metrics.values() if hasattr(self.trainer, "_metrics") else []:
            metrics.clear()


def strided(parameter: torch.Tensor, most: int) -> torch.Tensor:
    """Every n-th of its numbers, `most` of them and up to twice as many: the whole of a large model takes minutes."""
    flat = parameter.detach().flatten()
    return flat[:: max(flat.numel() // most, 1)]


@contextmanager
def naming_rewards(trainer: Any) -> Iterator[None]:
    """Whenever rewards are asked for inside, what is raised names the function. Of trainers without them, nothing."""
    original = getattr(trainer, "_calculate_rewards", None)
    if original is None:
        yield
        return

    def calculate_rewards(*args, **kwargs):
        with _asked_by_name(trainer):
            return original(*args, **kwargs)

    with StandIn(trainer, _calculate_rewards=calculate_rewards):
        yield


@contextmanager
def _asked_by_name(trainer: Any) -> Iterator[None]:
    """TRL names no function whose answer it cannot read: what is raised gets a note with the one that answered last."""
    functions, last = trainer.reward_funcs, ""

    def noting(name: str, function: Any) -> Any:
        if isinstance(function, torch.nn.Module) or is_async(function):
            return function

        def asked(*args, **kwargs):
            nonlocal last
            last = ""  # what it raises itself has a place
            answer = function(*args, **kwargs)
            last = name
            return answer

        return asked

    trainer.reward_funcs = [noting(*pair) for pair in zip(trainer.reward_func_names, functions, strict=True)]
    try:
        yield
    except Exception as error:
        if last:
            error.add_note(f"when the reward function {last} had answered")
        raise
    finally:
        trainer.reward_funcs = functions


def _differ(before: list, after: list) -> bool:
    try:
        return bool(before != after)
    except (ValueError, RuntimeError):  # arrays inside, which are no texts
        return False


def _tool_mask(generated: tuple) -> list[list[int]] | None:
    """Third of what GRPO's `_generate` returns; RLOO has no tools, and its third is a list of completions."""
    mask = generated[2] if len(generated) > 4 else None
    if not isinstance(mask, list) or not mask or not isinstance(mask[0], list) or not set(mask[0]) <= {0, 1}:
        return None
    return [list(map(int, row)) for row in mask]
