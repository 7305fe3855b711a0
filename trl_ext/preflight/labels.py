"""Which tokens a supervised trainer trains, against its data."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from jinja2 import TemplateError

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
    if "position_ids" in batch:
        yield _positions(batch["position_ids"])
    yield _completion_only(subject)
    yield _eos_learned(subject, labels)


def _attended(subject: Subject, ids: torch.Tensor, kept: torch.Tensor) -> Check:
    """Padding is not looked at, where it can be told from text."""
    pad = subject.tokenizer.pad_token_id
    if pad in (*subject.text_ends, subject.tokenizer.bos_token_id):
        return Check(FAMILY, "padding", Status.SKIP, "pad is EOS or BOS as well: padding cannot be told from text")
    seen = int(((ids == pad) & kept).sum())
    return Check(
        FAMILY, "padding", Status.PASS if not seen else Status.FAIL, f"{seen} places of padding are attended to",
        {"padding_attended": seen}, "" if not seen else "The collator's attention_mask is 1 on padding.",
    )  # fmt: skip


def _positions(positions: torch.Tensor) -> Check:
    """Of packed texts, which are told apart by where they begin again at 0."""
    begins = (positions == 0).float().mean().item()
    return Check(
        FAMILY, "positions", Status.FAIL if begins > 0.5 else Status.PASS, f"{begins:.0%} of the places begin a text",
        {"begins_share": begins}, "" if begins <= 0.5 else "position_ids count from 0 within each text: without that "
        "every token is a text of its own, and attends to nothing before it.",
    )  # fmt: skip


def _completion_only(subject: Subject) -> Check:
    """What the dataset marks as prompt is not trained: TRL keeps labels, or masks of completions and assistants."""
    data = subject.dataset
    names = [name for name in ("labels", "completion_mask", "assistant_masks") if name in subject.column_names]
    if getattr(subject.args, "completion_only_loss", None) is False:
        return Check(FAMILY, "prompts", Status.WARN, "completion_only_loss=False: prompts are trained as well", {},
                     "Leave it out, unless prompts are to be learned.")  # fmt: skip
    if not names or not hasattr(data, "select"):
        return Check(FAMILY, "prompts", Status.SKIP, "the dataset marks no prompts: all of a text is trained")
    rows = [data[i] for i in range(min(len(data), 8))]
    batch = subject.trainer.data_collator(rows)
    places = batch.get("position_ids", torch.arange(batch["labels"].size(1)).expand_as(batch["labels"]))
    trained = prompts = untrained = amidst = 0
    for row, ids, labels, place in zip(rows, batch["input_ids"], batch["labels"], places, strict=False):
        marks = [[mark != IGNORED and mark is not None for mark in row[name]] if name == "labels" else row[name]
                 for name in names]  # fmt: skip
        marked = torch.tensor([all(each) for each in zip(*marks, strict=True)])
        length = min(len(marked), len(labels))
        learns = labels[:length] != IGNORED
        trained += int((learns & ~marked[:length]).sum())
        if ids[:length].tolist() == row.get("input_ids", [])[:length]:
            missing = marked[:length] & ~learns & (place[:length] > 0)  # nothing comes before the first
            untrained += int(missing.sum())
            amidst += int((missing & (learns.cumsum(0) > 0)).sum())
        prompts += int((~marked[:length]).sum())
    numbers = {"prompt_tokens": prompts, "trained_prompt_tokens": trained}
    if not trained and untrained and prompts:
        return Check(FAMILY, "prompts", Status.FAIL, f"{untrained} tokens of completions are not trained", numbers,
                     "The collator masks more than what the dataset marks as prompt.")  # fmt: skip
    if not trained and 0 < amidst == untrained <= 2 * len(rows):  # more, or a beginning, may be masked on purpose
        return Check(FAMILY, "prompts", Status.WARN, f"{untrained} tokens of {len(rows)} texts are not trained, amid "
                     "those that are", numbers, "Look at the collator: is a mask off by one?")  # fmt: skip
    if not trained:
        return Check(FAMILY, "prompts", Status.PASS, f"none of {prompts} tokens of prompts is trained", numbers)
    return Check(
        FAMILY, "prompts", Status.FAIL, f"{trained} of {prompts} prompt tokens are trained", numbers,
        "The collator does not mask what the dataset marks as prompt.",
    )  # fmt: skip


def _eos_learned(subject: Subject, labels: torch.Tensor) -> Check:
    """Whether a text's end is among what is trained. Packed texts are one row, so rows are not counted there."""
    rows = _with_one_of(subject.text_ends, labels)
    packed = getattr(subject.args, "packing", False)
    if packed and not rows and "input_ids" in subject.column_names:  # a long text can fill a batch
        rows = share(any(end in ids for end in subject.text_ends) for ids in subject.dataset[:1000]["input_ids"])
    fine = rows >= 0.5 or (packed and rows > 0)
    turn = turn_end(subject)
    if not fine and turn is not None and _with_one_of([turn], labels) >= 0.5:
        name = subject.tokenizer.decode([turn])
        return Check(FAMILY, "eos_learned", Status.WARN, f"texts end with {name!r}, and generation goes on behind it",
                     {"rows_with_eos": rows}, f"Set eos_token={name!r}, which train() writes into generation_config, "
                     "or stop there yourself when the model is used.")  # fmt: skip
    return Check(
        FAMILY, "eos_learned", Status.PASS if fine else Status.WARN if rows > 0 else Status.FAIL,
        f"{rows:.0%} of the texts have a trained token that ends them", {"rows_with_eos": rows},
        "" if fine else "The policy never learns to stop. Set eos_token to what ends a turn of the chat template, or "
        "see whether max_length cuts the end off, or labels of the pad token (equal to EOS) are masked.",
    )  # fmt: skip


