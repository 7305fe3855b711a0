"""Short runs of the reinforcement learning recipes, in this process or in one of their own."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

from trl_ext.monitor.metrics import is_timing
from trl_ext.monitor.reading import read_metrics

ROOT = Path(__file__).resolve().parents[2]
# In both lanes, so only options that stock PPO knows as well
SHORT = {
    "ppo": ["--per_device_train_batch_size", "8", "--total_episodes", "32", "--response_length", "8"],
    "reinforce_loo": ["--per_device_train_batch_size", "8", "--max_steps", "4", "--max_completion_length", "8"],
}


def arguments(recipe: str, output_dir: Path, *more: str) -> list[str]:
    config = [] if "--config" in more else ["--config", str(ROOT / "recipes" / f"{recipe}.yaml")]
    options = ["--output_dir", str(output_dir), "--use_cpu", "true", "--report_to", "none", "--disable_tqdm", "true"]
    return [*config, *SHORT[recipe], *options, *more]


def run(recipe: str, output_dir: Path, *more: str) -> list[dict]:
    """Runs the recipe's `main` in this process; returns the rows of its metrics."""
    importlib.import_module(f"recipes.{recipe}").main(arguments(recipe, output_dir, *more))
    return read_metrics(output_dir / "trl_ext" / "metrics.jsonl")


def start(recipe: str, output_dir: Path, *more: str, **environment: str) -> subprocess.Popen:
    """Starts the recipe in a process of its own, its output in pipes."""
    command = [sys.executable, str(ROOT / "recipes" / f"{recipe}.py"), *arguments(recipe, output_dir, *more)]
    return subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def without_clocks(rows: list[dict]) -> list[dict]:
    """What must be equal in two runs: neither time and memory, nor which session of a folder logged it, nor what
    `RewardReliabilityCallback` says of a window of completions, which fills anew after a resume, nor which log follows
    the verdict on a checkpoint."""

    def differs(key: str) -> bool:
        return is_timing(key) or key == "session" or key.startswith(("reward_reliability/", "checkpoint_health/"))

    return [{key: value for key, value in row.items() if not differs(key)} for row in rows]
