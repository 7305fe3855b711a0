"""Each part of the reliability score falls when its fault is injected, and alone."""

import json
import math

import numpy as np
import pytest

from trl_ext.errors import UserError
from trl_ext.rewards.calls import Call
from trl_ext.rewards.reliability import PARTS, RewardReliability
from trl_ext.rewards.reliability.probes import probe

TEXT = """
the film is a quiet and honest story about people who never say what they mean while acting score pictures music
time place hope loss dull clever warm cold slow long short loud bright dark simple rich poor good bad
"""
WORDS = TEXT.split()
NAMES, WEIGHTS = ["quality", "style"], [1.0, 0.5]
STEPS, BATCH = 40, 32


class World:
    """Completions of 10 to 20 random words, and rewards that have nothing to do with their form.

    Rewards come from a text's own hash-free random numbers, so that scoring again gives the same.
    """

    def __init__(self, seed=0):
        self.random = np.random.default_rng(seed)
        self.reliability = RewardReliability(NAMES, WEIGHTS)

    def completions(self, count=BATCH):
        return [" ".join(self.random.choice(WORDS, self.random.integers(10, 20))) for _ in range(count)]

    def rewards(self, count=BATCH, shift=0.0):
        return self.random.normal([0.2 + shift, 0.5], [1.0, 0.8], (count, 2))

    def run(self, steps=STEPS, change=lambda step, completions, rewards: (completions, rewards)):
        for step in range(1, steps + 1):
            completions, rewards = change(step, self.completions(), self.rewards(shift=0.01 * step))
            self.reliability.observe(step, ["p"] * len(completions), completions, rewards)
        return self

    def probed(self, score=None):
        texts = self.completions(8)
        call = Call(["p"] * 8, texts, None, {})
        self.reliability.observe_probes(probe(call, np.array(WEIGHTS), score or steady))
        return self

    def with_gold(self, proxy_rise=0.02, gold_rise=0.01, evaluations=20):
        for i in range(evaluations):
            step, rewards = 2 * i, self.rewards(shift=proxy_rise * 2 * i)
            gold = self.random.normal(gold_rise * 2 * i, 1.0, BATCH)
            self.reliability.observe_gold(step, ["p"] * BATCH, self.completions(), rewards, gold)
        return self

    def parts(self):
        return self.reliability.report().parts


def letters(call):
    """A reward of what does not change with white space or case: the share of the letters e and a; in -1..1."""
    shares = [[sum(c in "ea" for c in t.lower()), sum(c in "os" for c in t.lower())] for t in call.completions]
    sizes = [max(sum(c.isalpha() for c in t), 1) for t in call.completions]
    return np.array(shares, dtype=float) / np.array(sizes, dtype=float)[:, None]


steady = letters


def healthy(**options):
    return World(**options).run().probed().with_gold()


def test_a_healthy_reward_has_every_part_and_a_score_near_one():
    report = healthy().reliability.report()
    assert set(report.parts) == set(PARTS)
    assert all(part is not None and part > 0.9 for part in report.parts.values()), report.parts
    assert report.score > 0.9
    assert report.findings == {}


def jump(step, completions, rewards):
    return completions, rewards - np.array([3.0 * (step > 30), 0.0])


def drowned(step, completions, rewards):
    return completions, rewards * [300.0, 1.0]


def dead(step, completions, rewards):
    return completions, np.column_stack([np.zeros(len(rewards)), rewards[:, 1]])


def pays_for_length(step, completions, rewards):
    lengths = np.array([len(c.split()) for c in completions], dtype=float)
    return completions, np.column_stack([0.4 * (lengths - 15) + 0.1 * rewards[:, 0], 0.3 * rewards[:, 1]])


def pays_for_repetition(step, completions, rewards):
    half = [" ".join((c.split()[: 2 + i % 7] * 10)[:15]) for i, c in enumerate(completions)]
    copies = np.array([1 - len(set(zip(c.split(), c.split()[1:], strict=False))) / 14 for c in half])
    return half, np.column_stack([5 * copies + 0.05 * rewards[:, 0], 0.1 * rewards[:, 1]])


def copies(step, completions, rewards):
    return [completions[0]] * len(completions), rewards


