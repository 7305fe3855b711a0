"""Whether the reference is the policy before the first step. That it stays so is seen in the mini-run."""

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from trl.trainer.utils import use_adapter

from .check import Check, Status, above
from .limits import REFERENCE_DIFFERENCE
from .subject import Subject, strided

FAMILY = "reference"


def reference(subject: Subject) -> Iterator[Check]:
    if subject.kind == "dpo":
        yield _first_preference_loss(subject)
        return
    if subject.kind != "rl":
        yield Check(FAMILY, "equal_at_start", Status.SKIP, f"{subject.name} has no reference")
        return
    if not has_reference(subject):
        asked = asked_for(subject)
        if asked:
            yield Check(
                FAMILY, "asked_for", Status.WARN, f"{asked} asks for a reference, and beta=0 has none",
                {"beta": 0.0}, "Set beta above 0 (0.04 is usual for the KL in the loss), or leave that option out.",
            )  # fmt: skip
        else:
            yield Check(FAMILY, "equal_at_start", Status.SKIP, "beta=0: nothing holds the policy to a reference")
        return
    output = subject.rollouts.output
    rows = slice(0, min(16, len(output["completion_ids"])))
    with subject.evaluating():
        policy = subject.log_probabilities(output, rows=rows)
        with _as_reference(subject) as model:
            kept = subject.log_probabilities(output, model, rows)
    mask, precision = output["completion_mask"][rows].bool(), subject.precision
    difference = (policy - kept)[mask].abs()
    mean, largest = difference.mean().item(), difference.max().item()
    status = above(mean, *REFERENCE_DIFFERENCE[precision])
    given = output.get("ref_per_token_logps")
    if given is not None and (given[rows] - kept)[mask].abs().mean().item() > REFERENCE_DIFFERENCE[precision].fail:
        yield Check(FAMILY, "in_the_loss", Status.FAIL, "the batch holds other log-probabilities than the reference "
                    "gives its tokens", {}, "ref_per_token_logps are moved or of another model: look at who makes or "
                    "changes them.")  # fmt: skip
    yield Check(
        FAMILY, "equal_at_start", status,
        f"reference and policy differ by {mean:.2g} nats a token on average, {largest:.2g} at most, before the first "
        "step",
        {"mean_abs_logp_difference": mean, "max_abs_logp_difference": largest},
        "" if status == Status.PASS else "The KL does not start at zero: the reference is another model or revision, "
        "is loaded in another precision, or an adapter is left on or off. A policy that was trained further than its "
        "reference is meant only if you say so yourself.",
    )  # fmt: skip


def asked_for(subject: Subject) -> str:
    """The options that make sense only with a reference; empty where there are none."""
    options: dict[str, Any] = {"sync_ref_model": False, "reference": "frozen", "kl_target": None}
    values = {name: getattr(subject.args, name, usual) for name, usual in options.items()}
    given = [f"{name}={value}" for name, value in values.items() if value != options[name]]
    given += ["ref_model"] if getattr(subject.trainer, "ref_model", None) is not None else []
    return ", ".join(given)


def has_reference(subject: Subject) -> bool:
    return getattr(subject.args, "beta", 0.0) != 0.0


def _as_reference(subject: Subject) -> Any:
    """A context whose value is the model to ask, None for the policy itself with another adapter or none."""
    reference_model = getattr(subject.trainer, "ref_model", None)
    if reference_model is not None:
        return nullcontext(reference_model)
    return _adapter(subject.policy)


@contextmanager
def _adapter(policy: Any) -> Iterator[None]:
    """The policy without its adapter, or with the frozen copy that keeps its beginning."""
    with use_adapter(policy, adapter_name="ref" if "ref" in policy.peft_config else None):
        yield None


@contextmanager
def _set(trainer: Any, **values: Any) -> Iterator[None]:
    """Attributes that the trainer has, for a while."""
    kept = {name: getattr(trainer, name) for name in values if hasattr(trainer, name)}
    for name in kept:
        setattr(trainer, name, values[name])
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(trainer, name, value)


def fingerprint(subject: Subject) -> str | None:
    """Of the weights that are meant to stay: those of the reference and of the frozen base."""
    model = getattr(subject.trainer, "ref_model", None)
    frozen = [p for p in subject.policy.parameters() if not p.requires_grad]
    kept = frozen if model is None else [*frozen, *model.parameters()]
    if not kept:
        return None
    digest = hashlib.sha256()
    for parameter in kept:
        digest.update(strided(parameter, 4096).contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return digest.hexdigest()


def _first_preference_loss(subject: Subject) -> Check:
    """Of the preferences alone: without the loss of an MoE's router, and the weights of `use_weighting`."""
    loss_types = subject.args.loss_type if isinstance(subject.args.loss_type, list) else [subject.args.loss_type]
    if loss_types != ["sigmoid"] or getattr(subject.args, "label_smoothing", 0.0) != 0:
        return Check(FAMILY, "equal_at_start", Status.SKIP, f"the first loss of {', '.join(loss_types)} is not known")
    with subject.evaluating(), _set(subject.trainer, aux_loss_enabled=False, use_weighting=False):
        loss = float(subject.trainer.compute_loss(subject.trainer.model, subject.batch))
    loss /= (getattr(subject.args, "loss_weights", None) or [1.0])[0]
    difference = abs(loss - math.log(2))
    status = above(difference, *REFERENCE_DIFFERENCE[subject.precision])
    return Check(
        FAMILY, "equal_at_start", status,
        f"the first loss is {loss:.5f}; with a reference equal to the policy it is ln 2 = {math.log(2):.5f}",
        {"loss": loss, "expected": math.log(2)},
        "" if status == Status.PASS else "The reference is another model than the policy, or its log-probabilities "
        "were computed with another template, length or precision.",
    )  # fmt: skip
