"""Faults of the configuration that parse, and still waste the run."""

from collections.abc import Iterator
from typing import Any

import torch

from trl_ext.configuration.derived import processes_of

from .check import Check, Status, above
from .limits import LEAST_ADAPTER_RATE, learning_rate_limit
from .subject import Subject, strided

FAMILY = "options"


def options(subject: Subject) -> Iterator[Check]:
    yield _steps(subject)
    yield _batches(subject)
    yield _learning_rate(subject)
    yield _warmup(subject)
    if subject.kind == "rl" and subject.has_adapter:
        yield _adapter_dropout(subject)
    if subject.kind == "rl":
        yield _loss(subject)
    if subject.kind == "dpo" or getattr(subject.args, "beta", 0.0) < 0:
        yield _beta(subject)
    yield _rounding(subject)
    yield _weights(subject)


def _steps(subject: Subject) -> Check:
    steps = subject.total_steps
    status = Status.PASS if steps else Status.FAIL
    return Check(FAMILY, "steps", status, f"{steps:,} optimizer steps", {"optimizer_steps": steps},
                 "" if steps else "Nothing would be trained: set max_steps or num_train_epochs.")  # fmt: skip


def _batches(subject: Subject) -> Check:
    args = subject.args
    processes, rows = processes_of(args), subject.rows_a_step
    numbers: dict[str, Any] = {"rows_a_step": rows, "processes": processes}
    if subject.kind != "rl":
        return Check(FAMILY, "batches", Status.PASS, f"{rows} examples a step: {args.per_device_train_batch_size} x "
                     f"{processes} processes x {args.gradient_accumulation_steps} accumulated", numbers)  # fmt: skip
    generation = subject.completions_a_generation
    size = subject.num_generations
    iterations = int(getattr(subject.trainer, "num_iterations", 1))
    updates = generation * iterations / rows
    numbers |= {"completions_a_generation": generation, "prompts_a_generation": generation // size,
                "steps_a_generation": updates}  # fmt: skip
    message = (
        f"{generation // size} prompts x {size} completions a generation, {updates:g} optimizer steps on them, "
        f"{rows} completions each"
    )
    if generation // size < 2 and size > 1:
        return Check(FAMILY, "batches", Status.WARN, message + ": each step sees a single prompt", numbers,
                     "The gradient is of one prompt's luck: more prompts a step (gradient_accumulation_steps, "
                     "generation_batch_size), or fewer completions each.")  # fmt: skip
    return Check(FAMILY, "batches", Status.PASS, message, numbers)


def _learning_rate(subject: Subject) -> Check:
    rate = subject.learning_rate
    limit = learning_rate_limit(subject.kind, subject.parameters, subject.has_adapter)
    what = "an adapter" if subject.has_adapter else "full fine-tuning"
    numbers = {"learning_rate": rate, "warn_above": limit.warn, "parameters": subject.parameters}
    message = f"learning_rate {rate:g} for {what} of {subject.parameters:,} parameters"
    if rate <= 0:
        return Check(FAMILY, "learning_rate", Status.FAIL, message + ": nothing moves", numbers, "Set it above 0.")
    if subject.has_adapter and rate < LEAST_ADAPTER_RATE:
        return Check(FAMILY, "learning_rate", Status.WARN, message + " is very low", numbers,
                     "Adapters want about ten times the rate of full fine-tuning: 1e-5 to 1e-4 with RL.")  # fmt: skip
    status = above(rate, *limit)
    if status == Status.PASS:
        return Check(FAMILY, "learning_rate", status, message, numbers)
    return Check(FAMILY, "learning_rate", status, f"{message}: usual is up to {limit.warn:g}", numbers,
                 f"Such rates end in a KL that runs away within steps: begin with {limit.warn / 4:.0e}.")  # fmt: skip


def _warmup(subject: Subject) -> Check:
    steps, warmup = subject.total_steps, float(getattr(subject.args, "warmup_steps", 0) or 0)
    warmup = warmup * steps if 0 < warmup < 1 else warmup  # Transformers takes a share as well
    warmup = warmup or float(getattr(subject.args, "warmup_ratio", 0) or 0) * steps
    numbers = {"warmup_steps": warmup, "optimizer_steps": steps}
    if steps and warmup >= steps:
        return Check(FAMILY, "warmup", Status.WARN, f"the warm-up of {warmup:.0f} steps is not over in {steps}",
                     numbers,
                     "The learning rate never comes up to what is set: lower warmup_steps.")  # fmt: skip
    schedule = getattr(subject.args.lr_scheduler_type, "value", subject.args.lr_scheduler_type)
    return Check(FAMILY, "warmup", Status.PASS, f"{schedule} schedule, {warmup:.0f} steps of warm-up", numbers)


