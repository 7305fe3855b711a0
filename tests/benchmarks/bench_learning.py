"""Reward against samples: our trainers and TRL's, each at its own best learning rate, over five seeds.

    python tests/benchmarks/bench_learning.py --stock-python .venv-trl112/bin/python --jobs 2
    python tests/benchmarks/bench_learning.py --plot-only

Two tasks (learning/tasks.py), 64 completions a step. Learning rates are chosen on seeds of their own (all rates on one,
the two best on another) by what all trainers maximise: reward less beta x KL, of 256 held-out prompts. Table and
picture are of seeds that had no part in the choice. Runs are kept in a file: a second call makes those that are
missing.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "learning"), str(HERE.parents[1])]
from tasks import TASKS, start  # noqa: E402 - a script: it finds its parts beside itself

TRAINERS = {
    "reinforce_loo": "REINFORCE-LOO", "reinforce_loo_value": "REINFORCE, value head", "ppo": "PPO, value head",
    "ppo_network": "PPO, value network", "grpo": "stock GRPO", "rloo": "stock RLOO", "stock_ppo": "stock PPO 1.12",
}  # fmt: skip
COLOURS = {"reinforce_loo": "#1f77b4", "reinforce_loo_value": "#17becf", "ppo": "#9467bd",
           "ppo_network": "#2ca02c", "grpo": "#ff7f0e", "rloo": "#d62728", "stock_ppo": "#7f7f7f"}  # fmt: skip
STOCK = ("grpo", "rloo", "stock_ppo")
TUNING, REPORTED = (100, 101), (0, 1, 2, 3, 4)
FINALISTS = 2  # learning rates that are tried on every tuning seed
T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}  # Student's, two-sided, by number of seeds
KEY = ("task", "trainer", "lr", "seed", "steps")


# Runs --------------------------------------------------------------------------------------------------------------


class Runs:
    """The file of all runs, one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        lines = path.read_text().splitlines() if path.exists() else []
        self.all = {key_of(row): row for row in map(json.loads, lines)}

    def add(self, row: dict[str, Any]) -> None:
        with self._lock:
            self.all[key_of(row)] = row
            with self._path.open("a") as file:
                file.write(json.dumps(row) + "\n")

    def of(self, task: str, trainer: str, seeds: tuple, lr: float | None = None) -> list[dict[str, Any]]:
        return [row for row in self.all.values() if row["task"] == task and row["trainer"] == trainer
                and row["seed"] in seeds and lr in (None, row["lr"])]  # fmt: skip


def key_of(row: dict[str, Any]) -> tuple:
    return tuple(row[name] for name in KEY)


def make(runs: Runs, wanted: list[dict[str, Any]], options: argparse.Namespace) -> None:
    missing = [row for row in wanted if key_of(row) not in runs.all]
    missing.sort(key=lambda row: row["trainer"] != "stock_ppo")  # the slowest first, so that none is left alone
    print(f"{len(missing)} of {len(wanted)} runs to make, {options.jobs} at once", flush=True)

    def one(row: dict[str, Any]) -> None:
        python, environment = command_of(row["trainer"], options)
        done = subprocess.run([python, "-W", "ignore", str(HERE / "learning" / "one_run.py"),
                               json.dumps(row | {"folder": str(options.folder)})],
                              capture_output=True, text=True, env=environment)  # fmt: skip
        name = f"{row['task']} {row['trainer']} {row['lr']:g} seed {row['seed']}"
        if done.returncode:
            print(f"{name} FAILED: {(done.stderr.strip().splitlines() or ['no word'])[-1][:300]}", flush=True)
            return
        result = json.loads(done.stdout.strip().splitlines()[-1])
        result.pop("folder")
        runs.add(result)
        print(f"{name}: reward {result['reward']:.3f}, KL {result['kl']:.1f}, {result['seconds']:.0f} s", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(one, missing))


