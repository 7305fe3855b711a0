"""What each reward function gives, how long it takes, and whether nonsense earns as much as an answer."""

import time
from collections.abc import Iterator

import numpy as np

from trl_ext.callbacks._reward_source import reward_source
from trl_ext.monitor.alerts import Severity
from trl_ext.rewards.calls import Call
from trl_ext.rewards.checking import CheckedReward
from trl_ext.rewards.json_text import object_spans
from trl_ext.rewards.probing import probing
from trl_ext.rewards.reliability.judge import RewardReliability
from trl_ext.rewards.reliability.probes import probe
from trl_ext.rewards.text import completion_text

from .advantages import total_rewards
from .check import Check, Status, share, worse
from .limits import VALID_JSON
from .subject import Subject

FAMILY = "rewards"
PROBES = 8
NONSENSE = {"an empty text": "", "one letter": "a", "a loop": "the the the the the the the the"}


def rewards(subject: Subject) -> Iterator[Check]:
    if subject.kind != "rl":
        yield Check(FAMILY, "functions", Status.SKIP, f"{subject.name} has no reward functions")
        return
    yield from _functions(subject)
    yield _in_place(subject)
    yield _json(subject)
    source = reward_source(subject.trainer)
    if source is None or not source.can_score:
        yield Check(FAMILY, "probes", Status.SKIP, "rewards that belong to an episode cannot be asked again")
        return
    rollouts = subject.rollouts
    call = Call(rollouts.prompts, rollouts.completions, rollouts.completion_ids, {"inputs": rollouts.rows})
    yield from _probed(subject, source, call)
    yield _nonsense(subject, source, call)


def _functions(subject: Subject) -> Iterator[Check]:
    given = subject.rollouts.rewards.numpy()
    weights = [float(weight) for weight in subject.trainer.reward_weights]
    for i, name in enumerate(subject.trainer.reward_func_names):
        column = given[:, i]
        known = column[np.isfinite(column)]
        failures = int(getattr(subject.trainer.reward_funcs[i], "failures", 0) or 0)
        numbers = {"mean": float(known.mean()) if len(known) else None,
                   "std": float(known.std()) if len(known) else None, "weight": weights[i],
                   "without_value": 1.0 - len(known) / len(column), "failures": failures}  # fmt: skip
        if not len(known):
            yield Check(FAMILY, f"function {name}", Status.FAIL, f"{name} gave no number to any of {len(column)} "
                        "completions", numbers, "trl-ext rewards try --text '...' shows what it does.")  # fmt: skip
            continue
        constant = bool(known.max() == known.min()) and weights[i] != 0 and len(known) > 1
        status = Status.WARN if constant or failures else Status.PASS
        message = f"{name}: {known.mean():.3g} on average, standard deviation {known.std():.3g}, weight {weights[i]:g}"
        advice = f"It failed on {failures} completions: reward_failures.jsonl of a run holds them." if failures else ""
        if constant:
            message += f"; the same for all {len(known)} completions"
            advice = advice or "A constant teaches nothing: the task is out of reach, or solved, or it is dead."
        yield Check(FAMILY, f"function {name}", status, message, numbers, advice)


def _in_place(subject: Subject) -> Check:
    changed = " and ".join(subject.rollouts.changed)
    if not changed:
        return Check(FAMILY, "in place", Status.PASS, "no function changes what it is given")
    names = zip(subject.trainer.reward_func_names, subject.trainer.reward_funcs, strict=True)
    plain = [name for name, function in names if not isinstance(function, CheckedReward)]  # that one gives copies
    return Check(
        FAMILY, "in place", Status.WARN, f"{' or '.join(plain)} changes its {changed} in place", {"functions": plain},
        "The functions after it, and the table of samples, see the changed texts: let it work on copies, or name it in "
        "reward_funcs of load_reward_funcs, which gives copies.",
    )  # fmt: skip