def _adapter_dropout(subject: Subject) -> Check:
    """While B is zero it shows nowhere; from the second step on the policy that trains is another than that samples."""
    rates = {
        name: float(getattr(config, "lora_dropout", 0.0) or 0.0) for name, config in subject.policy.peft_config.items()
    }
    most = max(rates.values(), default=0.0)
    status = Status.WARN if most > 0.05 else Status.PASS  # ModelConfig's default is 0.05
    return Check(FAMILY, "adapter_dropout", status, f"lora_dropout {most:g}", {"lora_dropout": most},
                 "" if status == Status.PASS else "Set lora_dropout=0.0: ratios and KL become noise.")  # fmt: skip


def _beta(subject: Subject) -> Check:
    beta = float(subject.args.beta)
    if beta < 0:
        return Check(FAMILY, "beta", Status.FAIL, f"beta {beta:g}: the policy is paid for leaving its reference",
                     {"beta": beta}, "Set it to 0 or above.")  # fmt: skip
    return Check(FAMILY, "beta", Status.PASS if beta else Status.FAIL, f"beta {beta:g}", {"beta": beta},
                 "" if beta else "The loss is ln 2 whatever the policy says, and nothing learns: set beta, say to 0.1."
                 )  # fmt: skip


def _rounding(subject: Subject) -> Check:
    """A step of Adam is about as large as the learning rate, whatever the gradient."""
    rate, lost, seen = subject.learning_rate, 0, 0
    for parameter in subject.policy.parameters():
        if parameter.requires_grad and parameter.dtype in (torch.bfloat16, torch.float16):
            sizes = strided(parameter, 1024).float().abs()
            lost += int((sizes * torch.finfo(parameter.dtype).eps / 4 > rate).sum())
            seen += sizes.numel()
    if not seen:
        return Check(FAMILY, "rounding", Status.PASS, "weights that train are held in 32 bits", {"lost_share": 0.0})
    part = lost / seen
    status = Status.WARN if part > 0.5 else Status.PASS
    return Check(
        FAMILY, "rounding", status, f"weights train in 16 bits: a step of {rate:g} is lost to rounding for {part:.0%}",
        {"lost_share": part},
        "" if status == Status.PASS else "Load the weights in float32 (dtype: float32) and compute with bf16=True, or "
        "train an adapter.",
    )  # fmt: skip


def _weights(subject: Subject) -> Check:
    broken = [name for name, p in subject.policy.named_parameters() if p.is_floating_point() and not p.isfinite().all()]
    message = f"{len(broken)} tensors hold NaN or infinity: {', '.join(broken[:3])}" if broken else "are finite"
    return Check(FAMILY, "weights", Status.FAIL if broken else Status.PASS, message, {"nonfinite_tensors": len(broken)},
                 "Load another checkpoint: trl-ext checkpoint tells which is sound." if broken else "")  # fmt: skip


def _loss(subject: Subject) -> Check:
    args = subject.args
    kind = getattr(args, "loss_type", None)
    if getattr(args, "mask_truncated_completions", False) and kind == "dr_grpo":
        return Check(
            FAMILY, "loss_type", Status.WARN, "loss_type='dr_grpo' divides by max_completion_length, and truncated "
            "completions are masked: steps become smaller the more are truncated", {"loss_type": kind},
            "Set mask_truncated_completions=False, or loss_type='dapo'.",
        )  # fmt: skip
    if kind == "grpo" and not getattr(args, "mask_truncated_completions", False):
        return Check(
            FAMILY, "loss_type", Status.WARN, "loss_type='grpo' divides each completion by its own length: long wrong "
            "answers are punished less than short ones, and completions grow", {"loss_type": kind},
            "Set loss_type='dapo' or 'dr_grpo' (https://huggingface.co/papers/2503.20783).",
        )  # fmt: skip
    numbers = {"loss_type": str(kind), "temperature": args.temperature}
    return Check(
        FAMILY, "loss_type", Status.PASS, f"loss_type {kind}" if kind else "the loss of a whole completion", numbers
    )
