"""What rewards cost.

    python tests/benchmarks/bench_rewards.py
    python tests/benchmarks/bench_rewards.py --only reward_model --rounds 5

A section is a function that prints its lines and is named in SECTIONS. What is compared takes turns, round after round,
and ratios are taken round by round: this survives a machine whose speed drifts.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial

# Shapes of the models and texts of a round: the embedded policy's, and one where the matrices cost more than Python.
MODELS = {
    "1M": ({"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4}, 128),
    "9M": ({"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 4, "num_attention_heads": 6}, 64),
}
# that of Qwen3 0.6B
ON_A_GPU = {
    "440M": (
        {
            "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
            "num_key_value_heads": 8,
        },
        512,
    )
}  # fmt: skip
BATCH = 16
EQUAL = 64  # tokens
TEXT = """
the film is a quiet and honest story about people who never say what they mean acting score pictures music time
place hope loss dull clever warm cold slow long short loud bright dark simple rich poor good bad funny moving
"""
WORDS = TEXT.split()
LOGNORMAL = (4.0, 0.8)  # of the natural logarithm of the tokens: median 55, mean 75, nine of ten between 15 and 200


def reward_model(rounds: int) -> None:
    """Texts a second of `RewardModelReward` against a plain loop over Transformers: batches in order, padded to the
    longest."""
    import torch

    from trl_ext import tiny
    from trl_ext.rewards.reward_model import RewardModelReward

    shapes = {**MODELS, **ON_A_GPU} if torch.cuda.is_available() else MODELS
    for size, (shape, count) in shapes.items():
        with tempfile.TemporaryDirectory() as folder:
            scorer = tiny.random_scorer(**shape, max_position_embeddings=1024)
            (scorer.bfloat16() if size in ON_A_GPU else scorer).save_pretrained(folder)
            tiny.byte_tokenizer().save_pretrained(folder)
            ours, theirs = RewardModelReward(folder, batch_size=BATCH), plain_loop(folder)
            for lengths, texts in (("equal", texts_of([EQUAL] * count)), ("lognormal", texts_of(lognormal(count)))):
                ask = partial(ours, prompts=[""] * count, completions=texts)
                loop = partial(theirs, texts)
                differs = max(abs(a - b) for a, b in zip(ask(), loop(), strict=True))
                bound = 0.1 if size in ON_A_GPU else 1e-4  # bfloat16 rounds by the shape of the batch
                assert differs < bound, f"the two disagree by {differs}"  # and both are warm
                compare(f"reward model of {size}, {lengths} lengths", ask, loop, count, rounds)


def plain_loop(folder: str) -> Callable[[list[str]], list[float]]:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype="auto").eval().to(device)
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="right")

    @torch.inference_mode()
    def score(texts: list[str]) -> list[float]:
        scores: list[float] = []
        for start in range(0, len(texts), BATCH):
            batch = [text + tokenizer.eos_token for text in texts[start : start + BATCH]]
            inputs = tokenizer(batch, padding=True, return_tensors="pt").to(device)
            scores += model(**inputs).logits.squeeze(-1).tolist()
        return scores

    return score


def lognormal(count: int) -> list[int]:
    random_lengths = random.Random(0)
    return [max(1, min(1000, round(random_lengths.lognormvariate(*LOGNORMAL)))) for _ in range(count)]


def texts_of(lengths: list[int]) -> list[str]:
    """One byte, one token."""
    letters = random.Random(0)
    return ["".join(letters.choices("abcdefgh ", k=length)) for length in lengths]


def rules(rounds: int) -> None:
    """Short completions (20 words) a second of processor time, on one core, of each reward that needs no model."""
    from trl_ext.rewards import load_reward_funcs

    prose = completions_of(2000, 20, 0)
    tagged = []
    objects = []
    for i, text in enumerate(prose):
        words = text.split()
        tagged.append(f"<think>{' '.join(words[:10])}</think> <answer>{' '.join(words[10:18])}</answer>")
        objects.append(json.dumps({"name": "search", "arguments": {"query": text[:80], "limit": i % 9}}))
    answers = [f"{text[:90]} so the answer is {i % 97}.5" for i, text in enumerate(prose)]
    schema = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
    cases: list[tuple[str, dict, list[str]]] = [
        ("sentiment", {}, prose),
        ("keywords", {"weights": dict.fromkeys(WORDS, 1.0)}, prose),
        ("ending", {}, prose),
        ("length", {}, prose),
        ("repetition", {}, prose),
        ("loops", {}, prose),
        ("tags", {"tags": ["think", "answer"]}, tagged),
        ("regex", {"pattern": "<answer>.*</answer>"}, tagged),
        ("json_valid", {}, objects),
        ("json_schema", {"schema": schema}, objects),
        ("json_fields", {"fields": ["name", "arguments.query"]}, objects),
        ("json_actions", {"actions": {"search": ["query"]}}, objects),
        ("numeric", {}, answers),
        ("script", {"scripts": "Latin"}, prose),
        ("block_list", {"phrases": [f"{a} {b}" for a in WORDS for b in WORDS]}, prose),
    ]
    for name, kwargs, completions in cases:
        (reward,), _ = load_reward_funcs([{"name": name, "kwargs": kwargs}])
        columns = {"solution": [f"{i % 97}.5" for i in range(len(completions))]} if name == "numeric" else {}
        ask = partial(reward, prompts=[""] * len(completions), completions=completions, **columns)
        ask()
        seconds = min(processor_time(ask) for _ in range(rounds))
        goal = 5_000 if name == "sentiment" else 20_000
        print(f"{name}: {len(completions) / seconds:,.0f} completions/s (goal {goal:,})", flush=True)


def processor_time(work: Callable) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def human_ratings(rounds: int) -> None:
    """Rank correlation of rewards with what 20 judges thought of the 10,605 review snippets (mean rating, -4 to 4)."""
    from scipy.stats import spearmanr

    from trl_ext.data import load_reviews
    from trl_ext.rewards import load_reward_funcs

    rows = [row for split in ("train", "test") for row in load_reviews(split)]
    texts, ratings = [row["text"] for row in rows], [row["rating"] for row in rows]
    for name in ("sentiment", "length", "repetition"):
        (reward,), _ = load_reward_funcs([name])
        found = spearmanr(reward(prompts=[""] * len(texts), completions=texts), ratings).statistic
        print(f"{name}: Spearman correlation with the human ratings {found:+.3f}, {len(texts):,} snippets", flush=True)


def callback(rounds: int) -> None:
    """Microseconds a step of `RewardReliabilityCallback`: 64 completions, 2 functions, its default looks, and without
    asking functions again, which costs what they cost."""
    for words in (20, 200):
        steps = 500
        batches = [completions_of(64, words, seed) for seed in range(32)]
        means = []
        for _ in range(min(rounds, 3)):
            hear, log = heard()
            for i in range(64):  # fills the window
                hear(i, batches[i % 32])
            start = time.perf_counter()
            for i in range(steps):
                hear(64 + i, batches[i % 32])
                log({"loss": 0.1, "reward": 0.5})
            means.append((time.perf_counter() - start) / steps * 1e6)
        print(f"callback, 64 completions of {words} words: {min(means):.0f} microseconds a step on average", flush=True)


def heard() -> tuple[Callable[[int, list[str]], None], Callable[[dict], None]]:
    """What the trainer calls: after each batch of rewards, and with each log."""
    from types import SimpleNamespace

    import numpy as np

    from trl_ext.callbacks.reward_reliability import RewardReliabilityCallback
    from trl_ext.rewards.calls import Call
    from trl_ext.rewards.reliability import RewardReliability

    reliability_callback = RewardReliabilityCallback(rescore_every=0)
    reliability_callback._source = SimpleNamespace(names=["a", "b"], weights=[1.0, 0.5], detach=lambda: None)
    reliability_callback._reliability = RewardReliability(["a", "b"], [1.0, 0.5], 1000)
    reliability_callback._state = state = SimpleNamespace(global_step=0, is_world_process_zero=True)
    reliability_callback._main = True
    reliability_callback._due = {"evaluate": 1, "gold": 0, "rescore": 0}
    rewards = [np.random.default_rng(seed).normal(size=(64, 2)) for seed in range(32)]

    def hear(step: int, completions: list[str]) -> None:
        state.global_step = step
        reliability_callback._hear(Call([""] * 64, completions, None, {}), rewards[step % 32])

    return hear, lambda logs: reliability_callback.on_log(None, state, None, logs=logs)  # type: ignore[arg-type]


def memory(rounds: int) -> None:
    """What 1,000,000 rewards leave behind."""
    import psutil

    hear, _ = heard()
    process = psutil.Process()
    start = 0
    for step in range(1_000_000 // 64):
        hear(step, completions_of(64, 20, step))
        if step == 1000:
            start = process.memory_info().rss
    grown = (process.memory_info().rss - start) / 2**20
    print(f"memory: {grown:+.1f} MiB from 64,000 to 1,000,000 rewards", flush=True)


def completions_of(count: int, words: int, seed: int) -> list[str]:
    chosen = random.Random(seed)
    return [" ".join(chosen.choices(WORDS, k=words)) for _ in range(count)]


def compare(title: str, ours: Callable, theirs: Callable, count: int, rounds: int) -> None:
    seconds = [(timed(ours), timed(theirs)) for _ in range(rounds)]
    ratios = [b / a for a, b in seconds]
    fastest = [count / min(each) for each in zip(*seconds, strict=True)]
    print(
        f"{title}: x {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}); fastest rounds, ours / "
        f"theirs: {fastest[0]:.0f} / {fastest[1]:.0f} texts/s, x {fastest[0] / fastest[1]:.2f}",
        flush=True,
    )


def timed(work: Callable) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


SECTIONS: dict[str, Callable[[int], None]] = {
    "rules": rules,
    "human_ratings": human_ratings,
    "reward_model": reward_model,
    "callback": callback,
    "memory": memory,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), help="these sections alone")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    for name in options.only or SECTIONS:
        SECTIONS[name](options.rounds)


if __name__ == "__main__":
    main()