def command_of(trainer: str, options: argparse.Namespace) -> tuple[str, dict[str, str]]:
    root = str(HERE.parents[1])
    stock = trainer == "stock_ppo"
    search = [options.stock_path] if stock and options.stock_path else []
    path = os.pathsep.join([*search, root, os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
                                "CUDA_VISIBLE_DEVICES": "", "TRL_EXPERIMENTAL_SILENCE": "1"}  # fmt: skip
    return (options.stock_python if stock and options.stock_python else sys.executable), environment


def tuning(runs: Runs, task: str, options: argparse.Namespace) -> list[dict]:
    """The runs that learning rates are chosen from: all of them on the first seed, the two best of it on the others."""
    first, *others = TUNING
    wanted = [run_of(task, trainer, rate, first, options) for trainer in options.trainers for rate in TASKS[task].rates]
    if all(key_of(row) in runs.all for row in wanted):
        for trainer in options.trainers:
            of_first = {row["lr"]: row["objective"] for row in runs.of(task, trainer, (first,))}
            rates = sorted(TASKS[task].rates, key=of_first.__getitem__, reverse=True)[:FINALISTS]
            wanted += [run_of(task, trainer, rate, seed, options) for seed in others for rate in rates]
    return wanted


def reported(runs: Runs, task: str, options: argparse.Namespace) -> list[dict]:
    """The runs that count, of the trainers whose rate is chosen; none as long as a tuning run is missing."""
    wanted = tuning(runs, task, options)
    seeds = {row["seed"] for row in wanted}
    if seeds != set(TUNING) or any(key_of(row) not in runs.all for row in wanted):
        return []
    return [run_of(task, trainer, best_rate(runs, task, trainer), seed, options) for seed in REPORTED
            for trainer in options.trainers]  # fmt: skip


def run_of(task: str, trainer: str, rate: float | None, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    steps = options.steps or TASKS[task].steps
    return {"task": task, "trainer": trainer, "lr": rate, "seed": seed, "steps": steps}


def best_rate(runs: Runs, task: str, trainer: str) -> float | None:
    """That whose mean objective over the tuning seeds is highest, of those that were tried on all of them."""
    rows = runs.of(task, trainer, TUNING)
    tried = {rate: [r["objective"] for r in rows if r["lr"] == rate] for rate in sorted({row["lr"] for row in rows})}
    means = {rate: statistics.mean(found) for rate, found in tried.items() if len(found) == len(TUNING)}
    return max(means, key=means.__getitem__) if means else None


# Results -----------------------------------------------------------------------------------------------------------


def interval(values: list[float]) -> tuple[float, float]:
    """Mean, and half of its 95% confidence interval by Student's t; 0 for a single value."""
    if len(values) < 2:
        return values[0], 0.0
    return statistics.mean(values), T_95[len(values)] * statistics.stdev(values) / math.sqrt(len(values))


def table(runs: Runs, task: str, trainers: list[str]) -> list[str]:
    lines = [f"### {task}", "", "| trainer | learning rate | reward | KL | reward - beta x KL | seeds |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    found = []
    for trainer in trainers:
        rate = best_rate(runs, task, trainer)
        rows = [] if rate is None else runs.of(task, trainer, REPORTED, rate)
        if rows:
            columns = {name: interval([row[name] for row in rows]) for name in ("reward", "kl", "objective")}
            found.append((columns["objective"][0], trainer, rate, columns, len(rows)))
    for _, trainer, rate, columns, count in sorted(found, reverse=True, key=lambda row: row[0]):
        cells = " | ".join(f"{mean:.3f} ± {half:.3f}" for mean, half in columns.values())
        lines.append(f"| {TRAINERS[trainer]} | {rate:g} | {cells} | {count} |")
    return [*lines, "", *verdict(runs, task, trainers)]


def at_least_as_good(ours: list[float], theirs: list[float]) -> tuple[float, float]:
    """Difference of the means, and half of its 95% confidence interval (Welch, by the smaller number of seeds)."""
    spread = math.sqrt(statistics.variance(ours) / len(ours) + statistics.variance(theirs) / len(theirs))
    return statistics.mean(ours) - statistics.mean(theirs), T_95[min(len(ours), len(theirs))] * spread


def verdict(runs: Runs, task: str, trainers: list[str]) -> list[str]:
    """The best of ours against the best of TRL's, by the objective."""
    best: dict[bool, tuple[float, str, list[float]]] = {}
    for trainer in trainers:
        rate = best_rate(runs, task, trainer)
        values = [row["objective"] for row in runs.of(task, trainer, REPORTED, rate)] if rate is not None else []
        if len(values) > 1:
            candidate = (statistics.mean(values), trainer, values)
            stock = trainer in STOCK
            best[stock] = max(best.get(stock, candidate), candidate)
    if len(best) < 2:
        return []
    difference, half = at_least_as_good(best[False][2], best[True][2])
    word = "at least as good" if difference + half >= 0 else "worse"
    return [
        f"{TRAINERS[best[False][1]]} against {TRAINERS[best[True][1]]}: {difference:+.3f} ± {half:.3f}, {word}.",
        "",
    ]


def smooth(values: list[float], width: int = 9) -> list[float]:
    """Moving average over the last `width`."""
    return [statistics.mean(values[max(0, i + 1 - width) : i + 1]) for i in range(len(values))]


def plot(runs: Runs, options: argparse.Namespace) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(options.tasks), figsize=(6 * len(options.tasks), 4), squeeze=False)
    for panel, task in zip(panels[0], options.tasks, strict=True):
        seeds = 0
        for trainer in options.trainers:
            rate = best_rate(runs, task, trainer)
            rows = [] if rate is None else runs.of(task, trainer, REPORTED, rate)
            if not rows:
                continue
            seeds = max(seeds, len(rows))
            curves = [smooth(row["curve"]) for row in rows]
            mean = [statistics.mean(point) for point in zip(*curves, strict=True)]
            low, high = ([f(point) for point in zip(*curves, strict=True)] for f in (min, max))
            samples = [64 * (i + 1) for i in range(len(mean))]
            ours = trainer not in STOCK
            label = f"{TRAINERS[trainer]} ({rate:g})"
            panel.plot(samples, mean, color=COLOURS[trainer], label=label, linewidth=2 if ours else 1.3,
                       linestyle="-" if ours else "--")  # fmt: skip
            panel.fill_between(samples, low, high, color=COLOURS[trainer], alpha=0.12, linewidth=0)
        panel.set(title=f"{task}: mean and range over {seeds} seeds", xlabel="completions", ylabel="reward")
        panel.grid(alpha=0.25)
        panel.legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(options.picture, dpi=80)
    print(f"written: {options.picture}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, one thread each")
    parser.add_argument("--tasks", nargs="+", default=["review", "json"], choices=["review", "json"])
    parser.add_argument("--trainers", nargs="+", default=list(TRAINERS), choices=list(TRAINERS))
    parser.add_argument("--steps", type=int, help="by default those of the task")
    parser.add_argument("--stock-python", help="a Python with trl 1.12, for stock PPO")
    parser.add_argument("--stock-path", help="a folder with trl 1.12, put before the present Python's packages")
    parser.add_argument("--folder", type=Path, default=Path("runs/learning"))
    parser.add_argument("--results", type=Path, help="the file of runs; by default in --folder")
    parser.add_argument("--picture", type=Path, help="by default in --folder")
    parser.add_argument("--plot-only", action="store_true")
    options = parser.parse_args()
    if not (options.stock_python or options.stock_path) and not options.plot_only:
        options.trainers = [name for name in options.trainers if name != "stock_ppo"]
    options.folder = options.folder.resolve()
    options.folder.mkdir(parents=True, exist_ok=True)
    options.picture = options.picture or options.folder / "learning.png"
    runs = Runs(options.results or options.folder / "runs.jsonl")
    if not options.plot_only:
        for task in options.tasks:
            start(task, options.folder)  # once, before many would
        for _ in range(3):  # the second seed waits for the first, what is reported for both
            make(runs, [row for task in options.tasks for kind in (tuning, reported)
                        for row in kind(runs, task, options)], options)  # fmt: skip
    lines = [line for task in options.tasks for line in table(runs, task, options.trainers)]
    (options.folder / "learning.md").write_text("\n".join(lines))
    print("\n".join(lines))
    plot(runs, options)


if __name__ == "__main__":
    main()
