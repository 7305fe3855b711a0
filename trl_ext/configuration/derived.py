"""What follows from a configuration: samples and tokens a step, steps an epoch, samples of the whole run.

Pure arithmetic on the attributes of a config, TRL's or ours; nothing is loaded. A number that cannot be known from what
is given is `None`.
"""

import math
from typing import Any, NamedTuple


class DerivedNumbers(NamedTuple):
    """Over all processes.

    Attributes:
        kind: `"groups"` (GRPO, RLOO, REINFORCE-LOO), `"ppo"` or `"supervised"` (SFT, reward, DPO).
        processes: of the launched run.
        samples_per_step: completions, rows or pairs in one optimizer step.
        prompts_per_step: different prompts in one optimizer step; may be a fraction. `None` for supervised training.
        completions_per_generation: completions sampled at once. `None` for supervised training.
        steps_per_generation: optimizer steps on what was sampled at once. `None` for supervised training.
        tokens_per_step: at most, prompts included where their length is known.
        prompts_counted: whether `tokens_per_step` counts the prompts.
        steps_per_epoch: optimizer steps; `None` without `dataset_size`.
        total_steps: optimizer steps of the run.
        total_samples: completions sampled, or rows seen, in the run.
        epochs: passes over the dataset.
    """

    kind: str
    processes: int
    samples_per_step: int
    prompts_per_step: float | None
    completions_per_generation: int | None
    steps_per_generation: float | None
    tokens_per_step: int | None
    prompts_counted: bool
    steps_per_epoch: int | None
    total_steps: int | None
    total_samples: int | None
    epochs: float | None


def derived_numbers(args: Any, dataset_size: int | None = None, prompt_length: int | None = None) -> DerivedNumbers:
    """The numbers of a run.

    Args:
        args: a config object of TRL or trl_ext, as constructed.
        dataset_size: rows of the training dataset.
        prompt_length: tokens of the longest prompt; default: `max_prompt_length` where the config has it.
    """
    kind = kind_of(args)
    counts = {"groups": _of_groups, "ppo": _of_ppo, "supervised": _of_rows}[kind](args, dataset_size)
    tokens, counted = _tokens(args, kind, counts["samples_per_step"], prompt_length)
    return DerivedNumbers(kind, processes_of(args), tokens_per_step=tokens, prompts_counted=counted, **counts)


def kind_of(args: Any) -> str:
    """`"ppo"`, `"groups"` or `"supervised"`, told by the options there are."""
    if hasattr(args, "num_ppo_epochs"):
        return "ppo"
    return "groups" if hasattr(args, "num_generations") else "supervised"


def processes_of(args: Any) -> int:
    """Processes that train on different data."""
    return max(int(getattr(args, "world_size", 1) or 1), 1)


def sequence_length(args: Any, prompt_length: int | None = None) -> tuple[int | None, bool]:
    """(tokens of the longest sequence that is trained on, or `None`; whether prompts are in it)."""
    if kind_of(args) == "supervised":
        return getattr(args, "max_length", None), True
    completion = args.response_length if kind_of(args) == "ppo" else args.max_completion_length
    prompt = prompt_length if prompt_length is not None else getattr(args, "max_prompt_length", None)
    return (None, False) if completion is None else (completion + (prompt or 0), prompt is not None)


def sequences_a_sample(args: Any) -> int:
    """2 where a sample is a pair (DPO, a reward model), else 1."""
    return 2 if type(args).__name__.startswith(("DPO", "Reward")) else 1


