"""Whether a positive advantage raises the log-probability of what was said, and every weight that trains learns."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from trl_ext.functional import learning_mask, token_log_probs
from trl_ext.stand_in import StandIn

from .check import Check, Status, share
from .subject import Subject

FAMILY = "gradient"
ROWS = 4  # completions in the loss
STEPS = (0.1, 1.0, 10.0)  # nats that a first-order step asks for; larger ones where rounding of weights swallows it
SMALLER = 5  # steps, each a quarter of the one before
LEARNED = 0.01  # nats a token or a pair: of such a loss even a step of the right sign may make more
_FARTHEST = 0.05  # of the size of the weights
ADAPTERS = (".lora_", ".vera_", ".hada_", ".lokr_")  # how PEFT names their factors
_AGREES = (0.3, 3.0)  # what came of what was asked for: the loss is no straight line


class Backward(NamedTuple):
    """
    Attributes:
        loss: its value.
        token_gradient: `(B, T)`, of the loss by each log-probability of the completions; None where there are none.
        parameters: name -> parameter, of those that train.
    """

    loss: float
    token_gradient: torch.Tensor | None
    parameters: dict[str, torch.nn.Parameter]


def gradient(subject: Subject) -> Iterator[Check]:
    if subject.kind == "rl":
        subject.require_rewards()
    backward = run_backward(subject)
    yield _finite(backward)
    yield _reached(subject, backward)
    if all(p.grad is None or p.grad.isfinite().all() for p in backward.parameters.values()):
        yield _raises(subject) if subject.kind == "rl" else _lowers(subject, backward)
    subject.policy.zero_grad(set_to_none=True)


def run_backward(subject: Subject, rows: int = ROWS) -> Backward:
    """Gradients of the trainer's own loss, with every coefficient as it is; for rollouts with advantages of +1 and -1,
    since groups without spread have none."""
    subject.require_trainable()
    if subject.kind != "rl":
        return _backward(subject, subject.batch)
    inputs = inputs_of(subject, rows)
    sign = torch.ones(len(inputs["completion_ids"]), device=inputs["completion_ids"].device)
    sign[1::2] = -1.0
    inputs["advantages"] = _shaped(sign, subject, inputs)
    return _backward(subject, inputs)


def inputs_of(subject: Subject, rows: int) -> dict[str, Any]:
    """The first completions of the rollouts that something can be learned from."""
    output = subject.rollouts.output
    mask = learning_mask(output)
    learning = mask.any(1).nonzero().flatten()[:rows]
    if not len(learning):
        learning = torch.arange(min(rows, len(mask)), device=mask.device)
    count = len(mask)
    picked = {
        key: value[learning] if isinstance(value, torch.Tensor) and value.dim() and len(value) == count else value
        for key, value in output.items()
    }
    kept = mask[learning].sum()
    return picked | {"num_items_in_batch": kept} if "num_items_in_batch" in picked else picked


def _shaped(sign: torch.Tensor, subject: Subject, inputs: dict[str, Any]) -> torch.Tensor:
    """One advantage a completion, or one a token, as the trainer makes them."""
    if subject.rollouts.output["advantages"].dim() == 1:
        return sign
    return sign.unsqueeze(1) * learning_mask(inputs)


def _backward(subject: Subject, inputs: dict[str, Any]) -> Backward:
    policy, trainer = subject.policy, subject.trainer
    policy.train()
    policy.zero_grad(set_to_none=True)
    with _recorded(trainer) as recorded, trainer.compute_loss_context_manager():
        loss = trainer.compute_loss(trainer.model, inputs)
    trainer.accelerator.backward(loss)
    by_token = recorded[-1].grad if recorded and recorded[-1].grad is not None else None
    parameters = {name: p for name, p in policy.named_parameters() if p.requires_grad}
    return Backward(loss.item(), by_token, parameters)


@contextmanager
def _recorded(trainer: Any) -> Iterator[list[torch.Tensor]]:
    """The log-probabilities of the forwards inside, which then keep their gradients."""
    found: list[torch.Tensor] = []
    original = getattr(trainer, "_get_per_token_logps_and_entropies", None)
    if original is None:
        yield found
        return

    def recording(*args, **kwargs):
        result = original(*args, **kwargs)
        if result[0].requires_grad:
            result[0].retain_grad()
            found.append(result[0])
        return result

    with StandIn(trainer, _get_per_token_logps_and_entropies=recording):
        yield found


def _finite(backward: Backward) -> Check:
    grads = [p.grad for p in backward.parameters.values() if p.grad is not None]
    norm = torch.stack([g.detach().float().norm().cpu() for g in grads]).norm().item() if grads else 0.0
    fine = math.isfinite(norm) and math.isfinite(backward.loss)
    return Check(
        FAMILY, "finite", Status.PASS if fine else Status.FAIL,
        f"the loss is {backward.loss:.4g}, the norm of its gradient {norm:.4g}",
        {"loss": backward.loss, "grad_norm": norm},
        "" if fine else "Look for a division by zero, float16 without a loss scaler, or a token id beyond the "
        "embeddings; bf16=True or float32 tell which.",
    )  # fmt: skip


def _reached(subject: Subject, backward: Backward) -> Check:
    dead = [name for name, p in backward.parameters.items() if p.grad is None or not p.grad.any()]
    dead = [name for name in dead if not _begins_without(name, backward.parameters)]
    count, total = len(dead), len(backward.parameters)
    trainable = sum(p.numel() for p in backward.parameters.values())
    whole = sum(p.numel() for p in subject.policy.parameters())
    numbers = {"trainable": total, "without_gradient": count, "trainable_share": trainable / whole}
    heads = [name for name, p in subject.policy.named_parameters() if ".score." in f".{name}" and not p.requires_grad
             and "original_module" not in name]  # fmt: skip
    if subject.kind == "reward" and heads and not any(".score." in f".{name}" for name in backward.parameters):
        return Check(FAMILY, "every_parameter", Status.FAIL, f"the score head does not train: {heads[0]}", numbers,
                     "It is new and random: set requires_grad, with LoRA lora_modules_to_save: [score].")  # fmt: skip
    if not dead:
        message = f"each of {total} tensors that train ({trainable:,} parameters) receives a gradient"
        if trainable < 0.5 * whole and not subject.has_adapter:
            message += f"; they are {trainable / whole:.0%} of all, and there is no adapter"
            advice = "Unfreeze the others (requires_grad), unless that is meant."
            return Check(FAMILY, "every_parameter", Status.WARN, message, numbers, advice)
        return Check(FAMILY, "every_parameter", Status.PASS, message, numbers)
    experts = share("expert" in name for name in dead) == 1.0  # those that no token of four texts was sent to
    named = ", ".join(dead[:3]) + (f" and {count - 3} more" if count > 3 else "")
    return Check(
        FAMILY, "every_parameter", Status.WARN if experts else Status.FAIL,
        f"{count} of {total} tensors that train receive no gradient: {named}", numbers,
        "Freeze what is not meant to learn; else look for a .detach(), torch.no_grad() or an unused module on the way "
        "from them to the loss.",
    )  # fmt: skip


def _begins_without(name: str, parameters: dict[str, torch.nn.Parameter]) -> bool:
    """Adapters are products of which one factor begins at zero, so that they change nothing: the others then have no
    gradient, and it alone has one."""
    layer = _adapted(name)
    if layer is None or not parameters[name].detach().any():
        return False
    return any(_adapted(other) == layer and not p.detach().any() for other, p in parameters.items())


def _adapted(name: str) -> str | None:
    """The layer that this is a factor of an adapter of; None of other weights."""
    return next((name.partition(mark)[0] for mark in ADAPTERS if mark in name), None)


def _raises(subject: Subject) -> Check:
    """One completion has advantage 1, the others 0, and nothing else is in the loss: a step along its gradient must
    raise what is said of that completion by about as much as the gradient promises."""
    inputs = inputs_of(subject, ROWS)
    sign = torch.zeros(len(inputs["completion_ids"]), device=inputs["completion_ids"].device)
    sign[0] = 1.0
    inputs["advantages"] = _shaped(sign, subject, inputs)
    row = {k: inputs[k][:1] for k in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")}
    mask = learning_mask(inputs)[:1]

    def said() -> float:
        with subject.evaluating():
            return float((subject.log_probabilities(row) * mask).sum())

    with _policy_gradient_alone(subject.trainer):
        backward = _backward(subject, inputs)
    by_token = backward.token_gradient
    # how much loss a nat of this completion is worth: the step itself goes down the loss, wherever that leads
    scale = 0.0 if by_token is None else abs(float((by_token[:1] * mask).sum() / mask.sum().clamp(min=1)))
    if getattr(subject.args, "top_entropy_quantile", 1.0) < 1.0 and by_token is not None:
        mask = mask * (by_token[:1] != 0)  # the others do not learn, on purpose
        scale = abs(float((by_token[:1] * mask).sum() / mask.sum().clamp(min=1)))
    before = said()
    if not math.isfinite(scale) or scale == 0.0:
        return Check(FAMILY, "direction", Status.FAIL, "an advantage of 1 has no gradient on its completion's tokens",
                     {"gradient": scale}, "No token of a completion learns: see the family masks.")  # fmt: skip
    asked, came = _step(subject, backward.parameters, lambda: said() - before, scale)
    return _moved("an advantage of 1 on one completion", "its log-probability", asked, came)


def _lowers(subject: Subject, backward: Backward) -> Check:
    def loss() -> float:
        with subject.evaluating():
            return float(subject.trainer.compute_loss(subject.trainer.model, subject.batch))

    before, steps = loss(), (0.01, 0.1, 1.0)
    losses = getattr(subject.args, "loss_type", None)
    losses = set(losses if isinstance(losses, list) else [losses])
    if 0 <= before < LEARNED and "dft" not in losses:  # that one is as small where nothing is known
        return Check(FAMILY, "direction", Status.SKIP, f"the loss is {before:.2g} already: the model knows the batch "
                     "by heart, and there is no direction to test", {"loss": before})  # fmt: skip
    wanted = wanted_of(subject)
    if wanted is not None and "discopop" not in losses:  # which pushes pairs apart only where they are apart
        start = wanted[1]()
        _, rises = _step(
            subject, backward.parameters, lambda: wanted[1]() - start, 1.0, steps, lambda asked, came: came >= 0
        )
        if rises < 0:
            return Check(FAMILY, "direction", Status.FAIL, f"a step along the gradient lowers {wanted[0]} by "
                         f"{-rises:.3g}", {"came": rises}, "The loss has the wrong sign, or learns from other labels "
                         "than those of the data: look at what overrides it.")  # fmt: skip
        if "dft" in losses:  # its gradient is not that of its value, on purpose
            return Check(FAMILY, "direction", Status.PASS, f"a step along the gradient raises {wanted[0]}",
                         {"came": rises})  # fmt: skip
    asked, came = _step(subject, backward.parameters, lambda: before - loss(), 1.0, steps)
    return _moved("a step along the gradient", "the loss of its batch", asked, came, "lowers")


def wanted_of(subject: Subject) -> tuple[str, Callable[[], float]] | None:
    """What learning must raise, in words and by a forward of its own, whatever the trainer's loss says; None where the
    batch has another form than TRL's for texts."""
    batch, policy = subject.batch, subject.policy
    inputs = {k: batch[k] for k in ("input_ids", "attention_mask", "position_ids") if k in batch}
    if "pixel_values" in batch or "input_ids" not in inputs:
        return None

    def logps(mask: torch.Tensor) -> torch.Tensor:
        length = inputs["input_ids"].size(1)
        logits = policy(**inputs).logits[:, -length:]  # those of virtual tokens (prompt tuning) stand before them
        said, _ = token_log_probs(logits[:, :-1], inputs["input_ids"][:, 1:])
        return (said * mask[:, 1:]).sum(1)

    def margin(values: torch.Tensor) -> float:
        chosen, rejected = values.chunk(2)
        return float((chosen - rejected).mean())

    def measured(value: Callable[[], float]) -> Callable[[], float]:
        def measure() -> float:
            with subject.evaluating():
                return value()

        return measure

    if subject.kind == "sft" and "labels" in batch:
        learned = batch["labels"] != -100
        return "the log-probability of the labels", measured(lambda: float(logps(learned).mean()))
    if subject.kind == "reward" and len(inputs["input_ids"]) % 2 == 0:
        return "the reward of what was chosen over what was rejected", measured(
            lambda: margin(policy(**inputs).logits.squeeze(-1))
        )
    if subject.kind == "dpo" and "completion_mask" in batch and len(inputs["input_ids"]) % 2 == 0:
        return "what was chosen over what was rejected", measured(lambda: margin(logps(batch["completion_mask"])))
    return None


