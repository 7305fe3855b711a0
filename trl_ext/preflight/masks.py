"""Which tokens learn, against what should, and shown on a real sample."""

from collections.abc import Iterator
from typing import Any

import torch

from .check import Check, Status, share
from .gradient import run_backward
from .subject import Subject

FAMILY = "masks"
IGNORED = -100
SHOWABLE = 16  # completions of which one is shown
# What a piece of the sample is -> (what the legend says, how it is shown)
PIECES = {
    "prompt": ("prompt, not trained", "dim"),
    "learns": ("trained", "green"),
    "action": ("trained, part of a JSON action", "bold yellow"),
    "end": ("trained, the token that ends the text", "bold reverse green"),
    "masked": ("not trained", "blue"),
    "padding": ("padding", "bright_black"),
}
Sample = tuple[tuple[str, str], ...]


def masks(subject: Subject) -> Iterator[Check]:
    if subject.kind == "rl":
        yield _padding(subject)
        yield _ends(subject)
        yield _learning(subject)
        return
    if subject.kind == "sft":
        yield from _labels(subject)
        return
    yield _pairs(subject)


def sample(subject: Subject) -> Sample:
    """One text of the first batch, in pieces; empty where the trainer shows none."""
    if subject.kind == "rl":
        return _sample_of_rollout(subject)
    if subject.kind == "sft" and {"input_ids", "labels"} <= set(subject.batch):
        ids, labels = subject.batch["input_ids"][0].tolist(), subject.batch["labels"][0].tolist()
        keep = subject.batch.get("attention_mask", torch.ones_like(subject.batch["input_ids"]))[0].tolist()
        eos = subject.tokenizer.eos_token_id
        kinds = [
            "padding" if not kept else "prompt" if label == IGNORED else "end" if token == eos else "learns"
            for token, label, kept in zip(ids, labels, keep, strict=True)
        ]
        return _pieces(subject, ids, kinds)
    return ()


# Rollouts ---------------------------------------------------------------------------------------------------------


def _own(output: dict[str, Any]) -> torch.Tensor:
    return output["completion_mask"] * output.get("tool_mask", torch.ones_like(output["completion_mask"]))


def _padding(subject: Subject) -> Check:
    """Prompts end where completions begin; only padding is masked in them."""
    output = subject.rollouts.output
    mask = output["prompt_mask"].bool()
    right = bool(mask[:, -1].all())
    no_holes = bool((mask.int().diff(dim=1) >= 0).all())
    hidden = output["prompt_ids"][~mask]
    only_padding = bool((hidden == subject.tokenizer.pad_token_id).all())
    empty = int((mask.sum(1) == 0).sum())
    fine = right and no_holes and only_padding
    numbers = {"padded_share": 1.0 - mask.float().mean().item(), "rows_without_prompt": empty}
    if fine:
        return Check(FAMILY, "prompt", Status.PASS, "prompts are padded on the left and nothing but padding is masked "
                     f"({numbers['padded_share']:.0%} of their places)", numbers)  # fmt: skip
    what = (
        f"{empty} prompts have no tokens" if empty else "prompts do not end where completions begin" if not right
        else "prompts are masked in the middle" if not no_holes else "tokens that are no padding are masked in prompts"
    )  # fmt: skip
    return Check(FAMILY, "prompt", Status.FAIL, what, numbers,
                 "Look at the tokenizer's padding_side ('left' where a policy samples), at empty prompts, and at who "
                 "made the attention mask.")  # fmt: skip


