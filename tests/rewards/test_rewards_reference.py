"""The table of reward functions in docs/rewards.md is the registry. Run this file to write it anew."""

import re
from pathlib import Path

from trl_ext.reporting.reward_tables import arguments_of
from trl_ext.rewards import REWARDS

DOCS = Path(__file__).parents[2] / "docs" / "rewards.md"
TABLE = re.compile(r"(?<=## The functions\n\n).*?(?=\n\n`accuracy_reward`)", re.DOTALL)


def table():
    rows = ["| name | what it rewards | kwargs |", "|---|---|---|"]
    for name, entry in REWARDS.items():
        kwargs = ", ".join(f"`{argument}`" for argument in arguments_of(name))
        rows.append(f"| `{name}` | {entry.description} | {kwargs} |")
    return "\n".join(rows)


def test_the_documented_functions_are_those_of_the_registry():
    assert TABLE.search(DOCS.read_text(encoding="utf-8"))[0] == table(), (
        "run python tests/rewards/test_rewards_reference.py"
    )


if __name__ == "__main__":
    DOCS.write_text(TABLE.sub(lambda _: table(), DOCS.read_text(encoding="utf-8"), count=1), encoding="utf-8")
