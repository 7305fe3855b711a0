"""Which tokens a supervised trainer trains, against its data."""

from collections.abc import Iterator
from typing import Any

import torch

from .check import Check, Status, share
from .subject import Subject

FAMILY = "masks"
IGNORED = -100


def labels(subject: Subject) -> Iterator[Check]:
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
    yield _attended(subject, ids, kept)
    yield _completion_only(subject)
    yield _eos_learned(subject, labels)


def _attended(subject: Subject, ids: torch.Tensor, kept: torch.Tensor) -> Check:
    """Padding is not looked at, where it can be told from text."""
    pad = subject.tokenizer.pad_token_id
    if pad == subject.tokenizer.eos_token_id:
        return Check(FAMILY, "padding", Status.SKIP, "pad is EOS: padding cannot be told from an end")
    seen = int(((ids == pad) & kept).sum())
    return Check(
        FAMILY, "padding", Status.PASS if not seen else Status.FAIL, f"{seen} places of padding are attended to",
        {"padding_attended": seen}, "" if not seen else "The collator's attention_mask is 1 on padding.",
    )  # fmt: skip


def _completion_only(subject: Subject) -> Check:
    """What the dataset marks as prompt is not trained: TRL keeps labels, or masks of completions and assistants."""
    data = subject.dataset
    columns = getattr(data, "column_names", None) or []
    names = [name for name in ("labels", "completion_mask", "assistant_masks") if name in columns]
    if getattr(subject.args, "completion_only_loss", None) is False:
        return Check(FAMILY, "prompts", Status.WARN, "completion_only_loss=False: prompts are trained as well", {},
                     "Leave it out, unless prompts are to be learned.")  # fmt: skip
    if not names or not hasattr(data, "select"):
        return Check(FAMILY, "prompts", Status.SKIP, "the dataset marks no prompts: all of a text is trained")
    rows = [data[i] for i in range(min(len(data), 8))]
    batch = subject.trainer.data_collator(rows)
    trained = prompts = 0
    for row, labels in zip(rows, batch["labels"], strict=False):
        marks = [[mark != IGNORED and mark is not None for mark in row[name]] if name == "labels" else row[name]
                 for name in names]  # fmt: skip
        marked = torch.tensor([all(each) for each in zip(*marks, strict=True)])
        length = min(len(marked), len(labels))
        learns = labels[:length] != IGNORED
        trained += int((learns & ~marked[:length]).sum())
        prompts += int((~marked[:length]).sum())
    numbers = {"prompt_tokens": prompts, "trained_prompt_tokens": trained}
    if not trained:
        return Check(FAMILY, "prompts", Status.PASS, f"none of {prompts} tokens of prompts is trained", numbers)
    return Check(
        FAMILY, "prompts", Status.FAIL, f"{trained} of {prompts} prompt tokens are trained", numbers,
        "The collator does not mask what the dataset marks as prompt.",
    )  # fmt: skip


def _eos_learned(subject: Subject, labels: torch.Tensor) -> Check:
    """Whether a text's end is among what is trained. Packed texts are one row, so rows are not counted there."""
    eos = torch.tensor(subject.eos_ids, device=labels.device)
    rows = share(torch.isin(labels, eos).any(1).tolist())
    few = rows < 0.5 and not getattr(subject.args, "packing", False)
    fine = rows > 0 and not few
    return Check(
        FAMILY, "eos_learned", Status.PASS if fine else Status.WARN if rows > 0 else Status.FAIL,
        f"{rows:.0%} of the texts have a trained token that ends them", {"rows_with_eos": rows},
        "" if fine else "The policy never learns to stop. Set eos_token to what ends a turn of the chat template, or "
        "see whether max_length cuts the end off, or labels of the pad token (equal to EOS) are masked.",
    )  # fmt: skip


def pairs(subject: Subject) -> Check:
    """Reward and preference trainers: chosen and rejected differ, and have an end."""
    batch = subject.batch
    ids, mask = batch.get("input_ids"), batch.get("attention_mask")
    if ids is None or mask is None or len(ids) % 2:
        return Check(FAMILY, "pairs", Status.SKIP, "the trainer's batches are not pairs of texts")
    half = len(ids) // 2
    if "completion_mask" in batch:
        wrong = _preference_mask(batch, half)
        if wrong:
            advice = "completion_mask is 1 on the whole completion and nowhere else: look at the collator."
            return Check(FAMILY, "pairs", Status.FAIL, wrong, {"pairs": half}, advice)
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


def _preference_mask(batch: dict[str, Any], half: int) -> str:
    """What is wrong with the mask of completions: it must end with the text, begin where the pair has not yet parted,
    and leave the prompt out; empty where nothing is."""
    ids, kept, completion = batch["input_ids"], batch["attention_mask"].bool(), batch["completion_mask"].bool()
    if bool((completion & ~kept).any()):
        return "padding is in the loss"
    for i in range(half):
        for row in (i, half + i):
            inside = completion[row][kept[row]]
            if not inside.any() or not bool(inside[-1]):
                return "the end of a completion is not in the loss"
            if bool((inside.int().diff() < 0).any()):
                return "a completion has holes"
        first, second = (ids[row][kept[row]] for row in (i, half + i))
        length = min(len(first), len(second))
        parted = (first[:length] != second[:length]).nonzero().flatten()
        begins = [int(completion[row][kept[row]].int().argmax()) for row in (i, half + i)]
        if len(parted) and max(begins) > int(parted[0]):
            return "tokens in which chosen and rejected differ are not in the loss"
        if max(begins) == 0:
            return "the prompt is in the loss"
    return ""
