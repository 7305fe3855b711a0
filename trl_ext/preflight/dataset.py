"""Faults of the data that no trainer names."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from .check import Check, Status, above, share
from .limits import DUPLICATES, TOO_LONG
from .subject import MOST_ROWS, MOST_ROWS_QUICK, Subject

FAMILY = "dataset"


def dataset(subject: Subject) -> Iterator[Check]:
    data = subject.dataset
    if data is None or not hasattr(data, "select"):
        yield Check(FAMILY, "rows", Status.SKIP, "the data is a stream, or made by an environment: nothing to count")
        return
    count = len(data)
    if not count:
        yield Check(FAMILY, "rows", Status.FAIL, "the dataset is empty", {"rows": 0}, "Choose another split, or see "
                    "what filtered all rows out (max_length?).")  # fmt: skip
        return
    yield _enough(subject, count)
    rows = data.select(range(min(count, MOST_ROWS_QUICK if subject.quick else MOST_ROWS)))
    names = [name for name in ("prompt", "text", "messages", "chosen", "rejected") if name in rows.column_names]
    if subject.kind == "rl" and "prompt" in names:
        yield from _prompts(subject, rows["prompt"][:])
        return
    texts = [list(map(text_of, rows[name][:])) for name in names] or [
        list(map(str, rows[name][:])) for name in _ids(rows)
    ]
    if not texts:
        yield Check(FAMILY, "texts", Status.SKIP, f"no column of texts among {', '.join(rows.column_names)}")
        return
    whole = ["\n".join(parts) for parts in zip(*texts, strict=True)]
    yield _empty(_blank_in_tokens(subject, rows) or _blank(whole))
    yield _twice(whole)
    if subject.kind in ("sft", "reward", "dpo"):
        yield _cut_off(subject, rows)


def _ids(rows: Any) -> list[str]:
    """Columns of a dataset that is tokenised already, as supervised trainers do when they are built."""
    return [name for name in ("input_ids", "chosen_ids", "rejected_ids", "prompt_ids") if name in rows.column_names]


def text_of(value: Any) -> str:
    """A text, or a list of messages as one."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(str(part.get("content", "")) if isinstance(part, dict) else str(part) for part in value)
    return str(value)


def _blank(texts: list[str]) -> list[bool]:
    return [not text.strip() for text in texts]


def _blank_in_tokens(subject: Subject, rows: Any) -> list[bool]:
    """Of a tokenised dataset, whether one of a row's texts is white space and tokens that end it; `[]` of another."""
    columns = [name for name in _ids(rows) if name != "prompt_ids"]
    texts = [subject.tokenizer.batch_decode(rows[name][:], skip_special_tokens=True) for name in columns]
    return [any(_blank(list(row))) for row in zip(*texts, strict=True)]


