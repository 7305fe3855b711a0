"""Which tokens learn, against what should, and shown on a real sample."""

from collections.abc import Iterator

import torch

from trl_ext.functional import learning_mask

from .check import Check, Status, share
from .gradient import ROWS, inputs_of, run_backward
from .labels import labels, pairs
from .subject import Subject

FAMILY = "masks"


def masks(subject: Subject) -> Iterator[Check]:
    if subject.kind == "rl":
        yield _padding(subject)
        yield _ends(subject)
        yield _tools(subject)
        yield _learning(subject)
        return
    if subject.kind == "sft":
        yield from labels(subject)
        return
    yield pairs(subject)


# Rollouts ---------------------------------------------------------------------------------------------------------


def _padding(subject: Subject) -> Check:
    """Prompts end where completions begin; only padding is masked in them."""
    output = subject.rollouts.output
    mask = output["prompt_mask"].bool()
    right = bool(mask[:, -1].all())
    no_holes = bool((mask.int().diff(dim=1) >= 0).all())
    hidden = output["prompt_ids"][~mask]
    only_padding = bool((hidden == subject.tokenizer.pad_token_id).all())
    empty = int((mask.sum(1) == 0).sum())
    pad = subject.tokenizer.pad_token_id
    attended = share(run >= (2 if pad in (*subject.eos_ids, subject.tokenizer.bos_token_id) else 1)
                     for run in _leading(output["prompt_ids"], mask, pad))  # fmt: skip
    fine = right and no_holes and only_padding and not attended
    numbers = {"padded_share": 1.0 - mask.float().mean().item(), "rows_without_prompt": empty,
               "attended_share": attended}  # fmt: skip
    if fine:
        return Check(FAMILY, "prompt", Status.PASS, "prompts are padded on the left and nothing but padding is masked "
                     f"({numbers['padded_share']:.0%} of their places)", numbers)  # fmt: skip
    what = (
        f"{empty} prompts have no tokens" if empty else "prompts do not end where completions begin" if not right
        else "prompts are masked in the middle" if not no_holes
        else f"padding before {attended:.0%} of the prompts is attended to" if attended
        else "tokens that are no padding are masked in prompts"
    )  # fmt: skip
    return Check(FAMILY, "prompt", Status.FAIL, what, numbers,
                 "Look at the tokenizer's padding_side ('left' where a policy samples), at empty prompts, and at who "
                 "made the attention mask.")  # fmt: skip


def _leading(ids: torch.Tensor, mask: torch.Tensor, token: int) -> list[int]:
    """How often each row begins with it, of what is attended to."""
    rows = (row[keep].tolist() for row, keep in zip(ids, mask, strict=True))
    return [next((i for i, one in enumerate(row) if one != token), len(row)) for row in rows]


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


def _tools(subject: Subject) -> Check:
    """What a tool answered is masked, and of the rest what `mask` and `invalid_json` say: worked out again from the
    messages, and from what the loop of tools marked before the trainer took it over."""
    rollouts, trainer = subject.rollouts, subject.trainer
    asked = getattr(subject.args, "mask", "completion") == "json_actions"
    output = rollouts.output
    if rollouts.own is None and not asked:
        learns = learning_mask(output)
        missing = int(((output["completion_mask"] != learns) & learns.any(1, keepdim=True)).sum())
        if missing:
            return Check(FAMILY, "tools", Status.WARN, f"{missing} tokens of completions do not learn, though all are "
                         "the policy's own", {"wrong_tokens": missing}, "Look at who makes tool_mask: is it off by "
                         "one?")  # fmt: skip
        return Check(FAMILY, "tools", Status.SKIP, "all of a completion is the policy's own")
    own = torch.zeros_like(output["completion_mask"])
    for row, ids in enumerate(rollouts.completion_ids):
        own[row, : len(ids)] = torch.tensor(rollouts.own[row] if rollouts.own is not None else [1] * len(ids))
    unmasked = _unmasked_answers(subject, own)
    learns = learning_mask(output)
    wrong = learns > own  # tokens of somebody else
    if asked:
        actions = trainer._json.find(output["completion_ids"], own)
        kept = actions.valid if subject.args.invalid_json != "keep" else torch.ones_like(actions.valid)
        there = kept & learns.any(1)
        wrong |= (learns != actions.mask * own) & there.unsqueeze(1)
    count, share_masked = int(wrong.sum()), 1.0 - own.sum().item() / max(sum(map(len, rollouts.completion_ids)), 1)
    numbers = {"wrong_tokens": count, "answers_not_masked": unmasked, "masked_share": share_masked}
    what = "the actions" if asked else "its own tokens"
    if not count and not unmasked:
        message = f"the policy learns from {what}; {share_masked:.0%} of the tokens are answers of tools, and masked"
        return Check(FAMILY, "tools", Status.PASS, message, numbers)
    told = f"{unmasked} answers of tools are not masked" if unmasked else f"{count} tokens are masked otherwise"
    advice = "Look at env_mask of the rollout_func, and at who changes tool_mask: what a tool said would be trained."
    return Check(FAMILY, "tools", Status.FAIL, f"{told} ({what} should learn)", numbers, advice)


def _unmasked_answers(subject: Subject, own: torch.Tensor) -> int:
    """Answers of tools, by the messages, whose text is in no masked run of tokens."""
    missing = 0
    for row, completion in enumerate(subject.rollouts.completions):
        if not isinstance(completion, list):
            return 0
        ids = subject.rollouts.completion_ids[row]
        masked = "".join(
            subject.tokenizer.decode([token]) if not mine else "\0"
            for token, mine in zip(ids, own[row].tolist(), strict=False)
        )
        answers = [m["content"] for m in completion if m.get("role") == "tool" and isinstance(m.get("content"), str)]
        missing += sum(bool(answer.strip()) and answer.strip() not in masked for answer in answers)
    return missing


def _learning(subject: Subject) -> Check:
    """The loss itself is asked: where is its gradient by the log-probabilities not zero?"""
    backward = run_backward(subject)
    by_token = backward.token_gradient
    subject.policy.zero_grad(set_to_none=True)
    if by_token is None:
        return Check(FAMILY, "learning", Status.SKIP, "the loss takes no log-probabilities that could be looked at")
    expected = learning_mask(inputs_of(subject, ROWS)).bool()
    learns = by_token != 0
    extra, missing = int((learns & ~expected).sum()), int((expected & ~learns).sum())
    total = int(expected.sum())
    numbers = {"tokens": total, "learn_and_should_not": extra, "should_learn_and_do_not": missing}
    partly = getattr(subject.args, "top_entropy_quantile", 1.0) < 1.0
    clipped = missing and not extra and partly
    if total and not extra and (not missing or clipped):
        kept = learning_mask(subject.rollouts.output).float().sum().item()
        whole = subject.rollouts.output["completion_mask"].float().sum().item()
        return Check(FAMILY, "learning", Status.PASS, f"the loss moves exactly the tokens that the mask names: "
                     f"{kept / max(whole, 1):.0%} of the completions' tokens", numbers)  # fmt: skip
    if not total and not subject.is_scored:
        return Check(FAMILY, "learning", Status.SKIP, "no completion has a reward: see advantages")
    message = (
        "no token of a completion learns" if not total
        else f"{extra} tokens learn that should not, {missing} should and do not (of {total} in {len(expected)} texts)"
    )  # fmt: skip
    return Check(FAMILY, "learning", Status.FAIL, message, numbers,
                 "A mask is off by one, or padding, prompt or a tool's answer is in the loss; with "
                 "mask='json_actions' a policy that writes no JSON has nothing to learn from.")  # fmt: skip
