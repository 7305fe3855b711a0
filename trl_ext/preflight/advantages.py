"""The user's rewards, and what the trainer makes of them."""

from collections.abc import Iterator

import numpy as np
import torch

from trl_ext.rewards.reliability.window import totals_of

from .check import Check, Status, above, share
from .limits import LARGE_ADVANTAGES, TRUNCATED, TRUNCATED_AND_MASKED, UNSCORED, ZERO_VARIANCE
from .subject import Rollouts, Subject

FAMILY = "advantages"


def advantages(subject: Subject) -> Iterator[Check]:
    if subject.kind != "rl":
        yield Check(FAMILY, "groups", Status.SKIP, f"{subject.name} has no rewards")
        return
    rollouts = subject.rollouts
    totals = total_rewards(subject, rollouts)
    yield _scored(totals)
    groups = totals.view(-1, subject.num_generations)
    yield _spread(subject, groups)
    yield _advantages(subject, groups)
    yield _scale(subject)
    yield _truncated(subject)
    if getattr(subject.trainer, "tools", None):
        yield _tools(subject)


def total_rewards(subject: Subject, rollouts: Rollouts) -> torch.Tensor:
    """`(completions,)`: the weighted sum, NaN where every function gave None."""
    weights = np.array([float(weight) for weight in subject.trainer.reward_weights])
    return torch.from_numpy(totals_of(rollouts.rewards.double().numpy(), weights)).float()


def _scored(totals: torch.Tensor) -> Check:
    missing = totals.isnan().float().mean().item()
    status = above(missing, *UNSCORED)
    known = totals[~totals.isnan()]
    if not len(known):
        return Check(FAMILY, "scored", Status.FAIL, f"none of {len(totals)} completions has a reward",
                     {"unscored": 1.0}, "All reward functions gave None or NaN: see trl-ext rewards try.")  # fmt: skip
    spread = known.std(unbiased=False).item()
    message = (
        f"reward {known.mean():.3g} on average, standard deviation {spread:.3g}, {known.min():.3g} to "
        f"{known.max():.3g} ({len(totals)} completions, {missing:.0%} without a reward)"
    )
    numbers = {"mean": known.mean().item(), "std": spread, "min": known.min().item(), "max": known.max().item(),
               "unscored": missing}  # fmt: skip
    advice = "" if status == Status.PASS else "Completions without a reward teach nothing: see why the functions fail."
    return Check(FAMILY, "scored", status, message, numbers, advice)


def _spread(subject: Subject, groups: torch.Tensor) -> Check:
    if not subject.is_scored:
        return Check(FAMILY, "groups", Status.SKIP, "no completion has a reward")
    if subject.num_generations == 1:
        message = "one completion a prompt: there are no groups to compare in"
        return Check(FAMILY, "groups", Status.SKIP, message)
    flat = [bool(known.numel() < 2 or known.max() == known.min()) for known in (row[~row.isnan()] for row in groups)]
    dead = share(flat)
    status = above(dead, *ZERO_VARIANCE)
    count, size = groups.shape
    return Check(
        FAMILY, "groups", status,
        f"{dead:.0%} of {count} groups of {size} have the same reward for all their completions",
        {"zero_variance_share": dead, "groups": count, "group_size": size},
        "" if status == Status.PASS else "Such groups have no gradient. Raise num_generations or temperature, give a "
        "denser reward, or choose prompts that are neither always nor never solved.",
    )  # fmt: skip


def _advantages(subject: Subject, groups: torch.Tensor) -> Check:
    made = subject.rollouts.output["advantages"].float().cpu()
    if not made.isfinite().all():
        return Check(FAMILY, "baseline", Status.FAIL, "advantages are not finite",
                     {"nonfinite": int((~made.isfinite()).sum())}, "A reward is infinite, or a group has no spread to "
                     "divide by.")  # fmt: skip
    numbers = {"mean": made.mean().item(), "std": made.std(unbiased=False).item(), "max": made.abs().max().item()}
    expected = _leave_one_out(subject, groups)
    agreement = _agreement(made, groups)
    numbers["correlation"] = agreement
    if agreement is not None and agreement < 0:
        return Check(FAMILY, "baseline", Status.FAIL, f"advantages fall where rewards rise: {agreement:.2f}", numbers,
                     "A sign: the policy would learn what it is punished for.")  # fmt: skip
    if expected is None:
        return Check(FAMILY, "baseline", Status.PASS, f"advantages are finite, {made.abs().max():.3g} at most in size",
                     numbers)  # fmt: skip
    difference = (made.view(-1) - expected.view(-1)).abs().max().item()
    tolerance = 1e-3 * max(expected.abs().max().item(), 1.0)
    status = Status.PASS if difference <= tolerance else Status.FAIL
    return Check(
        FAMILY, "baseline", status,
        f"advantages are the reward less the mean of the prompt's other completions, to {difference:.2g}",
        numbers | {"max_difference": difference},
        "" if status == Status.PASS else "Rewards or advantages were changed on the way: a subclass, another baseline, "
        "or a KL that does not start at zero.",
    )  # fmt: skip