def by_words(call):
    return letters(call) * [0, 1] + [[0.4 * (len(c.split()) - 15), 0] for c in call.completions]


FAULTS = {
    "stability": lambda: World().run(change=jump).probed().with_gold(),
    "signal": lambda: World().run(change=dead).probed().with_gold(),
    "balance": lambda: World().run(change=drowned).probed().with_gold(),
    "independence": lambda: World().run(change=pays_for_length).probed(by_words).with_gold(),
    "diversity": lambda: World().run(change=copies).probed().with_gold(),
    "agreement": lambda: World().run().probed().with_gold(proxy_rise=0.05, gold_rise=-0.05),
}


def test_a_task_that_is_solved_is_no_unstable_reward():
    """More and more completions earn 1, at last all: nothing is left to learn, and nothing is wrong with the reward."""

    def solved(step, completions, rewards):
        earned = World(step).random.random(len(rewards)) < min(step / 30, 1)
        return completions, np.column_stack([earned, 0.1 * rewards[:, 1]])

    report = World().run(change=solved).reliability.report()
    assert report.parts["stability"] == 1.0
    dead_from_the_start = World().run(change=dead).reliability.report()
    solved_at_last = World().run(steps=90, change=solved).reliability.report()
    states = [report.components[0].state for report in (dead_from_the_start, solved_at_last)]
    assert states == ["dead", "saturated"]
    assert all(finding.severity == "info" for finding in solved_at_last.findings.values())


def drawn(seed=0):
    random = np.random.default_rng(seed)
    return lambda call: random.normal(0, 1, (len(call.completions), 2))


def leaks(call):
    """Padding leaks: what a completion gets depends on the longest one of its batch."""
    longest = max(len(c) for c in call.completions)
    return letters(call) + [[0.02 * (longest - len(c)), 0] for c in call.completions]


def first_wins(call):
    return letters(call) + np.linspace(2, 0, len(call.completions))[:, None] * (len(call.completions) > 1)


def strict_about_white_space(call):
    return letters(call) - [[2.0 * (c != c.strip()), 0] for c in call.completions]


def pays_more_for_more(call):
    return letters(call) + [[0.2 * len(c.split()), 0] for c in call.completions]


for name, score in (("drawn", drawn()), ("leaks", leaks), ("first_wins", first_wins)):
    FAULTS[f"consistency-{name}"] = lambda score=score: World().run().probed(score).with_gold()
for score in (strict_about_white_space, pays_more_for_more):
    FAULTS[f"robustness-{score.__name__}"] = lambda score=score: World().run().probed(score).with_gold()
FAULTS["independence-repetition"] = lambda: World().run(change=pays_for_repetition).probed().with_gold()


@pytest.mark.parametrize("fault", FAULTS)
def test_each_part_falls_with_its_own_fault_and_alone(fault):
    part = fault.split("-")[0]
    reliability = FAULTS[fault]().reliability
    report = reliability.report()
    others = {name: value for name, value in report.parts.items() if name != part and value is not None}
    assert report.parts[part] < 0.5, report.parts
    assert all(value > 0.85 for value in others.values()), report.parts
    assert report.score < 0.75
    assert report.findings, "nothing is said"
    (finding, *_) = report.findings.values()
    assert "reward_funcs" in finding.advice or "temperature" in finding.advice


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_completions_that_a_function_does_not_apply_to_are_left_out(share):
    """Nothing is divided by zero either, whether some, all or none of the rewards are missing."""

    def sparse(step, completions, rewards):
        missing = World(step).random.random(rewards.shape) < share
        return completions, np.where(missing, np.nan, rewards)

    world = World().run(change=sparse)
    world.reliability.observe(99, [], [], np.zeros((0, 2)))
    report = world.reliability.report()
    assert [component.applies for component in report.components] == pytest.approx([1 - share] * 2, abs=0.05)
    shares = [component.variance_share for component in report.components]
    assert sum(shares) == pytest.approx(1.0) if share < 1 else all(math.isnan(value) for value in shares)


