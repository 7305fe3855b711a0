"""Faults of the tokenizer, and of what it and the model agree on."""

from collections.abc import Iterator
from typing import Any

from .check import Check, Status, share
from .roles import unwritten_roles
from .subject import Subject

FAMILY = "tokenizer"


def tokens(subject: Subject) -> Iterator[Check]:
    yield _pad(subject)
    yield _vocabulary(subject)
    if (missing := _no_template(subject)) is not None:  # and then nothing can be rendered
        yield missing
        return
    yield _bos(subject)
    yield _eos(subject)
    yield _template(subject)


def _pad(subject: Subject) -> Check:
    tokenizer = subject.tokenizer
    pad, eos = tokenizer.pad_token_id, tokenizer.eos_token_id
    numbers = {"pad_token_id": pad, "eos_token_id": eos}
    if pad is None:
        return Check(FAMILY, "pad", Status.FAIL, "the tokenizer has no pad token", numbers,
                     "Set tokenizer.pad_token to a token of its own that the model embeds.")  # fmt: skip
    of_model = getattr(subject.policy.config, "pad_token_id", None)
    if subject.kind == "reward" and of_model != pad:
        return Check(FAMILY, "pad", Status.FAIL, f"the model's pad_token_id is {of_model}, the tokenizer's {pad}",
                     numbers, "A reward model scores the last token that is no padding by its own config: set "
                     "model.config.pad_token_id.")  # fmt: skip
    if pad == eos:
        return Check(
            FAMILY, "pad", Status.WARN, f"pad and EOS are one token, {tokenizer.eos_token!r} ({eos})", numbers,
            "TRL's trainers mask by length, so the end is learned here; other collators and serving code mask every "
            "EOS with it, and a policy then never stops. Better a pad token of its own.",
        )  # fmt: skip
    return Check(FAMILY, "pad", Status.PASS, f"pad is {tokenizer.pad_token!r} ({pad}), apart from EOS", numbers)


def _vocabulary(subject: Subject) -> Check:
    embeddings = subject.policy.get_input_embeddings()
    rows = getattr(embeddings, "num_embeddings", None) or getattr(embeddings, "weight", embeddings).shape[0]
    size = len(subject.tokenizer)
    numbers = {"tokens": size, "embeddings": rows}
    if size <= rows:
        return Check(FAMILY, "vocabulary", Status.PASS, f"{size:,} tokens, {rows:,} embeddings", numbers)
    return Check(
        FAMILY, "vocabulary", Status.FAIL, f"the tokenizer has {size:,} tokens, the model embeds {rows:,}", numbers,
        "It is another model's, or tokens were added: model.resize_token_embeddings(len(tokenizer)).",
    )  # fmt: skip


def _prompts_in_tokens(subject: Subject) -> list[list[int]]:
    """As they go into the model."""
    if subject.kind == "rl":
        output = subject.rollouts.output
        pairs = zip(output["prompt_ids"], output["prompt_mask"], strict=True)
        return [ids[mask.bool()].tolist() for ids, mask in pairs]
    batch = subject.batch
    ids = batch.get("input_ids")
    if ids is None:
        return []
    mask = batch.get("attention_mask")
    return (
        [row[keep.bool()].tolist() for row, keep in zip(ids, mask, strict=True)] if mask is not None else ids.tolist()
    )


def _bos(subject: Subject) -> Check:
    tokenizer = subject.tokenizer
    bos = tokenizer.bos_token_id
    texts = [ids for ids in _prompts_in_tokens(subject) if ids]
    if bos is None or not texts:
        return Check(FAMILY, "bos", Status.PASS, "the tokenizer has no token that begins a text", {"bos_token_id": bos})
    first = share(ids[0] == bos for ids in texts)
    double = share(ids[:2] == [bos, bos] for ids in texts)
    numbers = {"bos_token_id": bos, "with_bos": first, "with_two": double}
    if double:
        return Check(
            FAMILY, "bos", Status.FAIL, f"{double:.0%} of the texts begin with {tokenizer.bos_token!r} twice", numbers,
            "The template writes it and the tokenizer adds it again: give messages instead of a text the template was "
            "applied to, or set tokenizer.add_bos_token=False.",
        )  # fmt: skip
    adds = tokenizer("a")["input_ids"][:1] == [bos] or _in_template(tokenizer)
    if getattr(subject.args, "packing", False):  # a row may begin in the middle of a text
        adds = adds and not any(bos in ids for ids in texts)
    if adds and first < 1.0:
        return Check(FAMILY, "bos", Status.WARN, f"{1 - first:.0%} of the texts lack {tokenizer.bos_token!r}, which "
                     "the tokenizer begins texts with", numbers, "Tokenise them as the model was trained: "
                     "add_special_tokens=True, or the chat template as it is.")  # fmt: skip
    return Check(FAMILY, "bos", Status.PASS, f"{first:.0%} of the texts begin with {tokenizer.bos_token!r}, none twice",
                 numbers)  # fmt: skip