def _enough(subject: Subject, count: int) -> Check:
    prompts = subject.rows_a_step
    if subject.kind == "rl":
        prompts = max(subject.completions_a_generation // subject.num_generations, 1)
    makes_a_step = bool(subject.batches) and (count >= prompts or subject.kind != "rl")  # those take a smaller batch
    status = Status.PASS if makes_a_step else Status.FAIL
    what = "prompts" if subject.kind == "rl" else "examples"
    return Check(
        FAMILY, "rows", status, f"{count:,} {what}, {prompts} in a batch",
        {"rows": count, "rows_in_a_batch": prompts},
        "" if status == Status.PASS else f"There are fewer {what} than a batch takes: no step is made. Lower the batch "
        "size, or give more data.",
    )  # fmt: skip


def _prompts(subject: Subject, prompts: list) -> Iterator[Check]:
    texts = [text_of(prompt) for prompt in prompts]
    yield _empty(_blank(texts))
    yield _twice(texts)
    yield _room(subject, prompts)
    trailing = share(text != text.rstrip() and bool(text.strip()) for text in texts if isinstance(text, str))
    if trailing > 0.5 and not isinstance(prompts[0], list):
        yield Check(
            FAMILY, "white_space", Status.WARN, f"{trailing:.0%} of the prompts end with white space",
            {"share": trailing}, "Most tokenizers join a space to the next word: a policy asked to go on behind one "
            "meets a place it has never seen. Strip the prompts.",
        )  # fmt: skip


def _empty(rows: list[bool]) -> Check:
    empty = share(rows)
    status = Status.PASS if not empty else Status.FAIL if empty > 0.01 else Status.WARN
    return Check(FAMILY, "empty", status, f"{empty:.1%} of {len(rows):,} rows are empty",
                 {"empty_share": empty}, "" if not empty else "Filter rows without text out.")  # fmt: skip


def _twice(texts: list[str]) -> Check:
    counts = Counter(texts)
    repeated = 1.0 - len(counts) / len(texts)
    status = above(repeated, *DUPLICATES)
    most, times = counts.most_common(1)[0]
    return Check(
        FAMILY, "duplicates", status, f"{repeated:.1%} of {len(texts):,} rows stand in the data already",
        {"duplicate_share": repeated, "most_often": times},
        "" if status == Status.PASS else f"{most[:60]!r} stands there {times} times: a policy learns it by heart. "
        "Remove duplicates.",
    )  # fmt: skip


def _room(subject: Subject, prompts: list) -> Check:
    """Prompt and completion must fit into the positions that the model has."""
    config = subject.policy.config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None:
        return Check(FAMILY, "length", Status.SKIP, "the model does not say how many positions it has")
    if isinstance(prompts[0], list) and not subject.chat_template:
        return Check(FAMILY, "length", Status.SKIP, "messages without a chat template have no length")
    longest = getattr(subject.trainer, "max_completion_length", None) or 0
    lengths = _lengths(subject, prompts)
    over = share(length + longest > positions for length in lengths)
    status = above(over, *TOO_LONG)
    ordered = sorted(lengths)
    numbers = {"too_long_share": over, "longest": ordered[-1], "median": ordered[len(ordered) // 2],
               "positions": positions, "max_completion_length": longest}  # fmt: skip
    return Check(
        FAMILY, "length", status,
        f"prompts have {ordered[len(ordered) // 2]} tokens (median) to {ordered[-1]}; with {longest} of a completion "
        f"{over:.0%} do not fit into {positions} positions",
        numbers, "" if status == Status.PASS else "Filter long prompts out, or lower max_completion_length.",
    )  # fmt: skip


def _lengths(subject: Subject, prompts: list) -> list[int]:
    tokenizer = subject.tokenizer
    if isinstance(prompts[0], list):
        template = getattr(subject.trainer, "chat_template", None)
        tools = getattr(subject.trainer, "tools", None) or None
        return [
            len(tokenizer.apply_chat_template(prompt, tools=tools, chat_template=template, add_generation_prompt=True,
                                              tokenize=True, return_dict=True)["input_ids"])
            for prompt in prompts
        ]  # fmt: skip
    return [len(ids) for ids in tokenizer(list(prompts))["input_ids"]]


def _cut_off(subject: Subject, rows: Any) -> Check:
    """Trainers cut texts off, or drop them, when they are built: what is at the limit was longer, or just fits."""
    limit = getattr(subject.args, "max_length", None)
    columns = _ids(rows)
    if limit is None or not columns:
        return Check(FAMILY, "length", Status.SKIP, "no max_length, or no token ids in the dataset")
    lengths = [max(len(row[name]) for name in columns) for row in rows]
    over = share(length >= limit for length in lengths)
    packed = getattr(subject.args, "packing", False)
    status = Status.PASS if packed else above(over, *TOO_LONG)
    return Check(
        FAMILY, "length", status, f"{over:.1%} of the texts have max_length = {limit} tokens or more; the longest "
        f"{max(lengths)}", {"at_limit_share": over, "longest": max(lengths), "max_length": limit},
        "" if status == Status.PASS else "They are cut off, and with them their end: raise max_length, or filter them.",
    )  # fmt: skip
