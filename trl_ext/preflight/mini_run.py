"""Three updates of the real run: does it go, is it watched without an alert, what will the whole of it take?"""

import logging
import math
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from transformers import DefaultFlowCallback, TrainerCallback

from trl_ext.callbacks import AnomalyDetectionCallback, PPOMonitoringCallback
from trl_ext.monitor.alerts import Severity

from .check import Check, Status
from .reference import fingerprint, has_reference
from .subject import Subject, naming_rewards, strided

FAMILY = "mini_run"
UPDATES = 3
MOST_STEPS = 12  # where many optimizer steps are made on a generation
# Rules of the monitor about what another family looks at more closely (tokenizer, masks; advantages), and about the
# schedule, which is not the run's own here
TOLD_ELSEWHERE = {"tokenizer_setup", "all_truncated", "eos_missing", "lr_schedule_drift"}


class Clock(TrainerCallback):
    """Seconds of each optimizer step, and what was logged."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.logs: list[dict[str, Any]] = []
        self._began = 0.0

    def on_step_begin(self, args, state, control, **_):
        self._began = time.monotonic()

    def on_step_end(self, args, state, control, **_):
        self.seconds.append(time.monotonic() - self._began)

    def on_log(self, args, state, control, logs=None, **_):
        self.logs.append(dict(logs or {}))


def mini_run(subject: Subject) -> Iterator[Check]:
    subject.require_data()
    subject.require_trainable()
    if subject.kind == "rl":
        subject.require_rewards()
    whole, steps = subject.total_steps, _steps(subject)
    before, weights = fingerprint(subject), _sketch(subject)
    with tempfile.TemporaryDirectory(prefix="trl_ext_preflight_") as folder:
        monitor = (PPOMonitoringCallback if subject.kind == "rl" else AnomalyDetectionCallback)(output_dir=folder)
        clock = Clock()
        with _short(subject, steps, folder, [clock, monitor]), naming_rewards(subject.trainer):
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
            try:
                subject.trainer.train()
            except BaseException:
                monitor._run.finish(completed=False)  # as it would at exit, when its folder is gone
                raise
        yield _went(subject, clock)
        yield _watched(monitor)
    yield _moved(subject, weights, _sketch(subject))
    if subject.kind in ("rl", "dpo") and before is not None:
        yield _kept(subject, before)
    yield _extrapolated(subject, clock, whole)


def _steps(subject: Subject) -> int:
    """Optimizer steps of three updates: a generation may be learned from several times."""
    args = subject.args
    a_generation = getattr(args, "steps_per_generation", None)
    if subject.kind != "rl" or a_generation is None:
        return UPDATES
    iterations = int(getattr(subject.trainer, "num_iterations", 1))
    each = max(math.ceil(a_generation * iterations / args.gradient_accumulation_steps), 1)
    return min(UPDATES * each, max(MOST_STEPS, UPDATES))


@contextmanager
def _short(subject: Subject, steps: int, folder: str, callbacks: list[TrainerCallback]) -> Iterator[None]:
    """The run with its own batches and rate from the first step, without saving, evaluating and reporting."""
    trainer, args = subject.trainer, subject.args
    changed = {
        "output_dir": folder, "max_steps": steps, "save_strategy": "no", "eval_strategy": "no", "logging_steps": 1,
        "logging_strategy": "steps", "lr_scheduler_type": "constant", "warmup_steps": 0,
        "load_best_model_at_end": False,
        "resume_from_checkpoint": None, "push_to_hub": False, "disable_tqdm": True, "log_completions": False,
    }  # fmt: skip
    kept = {name: getattr(args, name) for name in changed if hasattr(args, name)}
    handler = trainer.callback_handler.callbacks
    own = [
        c for c in handler if isinstance(c, DefaultFlowCallback) or type(c).__module__.startswith("trl_ext.trainers")
    ]
    subject.forget()
    for name in kept:
        setattr(args, name, changed[name])
    trainer.callback_handler.callbacks = [*own]
    for callback in callbacks:
        trainer.add_callback(callback)
    said = logging.getLogger("trl_ext.monitor")
    level = said.level
    said.setLevel(logging.CRITICAL + 1)  # what the monitor says is a check of its own
    try:
        yield
    finally:
        said.setLevel(level)
        trainer.callback_handler.callbacks = handler
        for name, value in kept.items():
            setattr(args, name, value)


def _went(subject: Subject, clock: Clock) -> Check:
    names = ("reward", "loss", "kl", "objective/kl", "entropy", "grad_norm")
    rows = [log for log in clock.logs if "train_runtime" not in log]
    series = {name: [log[name] for log in rows if name in log] for name in names}
    wrong = [name for name, values in series.items() if any(v is None or not math.isfinite(v) for v in values)]
    told = ", ".join(f"{name} {_pair(values)}" for name, values in series.items() if values and name not in wrong)
    numbers: dict[str, Any] = {"optimizer_steps": len(clock.seconds)}
    numbers |= {name: values[-1] for name, values in series.items() if values and name not in wrong}
    if wrong or not clock.seconds:
        what = f"{', '.join(wrong)} not finite" if wrong else "no step was made"
        return Check(FAMILY, "steps", Status.FAIL, f"{len(clock.seconds)} steps: {what}", numbers,
                     "See the family gradient; bf16 in place of fp16, a lower learning_rate.")  # fmt: skip
    return Check(FAMILY, "steps", Status.PASS, f"{len(clock.seconds)} optimizer steps: {told}", numbers)


def _pair(values: list[float]) -> str:
    return f"{values[0]:.3g}" if len(values) < 2 else f"{values[0]:.3g} -> {values[-1]:.3g}"


def _watched(monitor: Any) -> Check:
    alerts = [alert for alert in monitor.alerts if alert.severity >= Severity.WARNING
              and alert.rule not in TOLD_ELSEWHERE]  # fmt: skip
    numbers = {"alerts": len(alerts)}
    if not alerts:
        return Check(FAMILY, "monitor", Status.PASS, "the monitor found nothing to complain about", numbers)
    worst = max(alerts, key=lambda alert: alert.severity.rank)
    status = Status.FAIL if worst.severity >= Severity.ERROR else Status.WARN
    return Check(FAMILY, "monitor", status, f"{worst.rule}: {worst.message}", numbers, worst.advice)


def _sketch(subject: Subject) -> dict[str, torch.Tensor]:
    """A strided look at each weight that trains."""
    found = {}
    for name, parameter in subject.policy.named_parameters():
        if parameter.requires_grad:
            found[name] = strided(parameter, 1024).float().cpu().clone()
    return found


def _moved(subject: Subject, before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> Check:
    still = [name for name, values in before.items() if torch.equal(values, after[name])]
    size = sum(float((after[n] - v).square().sum()) for n, v in before.items())
    norm = sum(float(v.square().sum()) for v in before.values())
    relative = math.sqrt(size / norm) if norm else 0.0
    numbers = {"relative_change": relative, "tensors": len(before), "unchanged": len(still)}
    if before and len(still) == len(before):
        return Check(FAMILY, "learned", Status.FAIL, "no weight changed", numbers, "The learning rate is 0, every "
                     "group of completions has one reward, or steps are lost in 16-bit weights: keep weights in "
                     "float32, with bf16=True.")  # fmt: skip
    if relative > 1.0 and not subject.has_adapter:  # an adapter may begin at zero
        return Check(FAMILY, "learned", Status.WARN, f"weights moved by {relative:.1f} times their size", numbers,
                     "Nothing is left of what the model knew: lower learning_rate, and set max_grad_norm.")  # fmt: skip
    share_still = len(still) / max(len(before), 1)
    status = Status.WARN if share_still > 0.5 else Status.PASS
    return Check(
        FAMILY, "learned", status, f"weights moved by {relative:.1e} of their size; {len(still)} of {len(before)} "
        "tensors stayed as they were", numbers,
        "" if status == Status.PASS else "Look whether the optimizer has all that trains, and at the learning rate; "
        "steps smaller than the rounding of 16-bit weights are lost: float32 weights with bf16=True.",
    )  # fmt: skip


def _kept(subject: Subject, before: str) -> Check:
    after = fingerprint(subject)
    strategy = getattr(subject.args, "reference", "frozen")
    follows = strategy != "frozen" or getattr(subject.args, "sync_ref_model", False)
    what = "the reference and every frozen weight" if has_reference(subject) else "every frozen weight"
    if after == before:
        return Check(FAMILY, "frozen", Status.PASS, f"{what} stayed as they were", {"reference": strategy})
    if follows:
        return Check(FAMILY, "frozen", Status.PASS, f"the reference follows the policy, as reference={strategy!r} says",
                     {"reference": strategy})  # fmt: skip
    return Check(FAMILY, "frozen", Status.FAIL, f"{what} should have stayed as they were, and changed",
                 {"reference": strategy}, "The reference shares weights with the policy, or the optimizer has its "
                 "parameters: pass a model of its own as ref_model.")  # fmt: skip


def _extrapolated(subject: Subject, clock: Clock, whole: int) -> Check:
    later = clock.seconds[1:] or clock.seconds  # the first compiles, allocates and warms up
    each = sum(later) / max(len(later), 1)
    held, peak, where = memory()
    numbers: dict[str, Any] = {"seconds_a_step": each, "optimizer_steps": whole, "peak_gb": peak}
    numbers["hours"] = each * whole / 3600
    message = f"{each:.2f} s a step; {whole:,} steps take about {_duration(each * whole)}; "
    message += f"peak memory {peak:.2f} GB {where}"
    longest = _stretch(subject, clock)
    full = held + max(peak - held, 0.0) * longest
    numbers["peak_gb_at_limit"] = full
    if longest > 1.05:
        message += f", about {full:.2f} where completions reach their limit"
    free = _memory_limit()
    numbers["memory_gb"] = free
    if free and full > 0.92 * free:
        return Check(FAMILY, "cost", Status.WARN, f"{message}, of {free:.0f}", numbers, "It may not fit: lower "
                     "per_device_train_batch_size and raise gradient_accumulation_steps, or set "
                     "gradient_checkpointing=True.")  # fmt: skip
    return Check(FAMILY, "cost", Status.PASS, message, numbers)


def _stretch(subject: Subject, clock: Clock) -> float:
    """How much longer the longest text may become than the longest of these steps: what is kept for the backward pass
    grows with it."""
    longest = max((log.get("completions/max_length") or 0 for log in clock.logs), default=0)
    limit = getattr(subject.trainer, "max_completion_length", None)
    if subject.kind != "rl" or not longest or not limit:
        return 1.0
    prompt = subject.rollouts.output["prompt_ids"].size(1)
    return (prompt + limit) / (prompt + longest)


def memory() -> tuple[float, float, str]:
    """What is held now, weights and optimizer with it, and the most so far, in GB; and of what."""
    if torch.cuda.is_available():
        return torch.cuda.memory_allocated() / 1e9, torch.cuda.max_memory_allocated() / 1e9, "of the GPU"
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
    return min(psutil.Process().memory_info().rss / 1e9, peak), peak, "of the process"


def _memory_limit() -> float | None:
    if not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory / 1e9


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