def _with_one_of(tokens: list[int], labels: torch.Tensor) -> float:
    return share(torch.isin(labels, torch.tensor(tokens, device=labels.device)).any(1).tolist())


def turn_end(subject: Subject) -> int | None:
    """The special token that the chat template ends an assistant's turn with; None where there is none."""
    if not subject.chat_template:
        return None
    said = "answer"
    messages = [{"role": "user", "content": "question"}, {"role": "assistant", "content": said}]
    try:
        text = subject.tokenizer.apply_chat_template(messages, chat_template=subject.chat_template, tokenize=False)
    except (TemplateError, TypeError, ValueError):  # a template may refuse what is not of its task
        return None
    _, found, behind = text.rpartition(said)
    first = subject.tokenizer(behind.lstrip(), add_special_tokens=False)["input_ids"][:1] if found else []
    return first[0] if first and first[0] in subject.tokenizer.added_tokens_decoder else None


def pairs(subject: Subject) -> Check:
    """Reward and preference trainers: chosen and rejected differ, and have an end."""
    batch = subject.batch
    ids, mask = batch.get("input_ids"), batch.get("attention_mask")
    if ids is None or mask is None or len(ids) % 2:
        return Check(FAMILY, "pairs", Status.SKIP, "the trainer's batches are not pairs of texts")
    half = len(ids) // 2
    wrong = ("completion_mask" in batch and _preference_mask(subject, batch, half)) or _not_of_the_data(subject)
    if wrong:
        advice = "Look at the collator: chosen texts come first, completion_mask is 1 on the whole completion alone."
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


def _not_of_the_data(subject: Subject) -> str:
    """What the collator has made of pairs of the dataset: each text where it belongs, without the prompt's tokens;
    empty where nothing is wrong, or the texts are none of the dataset's."""
    if not {"chosen_ids", "rejected_ids"} <= set(subject.column_names):
        return ""
    rows = list(itertools.islice(subject.dataset, 8))
    batch = subject.trainer.data_collator(rows)
    if len(batch.get("input_ids", ())) != 2 * len(rows):
        return ""
    masks = batch.get("completion_mask", batch["attention_mask"]).bool()
    texts = [ids[mask].tolist() for ids, mask in zip(batch["input_ids"], masks, strict=True)]
    for row, chosen, rejected in zip(rows, texts[: len(rows)], texts[len(rows) :], strict=True):
        if row["chosen_ids"] != row["rejected_ids"] and (chosen, rejected) == (row["rejected_ids"], row["chosen_ids"]):
            return "chosen and rejected have changed places"
        before = len(chosen) - len(row["chosen_ids"])
        prompt = row.get("prompt_ids", [])
        if before > 0 and chosen == [*prompt, *row["chosen_ids"]][-len(chosen) :] and before <= len(prompt):
            return f"the prompt is in the loss, {before} tokens of it"
    return ""


def _preference_mask(subject: Subject, batch: dict[str, Any], half: int) -> str:
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
        if max(begins) == 0 and "prompt_ids" not in subject.column_names:  # which may be empty, and is looked at above
            return "the prompt is in the loss"
    return ""