def _ends(subject: Subject) -> Check:
    """A completion counts up to the first token that ends it, with it, and no further."""
    output = subject.rollouts.output
    ids, mask = output["completion_ids"], output["completion_mask"].bool()
    lengths = torch.tensor([len(row) for row in subject.rollouts.completion_ids], device=ids.device)
    places = torch.arange(ids.size(1), device=ids.device)
    expected = places < lengths.unsqueeze(1)
    if getattr(subject.args, "mask_truncated_completions", False):
        expected = expected & mask.any(1, keepdim=True)
    wrong = (mask != expected).any(1)
    single_turn = "tool_mask" not in output or bool((output["tool_mask"] == 1).all())
    ends = torch.isin(ids, torch.tensor(subject.eos_ids, device=ids.device)) & mask
    behind = (ends.cumsum(1) - ends.int() > 0) & mask
    late = behind.any(1) & torch.tensor(single_turn, device=ids.device)
    share_wrong = float((wrong | late).float().mean())
    ended = share((row[-1] in subject.eos_ids) for row in subject.rollouts.completion_ids if row)
    numbers = {"wrong_share": share_wrong, "ended_share": ended}
    if share_wrong:
        return Check(FAMILY, "completion", Status.FAIL, f"{share_wrong:.0%} of completions are not masked at their end",
                     numbers, "Tokens behind the end learn, or the end itself does not: look at "
                     "eos_token_id of the tokenizer and of generation_config.")  # fmt: skip
    return Check(FAMILY, "completion", Status.PASS, "each completion counts up to the token that ends it, and with it "
                 f"({ended:.0%} have one)", numbers)  # fmt: skip


def _learning(subject: Subject) -> Check:
    """The loss itself is asked: where is its gradient by the log-probabilities not zero?"""
    backward = run_backward(subject)
    by_token = backward.token_gradient
    subject.policy.zero_grad(set_to_none=True)
    if by_token is None:
        return Check(FAMILY, "learning", Status.SKIP, "the loss takes no log-probabilities that could be looked at")
    from .gradient import ROWS, _inputs

    expected = _own(_inputs(subject, ROWS)).bool()
    learns = by_token != 0
    extra, missing = int((learns & ~expected).sum()), int((expected & ~learns).sum())
    total = int(expected.sum())
    numbers = {"tokens": total, "learn_and_should_not": extra, "should_learn_and_do_not": missing}
    partly = getattr(subject.args, "top_entropy_quantile", 1.0) < 1.0
    clipped = missing and not extra and partly
    if total and not extra and (not missing or clipped):
        kept = _own(subject.rollouts.output).float().sum().item()
        whole = subject.rollouts.output["completion_mask"].float().sum().item()
        return Check(FAMILY, "learning", Status.PASS, f"the loss moves exactly the tokens that the mask names: "
                     f"{kept / max(whole, 1):.0%} of the completions' tokens", numbers)  # fmt: skip
    message = (
        "no token of a completion learns" if not total
        else f"{extra} tokens learn that should not, {missing} should and do not (of {total} in {len(expected)} texts)"
    )  # fmt: skip
    return Check(FAMILY, "learning", Status.FAIL, message, numbers,
                 "A mask is off by one, or padding, prompt or a tool's answer is in the loss; with "
                 "mask='json_actions' a policy that writes no JSON has nothing to learn from.")  # fmt: skip


def _sample_of_rollout(subject: Subject) -> Sample:
    """The one that shows most: a token that ends it, an action, a tool's answer."""
    output = subject.rollouts.output
    shown = [_kinds_of_row(subject, row) for row in range(min(len(output["completion_ids"]), SHOWABLE))]
    row = max(
        range(len(shown)), key=lambda i: (len(set(shown[i])), shown[i].count("learns") + shown[i].count("action"))
    )
    prompt = output["prompt_ids"][row][output["prompt_mask"][row].bool()].tolist()
    completion = output["completion_ids"][row].tolist()
    return _pieces(subject, [*prompt, *completion], [*(["prompt"] * len(prompt)), *shown[row]])


def _kinds_of_row(subject: Subject, row: int) -> list[str]:
    output = subject.rollouts.output
    completion, learns = output["completion_ids"][row].tolist(), _own(output)[row].tolist()
    counts = output["completion_mask"][row].tolist()
    actions = _actions(subject, completion, learns)
    return [
        "padding" if not count else "masked" if not learn else "end" if token in subject.eos_ids
        else "action" if action else "learns"
        for token, count, learn, action in zip(completion, counts, learns, actions, strict=True)
    ]  # fmt: skip


def _actions(subject: Subject, ids: list[int], own: list[int]) -> list[bool]:
    from trl_ext.trainers.json_actions import JsonActions

    found = JsonActions(subject.tokenizer).find(torch.tensor([ids]), torch.tensor([own]))
    return found.mask[0].bool().tolist()


