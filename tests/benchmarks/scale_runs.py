"""The same recipe on one and on several processes, under each engine: curves, resume, what is saved, and a stop.

    python tests/benchmarks/scale_runs.py --device cuda --processes 1 2 --engines ddp fsdp2 zero2 zero3
    python tests/benchmarks/scale_runs.py --device cpu --processes 1 2 --engines ddp fsdp2

All recipes share one launch of each engine and number of processes; one process, without an engine, is what the others
are compared with, at the same global batch and the same samples. On the CPU the processes talk through gloo. Exit
status 1 if a check fails or a launch is over its time.
"""

import argparse
import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from trl_ext.data import review_pairs

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CONFIGS = {"ddp": "multi_gpu.yaml", "fsdp2": "fsdp2.yaml", "zero2": "zero2.yaml", "zero3": "zero3.yaml"}
RECIPES = ("ppo", "reinforce_loo", "sft", "reward", "dpo")
# Where there are such. Not eval_loss: a mean over batches, in TRL's reinforcement learning of some processes alone
CURVES = ("loss", "grad_norm", "reward", "kl", "eval_reward", "mean_token_accuracy", "margin", "rewards/margins")
VALUE = "value_function."
TOLERANCE = 2e-3  # of a curve, relative to its largest value: rounding grows from step to step
RESUMED = 1e-4


def write_data(path: Path) -> None:
    """A few rows that serve every recipe."""
    pairs = review_pairs("train", 48, 1.5)
    rows = [
        {"prompt": " ".join(pair["chosen"].split()[:3]), "text": pair["chosen"], "chosen": pair["chosen"],
         "rejected": pair["rejected"]}
        for pair in pairs
    ]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)))


def recipe_data(folder: Path, recipe: str) -> str:
    columns = {"sft": ["text"], "reward": ["chosen", "rejected"], "dpo": ["prompt", "chosen", "rejected"]}
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    path = folder / f"{recipe}.jsonl"
    path.write_text(
        "\n".join(json.dumps({k: row[k] for k in columns.get(recipe.partition("+")[0], ["prompt"])}) for row in rows)
    )
    return str(path)


# Launching ------------------------------------------------------------------------------------------------------------