def test_variance_shares_are_those_of_independent_parts():
    world = World()
    rewards = world.random.normal(0, [3.0, 8.0], (1000, 2))  # weights 1 and 0.5: variances 9 and 16
    world.reliability.observe(1, ["p"] * 1000, world.completions(1000), rewards)
    report = world.reliability.report()
    assert [c.variance_share for c in report.components] == pytest.approx([9 / 25, 16 / 25], abs=0.05)


def test_memory_is_that_of_the_window_whatever_comes():
    reliability = RewardReliability(NAMES, WEIGHTS, window=100)
    world = World()
    for step in range(1, 400):
        reliability.observe(step, ["p"] * BATCH, world.completions(), world.rewards())
        reliability.observe_gold(step, ["p"] * BATCH, world.completions(), world.rewards(), world.rewards()[:, 0])
    window = reliability.window
    assert (len(window), window.seen) == (100, 399 * BATCH)
    assert len(window.step_means) == 128 and len(reliability.gold.evaluations) <= 64
    assert sum(evaluation.completions for evaluation in reliability.gold.evaluations) == 399 * BATCH
    assert len(reliability.gold.latest) == 256


@pytest.mark.parametrize("slopes", [(0.05, 0.05), (-0.05, -0.05), (0.05, 0.0), (0.0, -0.05)])
def test_only_a_rising_reward_beside_a_falling_truth_is_hacking(slopes):
    proxy, gold = slopes
    report = World().run().with_gold(proxy, gold).reliability.report()
    assert "reward_hacking_suspected" not in report.findings
    assert report.parts["agreement"] == 1.0


def test_what_was_learnt_honestly_at_first_does_not_hide_what_is_hacked_later():
    world = World().run()
    for i in range(60):
        rises = min(0.1 * i, 4.0)
        rewards = world.rewards(shift=0.1 * i)
        gold = world.random.normal(rises if i < 40 else 4.0 - 0.3 * (i - 40), 1.0, BATCH)
        world.reliability.observe_gold(i, ["p"] * BATCH, world.completions(), rewards, gold)
    finding = world.reliability.report().findings["reward_hacking_suspected"]
    assert finding.severity == "error"
    assert finding.evidence["gold_slope"] < 0 < finding.evidence["proxy_slope"]


def test_healthy_runs_with_noise_of_every_kind_are_left_alone():
    """300 reports on 20 runs: no warning."""
    for seed in range(20):
        world = World(seed)
        for step in range(1, 121):
            spread = 1.0 + 0.5 * math.sin(step / 10)
            rewards = world.rewards(shift=1.5 / (1 + math.exp(-(step - 60) / 6))) * spread
            world.reliability.observe(step, ["p"] * BATCH, world.completions(), rewards)
            if step % 2 == 0:
                gold = world.random.normal(0.3 / (1 + math.exp(-(step - 60) / 6)), 1.0, BATCH)
                world.reliability.observe_gold(step, ["p"] * BATCH, world.completions(), rewards, gold)
            if step % 8 == 0:
                report = world.reliability.report(samples=0)
                assert all(finding.severity == "info" for finding in report.findings.values()), report.findings


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((["a", "b"], [1.0]), "2 reward functions have 1 weights"),
        (([], []), "0 reward functions"),
        ((["a"], [1.0], 8), "window must be a whole number of at least 32"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments, said):
    with pytest.raises(UserError, match=said):
        RewardReliability(*arguments)


def test_rewards_of_another_shape_are_refused():
    with pytest.raises(UserError, match="rewards have the shape"):
        RewardReliability(NAMES, WEIGHTS).observe(1, ["p"], ["a"], [[1.0]])


def test_rewards_of_no_weight_train_nothing():
    reliability = RewardReliability(NAMES, [0.0, 0.0])
    world = World()
    for step in range(1, 41):
        reliability.observe(step, ["p"] * BATCH, world.completions(), world.rewards())
    report = reliability.report()
    assert report.parts["signal"] == 0.0
    assert report.findings["reward_unweighted"].severity == "error"


def test_a_function_that_hardly_ever_applies_is_named():
    def rare(step, completions, rewards):
        return completions, np.where(
            np.arange(len(rewards))[:, None] * [1, 0] + (step % 3) > 0, [np.nan, 0.0], 0
        ) + rewards

    finding = World().run(change=rare).reliability.report().findings["reward_rarely_applies"]
    assert "quality gave a number to" in finding.message and finding.severity == "info"


