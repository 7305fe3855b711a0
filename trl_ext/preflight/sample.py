"""One text of the first batch, and what each of its tokens is to training."""

import torch

from trl_ext.functional import learning_mask
from trl_ext.trainers.json_actions import JsonActions

from .labels import IGNORED
from .subject import Subject

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


def sample(subject: Subject) -> Sample:
    """One text of the first batch, in pieces; empty where the trainer shows none."""
    if subject.kind == "rl":
        return _sample_of_rollout(subject)
    if subject.kind == "sft" and {"input_ids", "labels"} <= set(subject.batch):
        ids, labels = subject.batch["input_ids"][0].tolist(), subject.batch["labels"][0].tolist()
        keep = subject.batch.get("attention_mask", torch.ones_like(subject.batch["input_ids"]))[0].tolist()
        kinds = [
            "padding"
            if not kept
            else "prompt"
            if label == IGNORED
            else "end"
            if token in subject.text_ends
            else "learns"
            for token, label, kept in zip(ids, labels, keep, strict=True)
        ]
        return _pieces(subject, ids, kinds)
    return ()


def _sample_of_rollout(subject: Subject) -> Sample:
    """The one that shows most: a token that ends it, an action, a tool's answer."""
    output = subject.rollouts.output
    actions = JsonActions(subject.tokenizer)
    shown = [_kinds_of_row(subject, actions, row) for row in range(min(len(output["completion_ids"]), SHOWABLE))]
    row = max(
        range(len(shown)), key=lambda i: (len(set(shown[i])), shown[i].count("learns") + shown[i].count("action"))
    )
    prompt = output["prompt_ids"][row][output["prompt_mask"][row].bool()].tolist()
    completion = output["completion_ids"][row].tolist()
    return _pieces(subject, [*prompt, *completion], [*(["prompt"] * len(prompt)), *shown[row]])


def _kinds_of_row(subject: Subject, actions: JsonActions, row: int) -> list[str]:
    output = subject.rollouts.output
    completion, learns = output["completion_ids"][row].tolist(), learning_mask(output)[row].tolist()
    counts = output["completion_mask"][row].tolist()
    inside = actions.find(torch.tensor([completion]), torch.tensor([learns])).mask[0].tolist()
    return [
        "padding" if not count else "masked" if not learn else "end" if token in subject.eos_ids
        else "action" if action else "learns"
        for token, count, learn, action in zip(completion, counts, learns, inside, strict=True)
    ]  # fmt: skip


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
