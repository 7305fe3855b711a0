"""Whether the probabilities that sample are those that train."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from .check import Check, Status, above, worse
from .limits import LOGP_DIFFERENCE
from .subject import Subject

FAMILY = "alignment"
# Options of generation that leave the model's own distribution as it is
NEUTRAL: dict[str, tuple] = {
    "top_p": (None, 1.0), "top_k": (None, 0, -1), "min_p": (None, 0.0), "typical_p": (None, 1.0),
    "epsilon_cutoff": (None, 0.0), "eta_cutoff": (None, 0.0), "repetition_penalty": (None, 1.0), "num_beams": (None, 1),
    "no_repeat_ngram_size": (None, 0), "min_new_tokens": (None, 0), "min_length": (None, 0),
    "suppress_tokens": (None, []),     "begin_suppress_tokens": (None, []), "bad_words_ids": (None, []),
    "sequence_bias": (None, {}), "penalty_alpha": (None,),
    "exponential_decay_length_penalty": (None,), "guidance_scale": (None, 1.0, 1), "forced_eos_token_id": (None,),
}  # fmt: skip
PROMPTS, TOKENS = 8, 32  # sampled here; of several lengths, so that there is padding


class Sampled(NamedTuple):
    """`(B, P)` prompts padded on the left, `(B, T)` completions padded on the right, `(B, T)` their log-probabilities
    when they were sampled."""

    output: dict[str, torch.Tensor]
    logps: torch.Tensor


def alignment(subject: Subject) -> Iterator[Check]:
    if subject.kind != "rl":
        yield Check(FAMILY, "generation", Status.SKIP, f"{subject.name} samples nothing")
        return
    yield _sampling(subject)
    if getattr(subject.trainer, "_is_vlm", False):
        yield Check(FAMILY, "generation", Status.SKIP, "models of images are not compared token by token here")
        return
    sampled = _sample(subject)
    mask = sampled.output["completion_mask"].bool()
    with subject.evaluating():
        scored = subject.log_probabilities(sampled.output)
        alone = _one_by_one(subject, sampled.output)
    with torch.no_grad(), subject.trainer.compute_loss_context_manager():
        subject.policy.train()
        training = subject.log_probabilities(sampled.output)
    yield _compared(
        subject, "generation", scored, sampled.logps, mask,
        "sampling and the forward that trains", "The run is off its own policy from the first step. Look at the "
        "engine that samples (vLLM: dtype, quantisation, its weights), at the padding side, at temperature, and at "
        "options of generation that cut or reweigh the distribution.",
    )  # fmt: skip
    yield _compared(
        subject, "padding", scored, alone, mask,
        "the padded batch that trains and the same texts one by one", "Padding changes what the model computes: "
        "attention mask, position ids, or a token of the prompt that is masked (pad_token equal to one that is used).",
    )  # fmt: skip
    yield _compared(
        subject, "dropout", training, scored, mask,
        "training mode and evaluation", "Dropout makes the first ratios of PPO and GRPO noise, and the KL to the "
        "reference too large: set disable_dropout=True, lora_dropout=0.0.",
    )  # fmt: skip


def _sampling(subject: Subject) -> Check:
    """The distribution that is sampled from is the one whose log-probabilities train."""
    config = subject.trainer.generation_config if hasattr(subject.trainer, "generation_config") else subject.args
    cut = {name: getattr(config, name, None) for name, values in NEUTRAL.items()
           if getattr(config, name, None) not in values}  # fmt: skip
    temperature = getattr(config, "temperature", None)
    if temperature is not None and temperature != subject.args.temperature:
        return Check(
            FAMILY, "sampling", Status.FAIL, f"completions are sampled at temperature {temperature:g}, and their "
            f"log-probabilities taken at {subject.args.temperature:g}",
            {"sampled": temperature, "trained": subject.args.temperature}, "Set temperature in the trainer's arguments "
            "alone, not in generation_kwargs.",
        )  # fmt: skip
    if not cut:
        return Check(FAMILY, "sampling", Status.PASS, f"samples from the whole distribution at temperature "
                     f"{subject.args.temperature:g}", {"temperature": subject.args.temperature})  # fmt: skip
    return Check(
        FAMILY, "sampling", Status.WARN,
        f"{', '.join(f'{name}={value}' for name, value in cut.items())}: samples come from a cut or reweighed "
        "distribution, and the loss takes the log-probabilities of the whole one",
        cut, "Leave these options of generation (generation_kwargs) at what changes nothing, unless it is meant.",
    )  # fmt: skip


def _sample(subject: Subject) -> Sampled:
    output, device = subject.rollouts.output, subject.trainer.accelerator.device
    size, different = subject.num_generations, subject.rollouts.output["prompt_ids"][:: subject.num_generations]
    masks = output["prompt_mask"][::size]
    rows = _of_several_lengths(masks.sum(1).tolist())
    ids, mask = different[rows], masks[rows]
    first = int(mask.argmax(1).min())  # no column of padding alone
    ids, mask = ids[:, first:], mask[:, first:]
    limit = getattr(subject.trainer, "max_completion_length", None) or TOKENS
    if getattr(subject.trainer, "use_vllm", False):
        return _sample_with_trainer(subject, ids, mask)
    with subject.evaluating():
        made = subject.policy.generate(
            input_ids=ids, attention_mask=mask, generation_config=subject.trainer.generation_config,
            max_new_tokens=min(limit, TOKENS), return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
    completion = made.sequences[:, ids.size(1) :]
    logits = torch.stack(made.logits, dim=1)[:, : completion.size(1)].float() / subject.args.temperature
    logps = logits.log_softmax(-1).gather(-1, completion.unsqueeze(-1)).squeeze(-1)
    ends = torch.isin(completion, torch.tensor(subject.eos_ids, device=device))
    own = (ends.cumsum(1) - ends.int()) == 0  # up to the first token that ends it, and with it
    return Sampled(
        {"prompt_ids": ids, "prompt_mask": mask, "completion_ids": completion, "completion_mask": own.long()}, logps
    )


def _sample_with_trainer(subject: Subject, ids: torch.Tensor, mask: torch.Tensor) -> Sampled:
    """By the engine that samples in the run, which gives its own log-probabilities."""
    prompts = [row[keep.bool()].tolist() for row, keep in zip(ids, mask, strict=True)]
    completions, logps = subject.trainer._generate_single_turn(prompts, None, {}, 1)
    length = max(map(len, completions))
    completion, kept = torch.zeros(len(ids), length, dtype=torch.long), torch.zeros(len(ids), length, dtype=torch.long)
    given = torch.zeros(len(ids), length)
    for row, (tokens, values) in enumerate(zip(completions, logps, strict=True)):
        completion[row, : len(tokens)], kept[row, : len(tokens)] = torch.tensor(tokens), 1
        given[row, : len(tokens)] = torch.tensor(values)
    device = ids.device
    output = {"prompt_ids": ids, "prompt_mask": mask, "completion_ids": completion.to(device),
              "completion_mask": kept.to(device)}  # fmt: skip
    return Sampled(output, given.to(device))


def _of_several_lengths(lengths: list[float]) -> list[int]:
    """At most PROMPTS places, from the shortest to the longest."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    count = min(PROMPTS, len(order))
    return [order[round(i * (len(order) - 1) / max(count - 1, 1))] for i in range(count)]