def test_a_reward_that_falls_slowly_is_told():
    def falls(step, completions, rewards):
        return completions, rewards - [0.1 * step, 0.0]

    finding = World().run(change=falls).reliability.report().findings["reward_drop"]
    assert finding.severity == "warning"
    assert finding.evidence["fall"] > 2


def test_a_penalty_that_was_learnt_is_no_dead_reward():
    for weight, at_last, serious in ((-1.0, 0.0, False), (-1.0, 1.0, True), (1.0, 0.0, True)):
        reliability, world = RewardReliability(["quality", "wordy"], [1.0, weight]), World()
        for step in range(1, 41):
            wordy = (world.random.random(BATCH) < 0.5) if step < 8 else np.full(BATCH, at_last)
            rewards = np.column_stack([world.rewards()[:, 0], wordy])
            reliability.observe(step, ["p"] * BATCH, world.completions(), rewards)
        for step in range(41, 80):  # the window has only what came last
            rewards = np.column_stack([world.rewards()[:, 0], np.full(BATCH, at_last)])
            reliability.observe(step, ["p"] * BATCH, world.completions(), rewards)
        findings = reliability.report().findings
        told = findings.get("dead_reward_component")
        assert (told is not None and told.severity == "warning") == serious, (weight, at_last)


def test_a_reward_that_ranks_against_the_held_back_one_is_told_without_any_trend():
    world = World().run()
    for step in range(10):
        rewards = world.rewards()
        world.reliability.observe_gold(step, ["p"] * BATCH, world.completions(), rewards, -rewards[:, 0])
    report = world.reliability.report()
    assert report.findings["reward_disagrees"].severity == "warning"
    assert report.parts["agreement"] < 0.2
    assert set(report.findings) == {"reward_disagrees"}


def test_a_held_back_reward_that_says_nothing_is_told():
    world = World().run()
    for step in range(3):
        world.reliability.observe_gold(
            step, ["p"] * BATCH, world.completions(), world.rewards(), np.full(BATCH, np.nan)
        )
    finding = world.reliability.report().findings["held_back_reward_silent"]
    assert "the last 3 times" in finding.message
    world.reliability.observe_gold(4, ["p"] * BATCH, world.completions(), world.rewards(), world.rewards()[:, 0])
    assert "held_back_reward_silent" not in world.reliability.report().findings


def test_functions_that_cancel_out_train_nothing():
    reliability, world = RewardReliability(NAMES, [1.0, -1.0]), World()
    for step in range(1, 41):
        reward = world.rewards()[:, :1]
        nearly = reward * (1 + 1e-7)  # as float32 has it
        reliability.observe(step, ["p"] * BATCH, world.completions(), np.hstack([reward, nearly]))
    report = reliability.report()
    assert report.parts["signal"] == 0.0
    assert report.findings["reward_cancelled"].severity == "error"
    assert "check the signs" in report.findings["reward_components_alike"].advice


def test_an_infinite_reward_is_no_signal():
    world = World().run()
    rewards = world.rewards()
    rewards[0, 0] = np.inf
    world.reliability.observe(41, ["p"] * BATCH, world.completions(), rewards)
    report = world.reliability.report()
    assert report.parts["signal"] == 0.0
    assert report.findings["reward_infinite"].severity == "error"


def test_the_start_of_the_run_survives_a_resume():
    world = World().run(steps=10)
    copy = RewardReliability(NAMES, WEIGHTS)
    copy.load_state_dict(json.loads(json.dumps(world.reliability.state_dict())))
    assert copy.window.start == world.reliability.window.start != []


def test_samples_of_the_held_back_reward_have_what_the_reward_is_made_of():
    report = World().run().with_gold(0.05, -0.05).reliability.report()
    beside = [sample for sample in report.samples if "gold" in sample]
    assert beside
    for sample in beside:
        assert sample["rewards"].keys() == set(NAMES)
        total = sum(weight * sample["rewards"][name] for name, weight in zip(NAMES, WEIGHTS, strict=True))
        assert sample["reward"] == pytest.approx(total)