def _pieces(subject: Subject, ids: list[int], kinds: list[str]) -> Sample:
    """Neighbours of one kind are one piece; padding is counted."""
    pieces: list[tuple[str, str]] = []
    start = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or kinds[end] != kinds[start]:
            kind = kinds[start]
            text = f"<{end - start} x padding>" if kind == "padding" else subject.tokenizer.decode(ids[start:end])
            pieces.append((text, kind))
            start = end
    return tuple(pieces)


# Supervised -------------------------------------------------------------------------------------------------------


def _labels(subject: Subject) -> Iterator[Check]:
    batch = subject.batch
    if "labels" not in batch:
        yield Check(FAMILY, "labels", Status.SKIP, "the trainer's batches hold no labels")
        return
    ids, labels = batch["input_ids"], batch["labels"]
    trained = labels != IGNORED
    wrong = int(((labels != ids) & trained).sum())
    kept = batch.get("attention_mask", torch.ones_like(ids)).bool()
    padding = int((trained & ~kept).sum())
    ratio = trained.float().sum().item() / max(kept.float().sum().item(), 1)
    empty = share((~trained.any(1)).tolist())
    numbers = {"trained_share": ratio, "rows_without_labels": empty, "wrong_labels": wrong, "trained_padding": padding}
    if wrong or padding:
        what = f"{wrong} labels are not their own token" if wrong else f"{padding} places of padding are trained"
        yield Check(FAMILY, "labels", Status.FAIL, what, numbers, "The model shifts labels itself: they must equal "
                    "input_ids, -100 where nothing is learned.")  # fmt: skip
    else:
        status = Status.FAIL if ratio == 0 else Status.WARN if empty else Status.PASS
        yield Check(FAMILY, "labels", status, f"{ratio:.0%} of the tokens are trained; {empty:.0%} of the texts have "
                    "none that is", numbers, "" if status == Status.PASS else "All of a text is masked: its "
                    "completion lies behind max_length, or the template has no generation block for "
                    "assistant_only_loss.")  # fmt: skip
    yield _eos_learned(subject, labels)


def _eos_learned(subject: Subject, labels: torch.Tensor) -> Check:
    """Whether a text's end is among what is trained. Packed texts are one row, so rows are not counted there."""
    eos = torch.tensor(subject.eos_ids, device=labels.device)
    rows = share(torch.isin(labels, eos).any(1).tolist())
    fine = rows > 0
    return Check(
        FAMILY, "eos_learned", Status.PASS if fine else Status.FAIL,
        f"{rows:.0%} of the texts have a trained token that ends them", {"rows_with_eos": rows},
        "" if fine else "The policy never learns to stop. Set eos_token to what ends a turn of the chat template, or "
        "see whether max_length cuts the end off, or labels of the pad token (equal to EOS) are masked.",
    )  # fmt: skip


def _pairs(subject: Subject) -> Check:
    """Reward and preference trainers: chosen and rejected differ, and have an end."""
    batch = subject.batch
    ids, mask = batch.get("input_ids"), batch.get("attention_mask")
    if ids is None or mask is None or len(ids) % 2:
        return Check(FAMILY, "pairs", Status.SKIP, "the trainer's batches are not pairs of texts")
    half = len(ids) // 2
    same = share(ids[i][mask[i].bool()].tolist() == ids[half + i][mask[half + i].bool()].tolist() for i in range(half))
    hidden = ids[~mask.bool()]
    only_padding = bool((hidden == subject.tokenizer.pad_token_id).all())
    fine = same == 0 and only_padding
    return Check(
        FAMILY, "pairs", Status.PASS if fine else Status.FAIL if not only_padding or same > 0.5 else Status.WARN,
        f"{same:.0%} of {half} pairs are twice the same tokens; " +
        ("nothing but padding is masked" if only_padding else "tokens that are no padding are masked"),
        {"equal_pairs": same, "pairs": half},
        "" if fine else "Chosen and rejected must differ within max_length.",
    )  # fmt: skip
