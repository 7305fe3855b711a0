"""What each option of ReinforceLOOConfig costs: samples a CPU second and peak memory, against the same without it.

    python tests/benchmarks/bench_options.py --rounds 5

Prints a table in Markdown. Every run is a process of its own; the two of a comparison take turns, round after round,
and the ratios are taken round by round, as in `bench_trainers.py`, whose shapes and counts these are. Responses have a
fixed length; models are random; the reward costs nothing. With one thread, a second of the processor is a second on an
idle machine, and on a shared one others disturb it less. Where a comparison is about actions, both sides write the
same JSON objects: what they sampled is replaced by them.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import bench_trainers
from bench_trainers import GENERATIONS, SHAPES

OFF = {"beta": 0.0}
KL = {"beta": 0.05}
VALUE = {**OFF, "baseline": "value"}
LEAST_SPEED, MOST_MEMORY = 0.98, 1.05  # of stock GRPO, with everything off


@dataclass(frozen=True)
class Side:
    """`trainer` is reinforce_loo, grpo or rloo; `writes_json` replaces the completions by JSON objects."""

    trainer: str
    options: dict
    writes_json: bool = False


@dataclass(frozen=True)
class Comparison:
    title: str
    against: str
    with_it: Side
    without: Side


def ours(title: str, options: dict, base: dict = OFF, against: str = "off", writes_json: bool = False) -> Comparison:
    sides = (Side("reinforce_loo", {**base, **more}, writes_json) for more in (options, {}))
    return Comparison(title, against, *sides)


COMPARISONS = [
    Comparison("everything off", "stock GRPO, `dr_grpo`, `beta=0`", Side("reinforce_loo", OFF),
               Side("grpo", {**OFF, "loss_type": "dr_grpo"})),
    Comparison("`beta=0.05`", "stock RLOO, `beta=0.05`", Side("reinforce_loo", KL), Side("rloo", KL)),
    *(ours(f'`baseline="{name}"`', {"baseline": name}) for name in ("mean", "ema", "greedy", "value")),
    ours('`baseline="value"`, `gae_steps="turn"`', {"gae_steps": "turn"}, VALUE, 'off, `baseline="value"`'),
    ours("`beta=0.05`", KL),
    ours('`reference="periodic"`, every 5 steps', {"reference": "periodic", "ref_update_interval": 5}, KL,
         "`beta=0.05`"),
    ours('`reference="ema"`', {"reference": "ema"}, KL, "`beta=0.05`"),
    ours("`kl_target=6.0`", {"kl_target": 6.0}, KL, "`beta=0.05`"),
    ours('`kl_in_reward=False`, `kl_estimator="k3"`', {"kl_in_reward": False, "kl_estimator": "k3"}, KL, "`beta=0.05`"),
    ours('`mask="json_actions"`', {"mask": "json_actions"}, against="off, JSON objects", writes_json=True),
    *(ours(f'`invalid_json="{name}"`', {"invalid_json": name}, against="off, JSON objects", writes_json=True)
      for name in ("drop", "penalise")),
    *(ours(f'`advantage_normalize="{name}"`', {"advantage_normalize": name}) for name in ("batch", "group")),
    ours("`entropy_coef=0.01`, `entropy_decay=0.99`", {"entropy_coef": 0.01, "entropy_decay": 0.99}),
]  # fmt: skip


# One run -----------------------------------------------------------------------------------------


def run(side: Side, shape_name: str, updates: int, threads: int) -> dict:
    import torch

    torch.set_num_threads(threads)
    shape = {**SHAPES[shape_name], "updates": updates}
    with tempfile.TemporaryDirectory() as folder:
        trainer = bench_trainers.build_groups(side.trainer, shape, folder, side.options)
        if side.writes_json:
            write_json(trainer, shape["response"])
        return bench_trainers.measure(trainer, 1, shape["samples"])


def write_json(trainer, length: int) -> None:
    """Every completion becomes an object of one token a letter, as long as what was sampled; one in four is cut off."""
    generate, calls = trainer._generate_single_turn, iter(range(10**9))

    def replaced(*args, **kwargs):
        completions, *rest = generate(*args, **kwargs)
        return [objects(length, next(calls) % 4 == 0, trainer.processing_class) for _ in completions], *rest

    trainer._generate_single_turn = replaced


def objects(length: int, cut_off: bool, tokenizer) -> list[int]:
    text = '{"say": "' + "a" * (length - 11) + ("aa" if cut_off else '"}')
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == length
    return ids


# The comparison ----------------------------------------------------------------------------------


def worker(side: Side, options: argparse.Namespace, shape: str) -> dict:
    about = json.dumps([side.trainer, side.options, side.writes_json])
    command = [sys.executable, "-W", "ignore", __file__, "--worker", about, "--shapes", shape, "--threads",
               str(options.threads), "--updates", str(options.updates)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{side} at {shape} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare(comparison: Comparison, shape: str, options: argparse.Namespace) -> list[tuple[dict, dict]]:
    """Rounds of (with it, without); which of the two begins changes from round to round."""
    rounds = []
    for i in range(options.rounds):
        order = [comparison.with_it, comparison.without]
        results = [worker(side, options, shape) for side in (reversed(order) if i % 2 else order)]
        rounds.append(tuple(reversed(results)) if i % 2 else tuple(results))
    return rounds


def ratios(rounds: list[tuple[dict, dict]], name: str) -> list[float]:
    return [a[name] / b[name] for a, b in rounds]


def line(comparison: Comparison, rounds: list[tuple[dict, dict]]) -> str:
    speed, memory = ratios(rounds, "samples_per_cpu_second"), ratios(rounds, "peak_mb")
    tokens = statistics.median(ratios(rounds, "tokens_per_update"))
    return (
        f"| {comparison.title} | {comparison.against} | {statistics.median(speed):.2f} ({min(speed):.2f} to "
        f"{max(speed):.2f}) | {statistics.median(memory):.2f} | {tokens:.2f} |"
    )


def print_table(shape: str, options: argparse.Namespace) -> None:
    print(f"{shape} shape, {GENERATIONS} completions a prompt, {options.rounds} rounds\n")
    print("| with | against | samples a CPU second, times | peak memory, times | tokens computed, times |")
    print("|---|---|---|---|---|", flush=True)
    chosen = [comparison for comparison in COMPARISONS if options.only in comparison.title]
    with ThreadPoolExecutor(options.jobs) as pool:
        found = pool.map(lambda comparison: compare(comparison, shape, options), chosen)
        for comparison, rounds in zip(chosen, found, strict=True):
            print(line(comparison, rounds), flush=True)
            if comparison is COMPARISONS[0]:
                speed, memory = (statistics.median(ratios(rounds, n)) for n in ("samples_per_cpu_second", "peak_mb"))
                held = speed >= LEAST_SPEED and memory <= MOST_MEMORY
                wanted = f"at least {LEAST_SPEED} of GRPO's speed and at most {MOST_MEMORY} of its memory"
                print(f"{wanted}: {'held' if held else 'MISSED'}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="comparisons at a time, where cores are idle")
    parser.add_argument("--updates", type=int, default=12)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["embedded"])
    parser.add_argument("--only", default="", help="part of a comparison's title")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(run(Side(*json.loads(options.worker)), options.shapes[0], options.updates, options.threads)))
        return
    for shape in options.shapes:
        print_table(shape, options)


if __name__ == "__main__":
    main()