def _step(
    subject: Subject, parameters: dict, measure: Callable[[], float], scale: float, steps: tuple = STEPS,
    fits: Callable[[float, float], bool] = lambda asked, came: _AGREES[0] <= came / asked <= _AGREES[1],
) -> tuple[float, float]:  # fmt: skip
    """(asked for, came), of the first step that fits; the weights are put back. Where none does: in 32 bits the first,
    behind which come smaller ones, for losses that bend; else the last, behind smaller ones that rounding swallows."""
    moving = [p for p in parameters.values() if p.grad is not None]
    square = max(sum(float(p.grad.detach().float().square().sum()) for p in moving), 1e-30)
    weights = sum(float(p.detach().float().square().sum()) for p in moving)
    # where nothing is left to learn a nat is far away; what begins at zero may go any way
    longest = _FARTHEST * math.sqrt(weights / square) if weights else math.inf
    exact = subject.precision == "float32"
    first = min(steps[0] * scale / square, longest)
    sizes = [first / 4**i for i in range(SMALLER)] if exact else [min(s * scale / square, longest) for s in steps]
    kept = [p.detach().cpu().clone() for p in moving]
    results: list[tuple[float, float]] = []
    for size in sizes:
        with torch.no_grad():
            for parameter in moving:
                parameter.sub_(size * parameter.grad.to(parameter.dtype))
        asked, came = size * square / scale, measure()
        with torch.no_grad():
            for parameter, value in zip(moving, kept, strict=True):
                parameter.copy_(value)
        if fits(asked, came) or (not exact and came > 0.1 * asked):
            return asked, came
        results.append((asked, came))
    return results[0] if exact else results[-1]


