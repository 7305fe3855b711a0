"""From measures to words: what is wrong, how bad it is, and what to change."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rules.base import Finding
from trl_ext.monitor.rules.reward_components import PENALTIES
from trl_ext.rewards.reliability.components import LEAST, Component, is_lost, says, total_varies
from trl_ext.rewards.reliability.edits import BOUNDS, PAYS, bounds_for
from trl_ext.rewards.reliability.gold import DISAGREES as GOLD_DISAGREES
from trl_ext.rewards.reliability.gold import Example
from trl_ext.rewards.reliability.gold_trend import GoldTrend
from trl_ext.rewards.reliability.stability import Stability
from trl_ext.rewards.text import completion_text

_METRIC = "reward_reliability/"
_SILENT = 3  # evaluations
_RARELY = 0.02  # of the completions
_A_FULL_LOOK = 500  # completions after which a function that gave the same to all of them is worth a warning
_OFFSETS = {
    "whitespace": ("white space at the end", "Strip the text before it is judged."),
    "case": ("upper or lower case", "Compare texts in one case, or accept that case is part of the task."),
    "appended": (
        "a sentence that says nothing",
        "Judge the answer alone, not how much is written; add a length reward with an upper edge.",
    ),
    "doubled": (
        "the same text twice",
        "Give it beside a repetition or length reward, or divide by the length.",
    ),
}
_AGAIN = {
    "again": ("scored again", "The function draws random numbers, or keeps state between calls: seed it, or average."),
    "single": (
        "scored alone instead of in its batch",
        "Padding or the neighbours in the batch leak into it: check the attention mask, padding_side and pad_token_id.",
    ),
    "order": ("scored in another order", "It depends on the order of the batch: it must judge each completion alone."),
}


class Facts(NamedTuple):
    """What the findings are made of; measures as in `ReliabilityReport`.

    Attributes:
        counted: completions of the window with a reward.
        moved_most: by `<kind>/<probe>` the function that it moved most.
        examples: completions that the two rewards part about.
        probed: completions that were scored again.
    """

    names: list[str]
    components: list[Component]
    measures: dict[str, float]
    completions: int
    counted: int
    stability: Stability | None
    gold: GoldTrend | None
    moved_most: dict[str, str]
    examples: list[Example]
    probed: int


def findings_of(facts: Facts) -> dict[str, Finding]:
    """By the name of the rule, worst first."""
    found: dict[str, Finding] = {}
    for part in (
        _hacking,
        _infinite,
        _probe_set,
        _gold,
        _consistency,
        _components,
        _stability,
        _shortcuts,
        _duplicates,
        _sensitivity,
        _alike,
        _reasoning,
    ):
        for rule, finding in part(facts):
            found.setdefault(rule, finding)
    return dict(sorted(found.items(), key=lambda item: -item[1].severity.rank))


_Found = Iterator[tuple[str, Finding]]


def _hacking(facts: Facts) -> _Found:
    gold = facts.gold
    if gold is None or not gold.parted():
        return
    examples = {f"example_{i + 1}": f"{e.proxy:.3g} / {e.gold:.3g}: {_short(completion_text(e.completion))}"
                for i, e in enumerate(facts.examples)}  # fmt: skip
    yield "reward_hacking_suspected", Finding(
        Severity.ERROR, _METRIC + "gold", gold.gold_change,
        f"from step {gold.first_step} to {gold.last_step} the reward rose by {gold.proxy_change:.2g} standard "
        f"deviations (slope {gold.proxy_slope:+.2g} a step) while the held-back reward fell by "
        f"{-gold.gold_change:.2g} (slope {gold.gold_slope:+.2g})"
        + "".join(f"; rewarded most beside it: {_short(completion_text(e.completion))!r}" for e in facts.examples[:1]),
        "The reward is being hacked. 1. Stop, and go back to the checkpoint before the held-back reward fell. 2. Raise "
        "kl_coef (PPO) or beta (GRPO, RLOO). 3. Read the examples (reward_samples.jsonl), and mend reward_funcs for "
        "what these completions do.",
        {"proxy_slope": gold.proxy_slope, "gold_slope": gold.gold_slope, **examples},
    )  # fmt: skip


def _gold(facts: Facts) -> _Found:
    m = facts.measures
    correlation = m.get("gold/correlation")
    if correlation is not None and correlation < GOLD_DISAGREES:
        yield "reward_disagrees", Finding(
            Severity.WARNING, _METRIC + "agreement", correlation,
            "the reward and the held-back reward rank completions in opposite ways (correlation "
            f"{correlation:+.2f} over the latest {m['gold/compared']:.0f})",
            "1. Check the sign of each weight in reward_funcs. 2. Read the suspicious completions in "
            "reward_samples.jsonl: the reward pays for what the held-back one holds against them.",
        )  # fmt: skip
    if m.get("gold/silent", 0) >= _SILENT:
        yield "held_back_reward_silent", Finding(
            Severity.WARNING, _METRIC + "gold", m["gold/silent"],
            f"the held-back reward gave no number to any completion the last {m['gold/silent']:.0f} times it was asked",
            "Whether the reward is hacked cannot be told without it: ask it about a completion (trl-ext rewards try), "
            "and see the warnings of its failures.",
        )  # fmt: skip


def _probe_set(facts: Facts) -> _Found:
    correlation = facts.measures.get("probe_set/correlation")
    if correlation is not None and correlation < 0.2:
        yield "reward_disagrees", Finding(
            Severity.ERROR if correlation < 0 else Severity.WARNING, _METRIC + "probe_set", correlation,
            f"on the probe set the reward and the known worth have a rank correlation of {correlation:.2f}",
            "1. Check the sign of each weight in reward_funcs. 2. Print the components for the probe set: trl-ext "
            "rewards try. 3. The reward does not measure what the probe set says is good: change it before training.",
        )  # fmt: skip


def _consistency(facts: Facts) -> _Found:
    moved = {name: facts.measures.get(f"consistency/{name}", float("nan")) for name in _AGAIN}
    known = {name: value for name, value in moved.items() if value > 0.05}
    if known:
        name, value = max(known.items(), key=lambda item: item[1])
        if moved["again"] > 0.3 * value:  # what draws numbers moves in every order and alone as well
            name = "again"
        how, advice = _AGAIN[name]
        function = facts.moved_most[f"consistency/{name}"]
        yield "reward_inconsistent", Finding(
            Severity.ERROR if value > 0.5 else Severity.WARNING, _METRIC + "consistency", value,
            f"the same completion {how} gets another reward: by {value:.2g} standard deviations on average "
            f"({facts.probed} completions), most in {function}",
            f"{advice} Look at {function} in reward_funcs.",
            {"function": function},
        )  # fmt: skip


def _components(facts: Facts) -> _Found:
    if all(component.weight == 0 for component in facts.components):
        yield "reward_unweighted", Finding(
            Severity.ERROR, _METRIC + "signal", 0.0,
            "every reward function has the weight 0, so that every completion gets the reward 0",
            "Nothing is trained on: give a function of reward_funcs a weight.",
        )  # fmt: skip
    elif (
        facts.counted >= LEAST
        and any(c.weight and c.std > 0 for c in facts.components)
        and not total_varies(facts.measures["std"], facts.components)
    ):
        yield "reward_cancelled", Finding(
            Severity.ERROR, _METRIC + "signal", 0.0,
            "the functions differ between completions, and their weighted sum does not",
            "Nothing is trained on: one function of reward_funcs undoes the other, check the signs of their weights.",
        )  # fmt: skip
    rare = [c for c in facts.components if c.weight and 0 < c.applies < _RARELY]
    if rare and facts.completions >= _A_FULL_LOOK:
        count = round(rare[0].applies * facts.completions)
        yield "reward_rarely_applies", Finding(
            Severity.INFO, f"reward/{rare[0].name}/mean", rare[0].applies,
            f"{rare[0].name} gave a number to {count} of the last {facts.completions} completions",
            f"Right where few prompts are meant for {rare[0].name} in reward_funcs. Else it returns None for what it "
            "should judge: a column may be missing, or the format another one.",
            {"functions": [c.name for c in rare]},
        )  # fmt: skip
    yield from _dead([component for component in facts.components if component.state in ("dead", "silent")], facts)
    saturated = [component for component in facts.components if component.state == "saturated"]
    if saturated:
        names = ", ".join(component.name for component in saturated)
        yield "reward_component_saturated", Finding(
            Severity.INFO, f"reward/{saturated[0].name}/mean", saturated[0].mean,
            f"{names}: at the highest value for at least 95% of the completions",
            f"What {names} asks for is learnt: lower its weight in reward_funcs, or ask for more.",
            {"functions": [component.name for component in saturated]},
        )  # fmt: skip
    live = says(facts.components)
    lost = [component.name for component, ratio in live if is_lost(ratio)]
    if lost and facts.counted >= LEAST:
        top = live[0][0]
        spread = abs(top.weight) * top.std
        yield "component_dominance", Finding(
            Severity.WARNING if len(lost) == len(live) - 1 else Severity.INFO, f"reward/{top.name}/std", spread,
            f"{top.name} varies by {spread:.3g} in the total, {' and '.join(lost)} by less than 2% of that, which has "
            "no say",
            f"Bring the functions to one scale: lower the weight of {top.name} in reward_funcs, or wrap it in rescale.",
            {"function": top.name, "lost": lost},
        )  # fmt: skip


def _dead(dead: list[Component], facts: Facts) -> _Found:
    """All of them in one finding; the worst first."""
    if not dead:
        return
    never = [c for c in dead if c.state == "silent" or c.worth < 0 or (c.mean == 0 and not _is_penalty(c))]
    said = []
    for component in sorted(dead, key=lambda component: component not in never):
        asked = round(component.applies * facts.completions)
        gave = f"exactly {component.mean:.4g} to each" if component.state == "dead" else "no number to any"
        said.append(f"{component.name} gave {gave} of the last {asked or facts.completions} completions")
    first = (never or dead)[0]
    yield "dead_reward_component", Finding(
        Severity.WARNING if never and facts.completions >= _A_FULL_LOOK else Severity.INFO,
        f"reward/{first.name}/mean", first.mean, "; ".join(said),
        f"1. Ask {first.name} about a completion that should earn it: trl-ext rewards try. 2. It may parse another "
        "format than it sees (messages, tags, a column's name). 3. If all completions satisfy it, drop it from "
        "reward_funcs: it teaches nothing.",
        {"functions": [component.name for component in dead]},
    )  # fmt: skip


def _is_penalty(component: Component) -> bool:
    """By its weight or its name: one that is 0 was never due."""
    return component.weight < 0 or any(word in component.name.lower() for word in PENALTIES)


def _infinite(facts: Facts) -> _Found:
    counts = {name[9:]: count for name, count in facts.measures.items() if name.startswith("infinite/")}
    if counts:
        name, count = max(counts.items(), key=lambda item: item[1])
        yield "reward_infinite", Finding(
            Severity.ERROR, f"reward/{name}/mean", count,
            f"{name} gave an infinite reward to {count:.0f} completions",
            f"One is enough to turn the weights into NaN. Load {name} through load_reward_funcs (or CheckedReward), "
            "which counts it as a failure, or mend the division in it; a clip in reward_funcs bounds the rest.",
            {"function": name},
        )  # fmt: skip


def _stability(facts: Facts) -> _Found:
    stability = facts.stability
    if stability is None:
        return
    if stability.sudden > 1.0:
        yield "reward_jump", Finding(
            Severity.WARNING, _METRIC + "stability", stability.after,
            f"at step {stability.step} the mean reward jumped from {stability.before:.3g} to "
            f"{stability.after:.3g}, {abs(stability.jump):.2g} standard deviations within four steps",
            "1. Something outside of training changed the reward: a judge's version, an endpoint, a schedule in "
            "reward_funcs. 2. The prompts changed (a curriculum). 3. The policy jumped: see kl and grad_norm.",
            {"jump": stability.jump},
        )  # fmt: skip
    if stability.fall > 1.0 and stability.sudden <= 1.0:
        yield "reward_drop", Finding(
            Severity.WARNING, _METRIC + "stability", stability.drift,
            f"the mean reward has fallen by {-stability.drift:.3g} since step {stability.since}, "
            f"{stability.fall:.2g} standard deviations",
            "Training makes it worse. 1. The sign of a weight in reward_funcs may be wrong, or a schedule lowers it. "
            "2. The prompts became harder (a curriculum). 3. Lower learning_rate: see kl and entropy.",
            {"fall": stability.fall},
        )  # fmt: skip
    if (stability.spread < 0.1 and not stability.rises) or stability.spread > 5:
        yield "reward_spread_changed", Finding(
            Severity.INFO, _METRIC + "stability", stability.spread,
            f"the spread of the reward within a step is {stability.spread:.2g} times that of the start",
            "If it vanished, completions no longer differ in what reward_funcs measure: nothing is left to learn. If "
            "it grew, look for outliers in reward_samples.jsonl and clip them (reward clip).",
        )  # fmt: skip


def _shortcuts(facts: Facts) -> _Found:
    m = facts.measures
    length, repetition = m.get("correlation/length"), m.get("correlation/repetition")
    if length is not None and abs(length) > 0.8 and facts.counted >= LEAST:
        grown = m["length"] / max(m.get("length_start", m["length"]), 1e-9)
        paid = length > 0 and grown > 1.33
        yield "reward_pays_for_length", Finding(
            Severity.WARNING if paid else Severity.INFO, _METRIC + "independence", length,
            f"reward and length have a rank correlation of {length:+.2f}; the median completion has {m['length']:.3g} "
            f"words, {m.get('length_start', m['length']):.3g} at the start",
            "Take length out of the reward: divide by it, or add a length reward with an upper edge to reward_funcs.",
        )  # fmt: skip
    if repetition is not None and repetition > 0.6 and facts.counted >= LEAST:
        grown = m["repetition"] - m.get("repetition_start", m["repetition"])
        yield "reward_pays_for_repetition", Finding(
            Severity.WARNING if grown > 0.1 else Severity.INFO, _METRIC + "independence", repetition,
            f"reward and repetition have a rank correlation of {repetition:+.2f}; {m['repetition']:.0%} of the pairs "
            f"of words repeat, {m.get('repetition_start', m['repetition']):.0%} at the start",
            "Add the reward repetition or loops to reward_funcs, or score each sentence once.",
        )  # fmt: skip


def _duplicates(facts: Facts) -> _Found:
    share = facts.measures.get("distinct")
    if share is not None and share < 0.4 * facts.measures["distinct_start"]:
        yield "completions_collapse", Finding(
            Severity.WARNING, _METRIC + "diversity", share,
            f"of the last completions only {share:.0%} are distinct",
            "The policy has collapsed onto a few answers. 1. Raise temperature or entropy_coef. 2. Raise kl_coef (PPO) "
            "or beta (GRPO, RLOO). 3. Look at what they earn in reward_samples.jsonl.",
        )  # fmt: skip


def _sensitivity(facts: Facts) -> _Found:
    worst: tuple[float, str, float] | None = None
    for name, bound in bounds_for(facts.measures).items():
        value = facts.measures.get(f"sensitivity/{name}", float("nan"))
        if not np.isnan(value) and value > bound and (worst is None or value / bound > worst[0]):
            worst = value / bound, name, value
    if worst is None:
        return
    times, name, value = worst
    what, advice = _OFFSETS[name]
    function = facts.moved_most[f"sensitivity/{name}"]
    verb = "raises" if name in PAYS else "moves"
    yield "reward_sensitive", Finding(
        Severity.WARNING if times > 2 else Severity.INFO, _METRIC + "robustness", value,
        f"{what} {verb} the reward by {value:.2g} standard deviations on average (bound {BOUNDS[name]:g}, "
        f"{facts.probed} completions), most in {function}",
        f"{advice} The function is {function} in reward_funcs.",
        {"function": function, "edit": name},
    )  # fmt: skip


def _alike(facts: Facts) -> _Found:
    signs = {component.name: -1 if component.weight < 0 else 1 for component in facts.components}
    for i, a in enumerate(facts.names):
        for b in facts.names[i + 1 :]:
            r = facts.measures.get(f"correlation/{a}/{b}")
            if r is not None and abs(r) > 0.97 and facts.counted >= LEAST:
                yield "reward_components_alike", Finding(
                    Severity.INFO, f"reward/{b}/mean", r,
                    f"{a} and {b} rank completions alike (correlation {r:+.2f})",
                    "Two functions that say the same count twice: keep one in reward_funcs, or halve the weights."
                    if r * signs[a] * signs[b] > 0
                    else "One function undoes the other: check the signs of their weights in reward_funcs.",
                )  # fmt: skip


def _reasoning(facts: Facts) -> _Found:
    removed, swapped = (facts.measures.get(f"reasoning/{name}") for name in ("removed", "swapped"))
    if removed is None or swapped is None or np.isnan(removed):
        return
    if removed < 0.01 and swapped < 0.01:
        yield "reasoning_unused", Finding(
            Severity.INFO, _METRIC + "reasoning", removed,
            "the reward is the same without the reasoning, and with that of another completion",
            "Right for a reward of the answer alone; then nothing keeps the reasoning honest. If it is meant to count, "
            "add a function to reward_funcs that reads it.",
        )  # fmt: skip


def _short(text: str, limit: int = 80) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 3] + "..."