def _of_groups(args: Any, dataset_size: int | None) -> dict[str, Any]:
    """TRL's `RepeatSampler`: whole batches of prompts, each completion `num_iterations` times; the rest is left out."""
    processes, accumulation = processes_of(args), args.gradient_accumulation_steps
    sampled = args.generation_batch_size
    micro_batches = args.steps_per_generation * args.num_iterations  # on what is sampled at once
    steps_per_epoch = None
    if dataset_size is not None:
        batches = dataset_size // (sampled // args.num_generations)
        steps_per_epoch = math.ceil(batches * micro_batches / accumulation)
    total_steps = _total_steps(args, steps_per_epoch)
    generations = None if total_steps is None else math.ceil(total_steps * accumulation / micro_batches)
    return {
        "samples_per_step": args.per_device_train_batch_size * accumulation * processes,
        "prompts_per_step": args.per_device_train_batch_size * accumulation * processes / args.num_generations,
        "completions_per_generation": sampled,
        "steps_per_generation": micro_batches / accumulation,
        "steps_per_epoch": steps_per_epoch,
        "total_steps": total_steps,
        "total_samples": None if generations is None else generations * sampled,
        "epochs": _epochs(args, total_steps, steps_per_epoch),
    }  # fmt: skip


def _of_ppo(args: Any, dataset_size: int | None) -> dict[str, Any]:
    """An update is one batch of rollouts and `num_ppo_epochs * num_mini_batches` optimizer steps on it."""
    sampled = args.per_device_train_batch_size * args.gradient_accumulation_steps * processes_of(args)
    steps, generations = args.num_ppo_epochs * args.num_mini_batches, getattr(args, "num_generations", 1)
    episodes = args.total_episodes
    if episodes is None and args.max_steps > 0 and hasattr(args, "num_generations"):  # stock PPO does not read it
        episodes = args.max_steps * sampled
    if episodes is None and dataset_size is not None:
        episodes = int(args.num_train_epochs * dataset_size)
    updates = None if episodes is None else math.ceil(episodes / sampled)
    return {
        "samples_per_step": sampled // args.num_mini_batches,
        "prompts_per_step": sampled // args.num_mini_batches / generations,
        "completions_per_generation": sampled,
        "steps_per_generation": float(steps),
        "steps_per_epoch": None if dataset_size is None else math.ceil(dataset_size * generations / sampled) * steps,
        "total_steps": None if updates is None else updates * steps,
        "total_samples": None if updates is None else updates * sampled,
        "epochs": None if updates is None or not dataset_size else updates * sampled / generations / dataset_size,
    }


def _of_rows(args: Any, dataset_size: int | None) -> dict[str, Any]:
    """As Transformers counts: the last batch of an epoch may be smaller."""
    batch = args.per_device_train_batch_size * processes_of(args)
    steps_per_epoch = None
    if dataset_size is not None:
        batches = dataset_size // batch if args.dataloader_drop_last else math.ceil(dataset_size / batch)
        steps_per_epoch = max(math.ceil(batches / args.gradient_accumulation_steps), 1)
    total_steps = _total_steps(args, steps_per_epoch)
    samples = batch * args.gradient_accumulation_steps
    rows = None if total_steps is None else total_steps * samples
    if rows is not None and dataset_size is not None and args.max_steps <= 0:
        rows = min(rows, math.ceil(args.num_train_epochs * dataset_size))
    return {
        "samples_per_step": samples,
        "prompts_per_step": None,
        "completions_per_generation": None,
        "steps_per_generation": None,
        "steps_per_epoch": steps_per_epoch,
        "total_steps": total_steps,
        "total_samples": rows,
        "epochs": _epochs(args, total_steps, steps_per_epoch),
    }


def _total_steps(args: Any, steps_per_epoch: int | None) -> int | None:
    if args.max_steps > 0:
        return args.max_steps
    return None if steps_per_epoch is None else math.ceil(args.num_train_epochs * steps_per_epoch)


def _epochs(args: Any, total_steps: int | None, steps_per_epoch: int | None) -> float | None:
    if args.max_steps <= 0:
        return float(args.num_train_epochs)
    return total_steps / steps_per_epoch if total_steps is not None and steps_per_epoch else None


def _tokens(args: Any, kind: str, samples: int, prompt_length: int | None) -> tuple[int | None, bool]:
    length, counted = sequence_length(args, prompt_length)
    return None if length is None else samples * sequences_a_sample(args) * length, counted