def _one_by_one(subject: Subject, output: dict[str, torch.Tensor]) -> torch.Tensor:
    """Without padding, cache or the trainer's forward: logits of the whole text, log-softmax, the token's place."""
    found = torch.zeros(output["completion_ids"].shape, device=output["completion_ids"].device)
    for row in range(len(found)):
        prompt, completion = (
            output[f"{part}_ids"][row][output[f"{part}_mask"][row].bool()] for part in ("prompt", "completion")
        )
        logits = subject.policy(input_ids=torch.cat([prompt, completion])[None]).logits[0]
        logps = (logits[len(prompt) - 1 : -1].float() / subject.args.temperature).log_softmax(-1)
        found[row, : len(completion)] = logps.gather(-1, completion[:, None]).squeeze(-1)
    return found


def _compared(
    subject: Subject, name: str, first: Any, second: Any, mask: torch.Tensor, what: str, advice: str
) -> Check:
    difference = (first.float() - second.float())[mask]
    mean, largest = difference.abs().mean().item(), difference.abs().max().item()
    ratio = difference.exp()
    numbers: dict[str, Any] = {
        "mean_abs_logp_difference": mean, "max_abs_logp_difference": largest, "tokens": int(mask.sum()),
        "ratio_mean": ratio.mean().item(), "ratio_min": ratio.min().item(), "ratio_max": ratio.max().item(),
    }  # fmt: skip
    status = above(mean, *LOGP_DIFFERENCE[subject.precision])
    if not ratio.isfinite().all():
        status = worse(status, Status.FAIL)
    message = (
        f"{what} differ by {mean:.2g} nats a token on average, {largest:.2g} at most; ratios {ratio.min():.3g} to "
        f"{ratio.max():.3g} ({int(mask.sum())} tokens)"
    )
    return Check(FAMILY, name, status, message, numbers, advice if status != Status.PASS else "")