def _json(subject: Subject) -> Check:
    names = list(subject.trainer.reward_func_names)
    masked = getattr(subject.args, "mask", "") == "json_actions"
    asked = masked or getattr(subject.args, "invalid_json", "keep") != "keep" or any("json" in name for name in names)
    if not asked:
        return Check(FAMILY, "json", Status.SKIP, "nothing asks for JSON")
    texts = [completion_text(completion) for completion in subject.rollouts.completions]
    valid = share(bool(object_spans(text)) for text in texts)
    judge = getattr(subject.trainer, "_json", None)
    if judge is not None:  # turn by turn, and with the schema
        output = subject.rollouts.output
        own = output.get("tool_mask", output["completion_mask"])
        valid = judge.find(output["completion_ids"], own * output["completion_mask"]).valid.float().mean().item()
    least, none = VALID_JSON
    status = Status.PASS if valid >= least else Status.WARN if valid >= none else Status.FAIL if masked else Status.WARN
    return Check(
        FAMILY, "json", status, f"{valid:.0%} of {len(texts)} completions act in valid JSON", {"valid_share": valid},
        "" if status == Status.PASS else "Teach the format first (recipes/sft.py on demonstrations), or show it in the "
        "prompt: reinforcement learning sharpens what is sampled now and then, it does not invent it.",
    )  # fmt: skip


def _probed(subject: Subject, source, call: Call) -> Iterator[Check]:
    """The rules of RewardReliabilityCallback on this batch."""
    reliability = RewardReliability(source.names, source.weights)
    reliability.observe(0, call.prompts, call.completions, subject.rollouts.rewards.numpy())
    picked = call.take(range(min(PROBES, len(call.completions))))
    start = time.monotonic()
    reliability.observe_probes(probe(picked, reliability.window.weights, source.score))
    seconds = time.monotonic() - start
    findings = {rule: f for rule, f in reliability.report().findings.items() if f.severity >= Severity.WARNING}
    if not findings:
        message = (
            f"{len(picked.completions)} completions get the same again, alone and in another order; white space, case "
            "and doubled text move them little"
        )
        yield Check(FAMILY, "probes", Status.PASS, message, {"seconds": seconds})
    for rule, finding in findings.items():
        status = Status.FAIL if finding.severity >= Severity.CRITICAL else Status.WARN
        yield Check(FAMILY, rule, status, finding.message, {}, finding.advice)


def _nonsense(subject: Subject, source, call: Call) -> Check:
    """What says nothing must not earn what the best tenth earns."""
    totals = total_rewards(subject, subject.rollouts).numpy()
    known = totals[np.isfinite(totals)]
    if len(known) < 8 or known.std() == 0:
        return Check(FAMILY, "nonsense", Status.SKIP, "rewards have no spread that nonsense could be compared with")
    picked = call.take(range(min(4, len(call.completions))))
    weights, best = np.array(source.weights), float(np.quantile(known, 0.9))
    earned: dict[str, float] = {}
    for name, text in NONSENSE.items():
        completions = [_like(completion, text) for completion in picked.completions]
        with probing():
            given = source.score(picked._replace(completions=completions, completion_ids=None))
        earned[name] = float(np.nansum(given * weights, axis=1).mean()) if np.isfinite(given).any() else float("nan")
    paid = {name: value for name, value in earned.items() if value >= best}
    status = worse(Status.PASS, *(Status.WARN for _ in paid))
    told = ", ".join(f"{name} {value:.3g}" for name, value in earned.items())
    return Check(
        FAMILY, "nonsense", status, f"{told}; the best tenth of the samples earn {best:.3g} and more",
        {name.replace(" ", "_"): None if value != value else value for name, value in earned.items()},
        "" if not paid else f"{' and '.join(paid)} would be learned: add a length or repetition reward, or let the "
        "function give None to what is no answer.",
    )  # fmt: skip


def _like(completion, text: str):
    """The text as a completion of that one's form."""
    return [{"role": "assistant", "content": text}] if isinstance(completion, list) else text