def _moved(cause: str, what: str, asked: float, came: float, verb: str = "raises") -> Check:
    proportion = came / asked
    status = Status.FAIL if not came > 0 else Status.PASS if _AGREES[0] <= proportion <= _AGREES[1] else Status.WARN
    advice = {
        Status.FAIL: "The gradient points the other way: a sign, a mask that is off by one, or an advantage that lies "
        "on other tokens than those whose log-probability is taken.",
        Status.WARN: "The step has the right sign and another size than its gradient promises: dropout, rounding of "
        "16-bit weights, or a loss that is cut off near where it begins.",
    }.get(status, "")
    return Check(
        FAMILY, "direction", status, f"{cause} {verb} {what} by {came:.3g}, the gradient promises {asked:.3g}",
        {"promised": asked, "came": came}, advice,
    )  # fmt: skip


@contextmanager
def _policy_gradient_alone(trainer: Any) -> Iterator[None]:
    """Without KL, entropy bonus and value loss."""
    kept = {name: getattr(trainer, name) for name in ("beta", "entropy_coef") if hasattr(trainer, name)}
    options = {name: getattr(trainer.args, name) for name in ("beta", "vf_coef", "entropy_decay")
               if hasattr(trainer.args, name)}  # fmt: skip
    for name in kept:
        setattr(trainer, name, 0.0)
    for name in options:
        setattr(trainer.args, name, 1.0 if name == "entropy_decay" else 0.0)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(trainer, name, value)
        for name, value in options.items():
            setattr(trainer.args, name, value)