def _scale(subject: Subject) -> Check:
    """Of what finally weighs the log-probabilities, whatever was divided by on the way."""
    made = subject.rollouts.output["advantages"].float()
    spread = made[made.isfinite()].std(unbiased=False).item()
    status = above(spread, *LARGE_ADVANTAGES)
    return Check(
        FAMILY, "scale", status, f"advantages have a standard deviation of {spread:.3g}", {"std": spread},
        "" if status == Status.PASS else "Beside them neither the KL nor an entropy bonus or a value loss weighs "
        "anything, and each gradient is clipped: bring the reward to a scale of about one, or set advantage_normalize "
        "(GRPO and RLOO: scale_rewards, normalize_advantages).",
    )  # fmt: skip


def _agreement(advantages: torch.Tensor, groups: torch.Tensor) -> float | None:
    """Correlation of a completion's advantage, summed over its tokens, with its reward less its group's mean."""
    one = advantages if advantages.dim() == 1 else advantages.sum(1)
    rewards = groups - groups.nanmean(1, keepdim=True) if groups.size(1) > 1 else groups - groups.nanmean()
    known = ~rewards.flatten().isnan()
    pair = torch.stack([one[known], rewards.flatten()[known]])
    if pair.size(1) < 4 or bool((pair.std(1) < 1e-9).any()):
        return None
    return float(torch.corrcoef(pair)[0, 1])


def _leave_one_out(subject: Subject, groups: torch.Tensor) -> torch.Tensor | None:
    """Computed by itself, where that is what the trainer is meant to do; else None."""
    args = subject.args
    plain = subject.name == "RLOOTrainer" and not args.normalize_advantages and args.reward_clip_range is None
    ours = (subject.name == "ReinforceLOOTrainer" and args.baseline == "loo" and args.advantage_normalize == "none"
            and args.invalid_json == "keep")  # fmt: skip
    turns = any("turn_rewards" in row for row in subject.rollouts.rows) or getattr(
        subject.trainer, "environments", None
    )
    if not (plain or ours) or turns or groups.isnan().any():
        return None
    if getattr(args, "beta", 0.0) and abs(_first_kl(subject)) > 1e-3:  # dropout, or another reference: told elsewhere
        return None
    size = groups.size(1)
    return torch.stack([groups[:, i] - groups[:, [j for j in range(size) if j != i]].mean(1) for i in range(size)], 1)


def _first_kl(subject: Subject) -> float:
    """As the trainer logged it of these rollouts; 0 where it logged none."""
    logged = subject.trainer._metrics["train"]
    values = [value for name in ("objective/kl", "kl") for value in logged.get(name, [])[:1]]
    return max(values, key=abs, default=0.0)


def _tools(subject: Subject) -> Check:
    """Episodes that a tool ended by raising, hanging or saying too much; stock trainers count failed calls alone."""
    logged = {name: values[0] for name, values in subject.trainer._metrics["train"].items() if values}
    ended = {name.rpartition("/")[2]: share for name, share in logged.items() if name.startswith("tools/ended/")}
    failed = logged.get("tools/failure_frequency", 0.0)
    calls = logged.get("tools/call_frequency", 0.0)
    worst = max([*ended.values(), failed])
    status = Status.FAIL if worst >= 0.5 else Status.WARN if worst > 0.1 or calls == 0 else Status.PASS
    told = ", ".join(f"{share:.0%} {reason}" for reason, share in ended.items() if share) or "none ended by a tool"
    return Check(
        FAMILY, "tool_calls", status, f"{calls:.2g} calls of tools an episode, {failed:.0%} failed; episodes: {told}",
        {"call_frequency": calls, "failure_frequency": failed, **ended},
        "" if status == Status.PASS else "Mend the tool (the log names the first error of each), give it more time "
        "(tool_timeout) or a shorter answer; a policy that calls none must be taught the format first.",
    )  # fmt: skip


def _truncated(subject: Subject) -> Check:
    ids, limit = subject.rollouts.completion_ids, getattr(subject.trainer, "max_completion_length", None)
    ended = [bool(row) and row[-1] in [*subject.eos_ids, subject.tokenizer.pad_token_id] for row in ids]
    cut = 1.0 - share(ended)
    masked = getattr(subject.args, "mask_truncated_completions", False)
    status = above(cut, *(TRUNCATED_AND_MASKED if masked else TRUNCATED))
    advice = ""
    if status != Status.PASS:
        advice = "Raise max_completion_length, or teach the policy to stop; "
        if masked:
            advice += "with mask_truncated_completions=True none of these learns."
        else:
            advice += "until then it learns from texts without an end."
    lengths = [len(row) for row in ids]
    return Check(
        FAMILY, "truncated", status,
        f"{cut:.0%} of completions reach the limit of {limit} tokens without an end; they have "
        f"{sum(lengths) / len(lengths):.1f} tokens on average",
        {"truncated_share": cut, "mean_length": sum(lengths) / len(lengths), "limit": limit}, advice,
    )  # fmt: skip