def start(folder: Path, engine: str | None, processes: int, options: argparse.Namespace) -> subprocess.Popen:
    """One `accelerate launch` for all recipes."""
    folder.mkdir(parents=True)
    plan = {
        "folder": str(folder), "device": options.device, "recipes": options.recipes, "limit": options.limit,
        "data": {recipe: recipe_data(options.folder, recipe) for recipe in options.recipes},
    }  # fmt: skip
    (folder / "plan.json").write_text(json.dumps(plan))
    alone = "cpu.yaml" if options.device == "cpu" else "single_gpu.yaml"
    config = ROOT / "accelerate_configs" / (CONFIGS[engine] if engine else alone)
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config)]
    command += ["--num_processes", str(processes), "--main_process_port", str(free_port())]
    command += ["--num_cpu_threads_per_process", "1"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    environment["TRL_EXT_PPO"] = "trl_ext"  # stock PPO of TRL 1.12 resumes no run and takes other options
    if options.device == "cpu":
        environment["DS_ACCELERATOR"] = "cpu"
    with (folder / "output.txt").open("w") as output:
        return subprocess.Popen(
            [*command, str(HERE / "scale" / "one_launch.py"), str(folder / "plan.json")],
            env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, cwd=folder,
        )  # fmt: skip


def failure_of(process: subprocess.Popen, folder: Path, limit: float) -> str | None:
    """Waits for the launch. None, or why there is nothing to compare."""
    status = wait(process, folder, limit)
    if status == 0:
        return None
    lines = (folder / "output.txt").read_text(errors="replace").splitlines()
    traces = [i for i, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    print("\n".join(lines[traces[0] :][:60] if traces else lines[-20:]), file=sys.stderr, flush=True)
    wrong = [line for line in lines if line.startswith(("error: ", "Timeout (")) or "Error: " in line]
    return f"exit status {status}: {(wrong or lines or ['no output'])[0][:300]} ({folder / 'output.txt'})"


def wait(process: subprocess.Popen, folder: Path, limit: float) -> int | str:
    """Its exit status. Past the limit the launcher and its processes, which have sessions of their own, are killed."""
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        kill(process, folder)
        return f"none, killed after {limit:.0f} seconds"


def kill(process: subprocess.Popen, folder: Path) -> None:
    pids = [process.pid, *(int(path.read_text()) for path in folder.glob("rank*.pid"))]
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(OSError):
                os.killpg(pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


# Comparing ------------------------------------------------------------------------------------------------------------


def curve(report: dict[str, Any], key: str, after: int = 0) -> list[float]:
    return [row[key] for row in report["logs"] if key in row and row["step"] > after]


def distance(one: dict[str, Any], other: dict[str, Any], after: int = 0) -> tuple[float, str]:
    """The largest difference of a curve, relative to its largest value, and whose it is. Inf: another length."""
    worst = (0.0, "loss")
    for key in CURVES:
        a, b = curve(one, key, after), curve(other, key, after)
        if len(a) != len(b) or not all(map(math.isfinite, a + b)):
            return math.inf, key
        scale = max(map(abs, a), default=0.0) or 1.0
        if key == "loss":
            scale = max(scale, 0.01)  # a policy's loss is a small difference of large terms
        worst = max(worst, (max((abs(x - y) for x, y in zip(a, b, strict=True)), default=0.0) / scale, key))
    return worst


def weights_apart(one: Path, other: Path) -> float:
    a, b = load_file(one), load_file(other)
    return max((a[name] - b[name]).abs().max().item() for name in a) if a.keys() == b.keys() else math.inf


def reload(folder: Path, recipe: str) -> str | None:
    """None if `from_pretrained` of the output gives the weights that were trained, else what it gives."""
    trained = load_file(folder / "trained.safetensors")
    kind: Any = AutoModelForSequenceClassification if recipe.startswith("reward") else AutoModelForCausalLM
    loaded = {
        plain(name): weight for name, weight in kind.from_pretrained(folder, dtype=torch.float32).state_dict().items()
    }
    policy, value = {}, {}
    for name, weight in trained.items():
        if ".ref." in name:  # a reference that follows is in checkpoints alone
            continue
        (value if VALUE in name else policy)[plain(name).rpartition(VALUE)[2]] = weight
    if value:
        policy |= value
        loaded |= load_file(folder / f"{VALUE[:-1]}.safetensors")
    missing = policy.keys() ^ loaded.keys()
    if missing - {"lm_head.weight"}:  # tied
        return f"other weights: {sorted(missing)[:3]}"
    wrong = [name for name in policy.keys() & loaded.keys() if not torch.equal(policy[name], loaded[name].float())]
    return f"{len(wrong)} of {len(policy)} tensors differ, first {wrong[0]}" if wrong else None


def plain(name: str) -> str:
    """Without what PEFT and Transformers put into the names of a model with an adapter."""
    for part in ("base_model.model.", ".base_layer", ".default", ".original_module", ".modules_to_save"):
        name = name.replace(part, "")
    return name


def judge(recipe: str, folder: Path, alone: Path) -> list[tuple[bool, str]]:
    """The lines of one recipe under one engine: whether each is as it should be, and the numbers."""
    report, baseline = (json.loads((each / recipe / "report.json").read_text()) for each in (folder, alone))
    whole, lines = report["whole"], []
    lines.append((True, f"loss {' '.join(f'{x:.5f}' for x in curve(whole, 'loss'))}"))
    if folder != alone:
        apart, key = distance(baseline["whole"], whole)
        weights = weights_apart(alone / recipe / "whole/end.safetensors", folder / recipe / "whole/end.safetensors")
        lines.append((apart <= TOLERANCE, f"to one process: {key} at most {apart:.1e}, weights {weights:.1e} apart"))
    apart, key = distance(whole, report["resumed"], after=4)
    weights = weights_apart(*(folder / recipe / run / "end.safetensors" for run in ("whole", "resumed")))
    lines.append((apart <= RESUMED, f"resume: {key} at most {apart:.1e}, weights {weights:.1e} apart"))
    other = reload(folder / recipe / "whole", recipe)
    lines.append((other is None, f"from_pretrained: {other or 'equal'}"))
    steps = {step for step, _ in report["stopped"]["ranks"]}
    expected = {4} if recipe.startswith("ppo") else {3}  # it logs every other step
    lines.append((steps == expected, f"stop: at step {sorted(steps)}"))
    for run, (equal, told) in {run: alerts_of(report[run]) for run in report}.items():
        told_of_fault = run != "stopped" or "nonfinite_metric" in told
        lines.append((equal and told_of_fault, f"alerts, {run}: {told or 'none'}{'' if equal else ', not on all'}"))
    return lines


def alerts_of(run: dict[str, Any]) -> tuple[bool, str]:
    """Whether all processes had the same, and the main one's."""
    rules = [rules for _, rules in run["ranks"]]
    return all(each == rules[0] for each in rules), ", ".join(rules[0])


def main() -> int:
    options = arguments()
    transformers.logging.disable_progress_bar()
    options.folder.mkdir(parents=True, exist_ok=True)
    write_data(options.folder / "rows.jsonl")
    alone = options.folder / "alone"
    todo = [(None, 1), *((engine, count) for engine in options.engines for count in options.processes if count > 1)]
    folders = [alone if engine is None else options.folder / f"{engine}-{processes}" for engine, processes in todo]
    running: dict[Path, subprocess.Popen] = {}
    try:
        return compare(todo, folders, running, options)
    finally:
        for folder, process in running.items():
            if process.poll() is None:
                kill(process, folder)


def compare(todo: list, folders: list[Path], running: dict[Path, subprocess.Popen], options: argparse.Namespace) -> int:
    """Launches what is to be done, in `running` while it lasts, and judges it in its order. The exit status."""
    alone, sound, began = folders[0], True, time.monotonic()
    if options.at_once:
        running |= {folder: start(folder, *one, options) for one, folder in zip(todo, folders, strict=True)}
    for (engine, processes), folder in zip(todo, folders, strict=True):
        if not options.at_once:
            began = time.monotonic()
            running[folder] = start(folder, engine, processes, options)
        failure = failure_of(running[folder], folder, options.limit + 20)
        took = time.monotonic() - began
        title = f"{engine or 'no engine'}, {processes} process{'es' * (processes > 1)}, {took:.0f} s"
        for recipe in options.recipes:
            if (folder / recipe / "report.json").is_file() and (alone / recipe / "report.json").is_file():
                report = json.loads((folder / recipe / "report.json").read_text())["whole"]
                peak = f", {report['peak']:.0f} MiB at most" if report["peak"] else ""
                print(f"{recipe}: {title}, {report['engine']}{peak}")
                for fine, line in judge(recipe, folder, alone):
                    print(f"  {'ok   ' if fine else 'WRONG'} {line}", flush=True)
                    sound = sound and fine
            else:
                print(f"{recipe}: {title}\n  WRONG nothing to compare")
        if failure:
            print(f"  WRONG {title}: {failure}", flush=True)
            sound = False
            if engine is None and not any(alone.glob("*/report.json")):
                return 1
    return 0 if sound else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--processes", type=int, nargs="+", default=[1, 2], help="they divide 16; one, undivided, is run always"
    )
    parser.add_argument("--engines", nargs="+", choices=tuple(CONFIGS), default=["ddp", "fsdp2"])
    there = [recipe for recipe in RECIPES if (ROOT / "recipes" / f"{recipe}.py").is_file()]
    parser.add_argument(
        "--recipes", nargs="+", default=there, help="as ppo, or with a variant of one_launch.py: ppo+lora"
    )
    parser.add_argument("--folder", type=Path, help="for runs and logs; default: a new one in the temporary folder")
    parser.add_argument("--at-once", action="store_true", help="all launches side by side; the GPUs have room for it")
    parser.add_argument("--limit", type=float, default=300, help="seconds of one launch, after which it is killed")
    options = parser.parse_args()
    if options.folder is not None and options.folder.exists() and any(options.folder.iterdir()):
        parser.error(f"{options.folder} is not empty: name a new folder")
    options.folder = (options.folder or Path(tempfile.mkdtemp(prefix="scale_runs."))).resolve()
    return options


if __name__ == "__main__":
    sys.exit(main())
