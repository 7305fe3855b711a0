"""docs/rules.md is what the rules say of themselves: `python tests/monitor/test_rules_reference.py` writes it."""

import inspect
import re
from pathlib import Path

import pytest

from trl_ext.monitor.presets import PRESETS
from trl_ext.monitor.rules import FAMILIES, RULES
from trl_ext.monitor.thresholds import THRESHOLDS

DOCUMENT = Path(__file__).parents[2] / "docs" / "rules.md"
HEAD = """# The rules

What the monitor looks for. Written from the rules' docstrings and `trl_ext/monitor/thresholds.py` by
`python tests/monitor/test_rules_reference.py`; change a limit with `thresholds={"kl_high.logs": 5}`, or a YAML file of
`kl_high: {logs: 5}`. A rule whose cause is already open stays quiet unless it has something worse to say.
"""


def paragraphs(rule) -> list[str]:
    """The summary, then what it sees, why it matters, where it comes from and its default, each on one line."""
    lines = [" ".join(part.split()) for part in re.split(r"\n\s*\n", inspect.cleandoc(rule.__doc__))]
    parts = re.split(r"(?<=[.:)`]) (?=(?:Sees|Matters|Source|Default)[:,])", " ".join(lines))
    return [re.sub(r"^(Sees[^:]*|Matters|Source|Default):", r"*\1:*", part) for part in parts]


def reference() -> str:
    text = [HEAD]
    for family, rules in FAMILIES.items():
        text.append(f"## {family}\n")
        for rule in rules:
            summary, *rest = paragraphs(rule)
            if rule.explained_by:
                rest.append(f"*Quiet while open:* {', '.join(f'`{cause}`' for cause in rule.explained_by)}")
            text += [f"### `{rule.name}`\n", f"{summary}\n", *(f"- {part}" for part in rest), ""]
            limits = [t for t in THRESHOLDS if t.name.split(".")[0] == rule.name]
            if limits:
                text += ["| limit | default | unit | source |", "|---|---|---|---|"]
                text += [f"| `{t.name.split('.')[1]}` | {t.default:g} | {t.unit} | {t.source} |" for t in limits]
                text.append("")
    text += ["## Presets\n", "| preset | families | limits that differ |", "|---|---|---|"]
    for name, (families, limits) in PRESETS.items():
        differs = ", ".join(f"`{limit}` {value:g}" for limit, value in limits.items())
        text.append(f"| `{name}` | {', '.join(families)} | {differs} |")
    return "\n".join(text) + "\n"


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rule_says_what_it_sees_why_it_matters_its_source_and_its_default(rule):
    labels = re.findall(r"\b(Sees|Matters|Source|Default)[:,]", rule.__doc__)
    assert labels == ["Sees", "Matters", "Source", "Default"]


def test_the_document_is_what_the_rules_say():
    assert DOCUMENT.read_text(encoding="utf-8") == reference(), "run python tests/monitor/test_rules_reference.py"


if __name__ == "__main__":
    DOCUMENT.write_text(reference(), encoding="utf-8")
