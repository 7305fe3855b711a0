"""The exhibit of a hacked reward and its healthy twin, as a user runs them: `recipes/reward_hacking.yaml` and
`recipes/ppo.yaml`, three seeds each, with the monitor and `RewardReliabilityCallback`.

What they said is read from their `alerts.jsonl`: a replay of the logs cannot ask the reward functions.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from detection.judging import Case

ROOT = Path(__file__).resolve().parents[3]
SEEDS = (0, 1, 2)
GOLD = "reward_model"  # folder of the held-back reward, which is trained where it is missing
# logs: the reward has begun to rise, and the held-back one falls from log 14, 20 and 27 on (seeds 2, 0 and 1)
STARTS = 10
_ADDED = ("reward_reliability/", "reward_failures/", "trl_ext")


def train_missing_exhibits(folder: Path, only: str) -> None:
    """A process a run."""
    names = [name for name in _names() if only in f"exhibit/{name}" and not _metrics(folder, name).is_file()]
    gold = folder / GOLD
    if names and not (gold / "config.json").is_file():
        _recipe("reward.py", "reward.yaml", "--output_dir", str(gold))
    for name in names:
        config, seed = name.rsplit("_", 1)
        held_back = ["--gold_reward", str(gold)]  # in both: it must not cry wolf where there is one
        output = ["--output_dir", str(folder / "exhibit" / name), "--seed", seed]
        _recipe("ppo.py", f"{config}.yaml", *output, *held_back, "--report_to", "none")


def load_exhibits(folder: Path) -> list[Case]:
    cases = []
    for name in _names():
        if _metrics(folder, name).is_file():
            rows = list(map(_row, _lines(_metrics(folder, name))))
            hacked = name.startswith("reward_hacking")
            expected = ("reward_hacking_suspected",) if hacked else ()
            said = _said(_metrics(folder, name).with_name("alerts.jsonl"))
            cases.append(
                Case(f"exhibit/{name}", "exhibit", name.rsplit("_", 1)[0], "ppo", rows, expected,
                     STARTS if hacked else 0, "troubled" if hacked else "healthy", said=said)
            )  # fmt: skip
    return cases


def _names() -> list[str]:
    return [f"{config}_{seed}" for config in ("reward_hacking", "ppo") for seed in SEEDS]


def _metrics(folder: Path, name: str) -> Path:
    return folder / "exhibit" / name / "trl_ext" / "metrics.jsonl"


def _recipe(script: str, config: str, *options: str) -> None:
    recipes = ROOT / "recipes"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT),
                   "TRL_EXT_PPO": "trl_ext"}  # fmt: skip
    command = [sys.executable, "-W", "ignore", str(recipes / script), "--config", str(recipes / config), *options]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def _row(line: dict[str, Any]) -> dict[str, Any]:
    """As the trainer logged it."""
    logs = {key: value for key, value in line.items() if key not in ("step", "session") and not key.startswith(_ADDED)}
    return {"step": line["step"], "logs": logs}


def _said(path: Path) -> list[tuple[int, str, str, int | None]]:
    """Each alert with the worst severity it reached; the same rule that opens anew is another."""
    said: dict[tuple[str, int], tuple[int, str, str, int | None]] = {}
    for line in _lines(path):
        opened, rule = line["opened"], line["rule"]
        said[rule, opened] = (opened, line["severity"], rule, line["closed"])
    return list(said.values())