def _in_template(tokenizer: Any) -> bool:
    template = tokenizer.chat_template
    return isinstance(template, str) and ("bos_token" in template or str(tokenizer.bos_token) in template)


def _eos(subject: Subject) -> Check:
    """What the model ends texts with, by its own generation_config, is what training ends them with."""
    config = getattr(subject.policy, "generation_config", None)
    stored = getattr(config, "eos_token_id", None)
    model_ids = stored if isinstance(stored, list) else [] if stored is None else [stored]
    known = [i for i in subject.eos_ids if i is not None]
    numbers: dict[str, Any] = {"of_training": ", ".join(map(str, known)), "of_model": ", ".join(map(str, model_ids))}
    if not known:
        unset = getattr(subject.args, "stop_token", "") is None and getattr(subject.args, "stop_token_id", 0) is None
        return Check(FAMILY, "eos", Status.FAIL, "no token ends a text", numbers,
                     "Set stop_token: eos. As in stock PPO nothing ends a completion without it." if unset else
                     "Set tokenizer.eos_token: a policy without one writes to the limit of tokens.")  # fmt: skip
    inside = share(known[0] in ids[:-1] for ids in _prompts_in_tokens(subject))
    name = subject.tokenizer.decode([known[0]])
    if inside > 0.1 and name.strip().isalnum() and known[0] not in subject.tokenizer.added_tokens_decoder:
        return Check(FAMILY, "eos", Status.FAIL, f"texts end with {name!r}, which stands inside {inside:.0%} of them",
                     numbers | {"share_with_it_inside": inside}, "It is a piece of ordinary text: set "
                     "tokenizer.eos_token to the token that ends a text of this model.")  # fmt: skip
    if subject.kind != "rl":  # `train` writes the tokenizer's into generation_config
        return Check(FAMILY, "eos", Status.PASS, f"texts end with {name!r} ({known[0]})", numbers)
    if model_ids and not set(known) & set(model_ids):
        return Check(FAMILY, "eos", Status.FAIL, f"training ends texts with {numbers['of_training']}, the model with "
                     f"{numbers['of_model']}", numbers, "Set tokenizer.eos_token to what ends a turn of this model, or "
                     "generation_config.eos_token_id to the tokenizer's.")  # fmt: skip
    return Check(FAMILY, "eos", Status.PASS, f"texts end with {name!r} ({known[0]}), "
                 "here and in the model's generation_config", numbers)  # fmt: skip


def _is_conversational(subject: Subject) -> bool:
    """Whether the data is lists of messages."""
    data = subject.dataset
    if data is None or not getattr(data, "column_names", None):
        return False
    subject.require_data()
    row = next(iter(data))
    return any(
        isinstance(row.get(name), list) and row[name] and isinstance(row[name][0], dict)
        for name in ("prompt", "messages", "chosen", "completion")
    )


def _no_template(subject: Subject) -> Check | None:
    if not _is_conversational(subject) or subject.chat_template:
        return None
    return Check(FAMILY, "chat_template", Status.FAIL, "the data is messages, and there is no chat template", {},
                 "Set chat_template_path, or take the tokenizer of the chat model.")  # fmt: skip


def _template(subject: Subject) -> Check:
    if not _is_conversational(subject):
        return Check(FAMILY, "chat_template", Status.PASS, "the data is plain text: no chat template is applied")
    if subject.kind == "rl" and len(subject.rollouts.prompts) > 1:
        given = len({str(prompt) for prompt in subject.rollouts.prompts})
        rendered = len(set(map(tuple, _prompts_in_tokens(subject))))
        if rendered < given and rendered == 1:
            return Check(FAMILY, "chat_template", Status.FAIL, f"{given} different prompts become the same tokens",
                         {"prompts": given, "rendered": rendered}, "The chat template does not write the messages: "
                         "look at tokenizer.apply_chat_template(prompt, tokenize=False).")  # fmt: skip
    with_the_last_word, others = unwritten_roles(subject)
    if missing := [*with_the_last_word, *others]:
        told = " and ".join(map(repr, missing))
        return Check(FAMILY, "chat_template", Status.FAIL if with_the_last_word else Status.WARN,
                     f"what {told} says is never written", {"roles": missing}, "The chat template leaves messages of "
                     "that role out: name roles as it does, or mend it.")  # fmt: skip
    return Check(FAMILY, "chat_template", Status.PASS, "the data is messages, and the chat template writes each role")
