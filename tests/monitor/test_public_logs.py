"""Real logs of others, with verdicts: what is healthy stays silent, what the five rules are for is caught.

The data is not in the repository: set TRL_EXT_SHARED_DATA, or put the folder at ../shared/data.
"""

import json
import os
from pathlib import Path

import pytest

from trl_ext.monitor import RULES, Engine

DATA = Path(os.environ.get("TRL_EXT_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
pytestmark = pytest.mark.skipif(not (DATA / "public_reports.json").is_file(), reason=f"no public logs in {DATA}")

OURS = {"nonfinite": "nonfinite_metric"} | {name: name for name in RULES}
# what each public report should raise among the rules there are so far; all others must stay silent
REPORTS = {
    "ppo_hongbomiao_no_eos": {"kl_high": "warning"},
    "grpo_kl_nan_reward_spread": {"nonfinite_metric": "critical"},
    "dpo_nan_step2": {"nonfinite_metric": "critical"},
    "kto_nan": {"nonfinite_metric": "critical"},
}


def index():
    path = DATA / "traces" / "index.json"
    return json.loads(path.read_text()) if path.is_file() else []


def reports():
    path = DATA / "public_reports.json"
    cases = json.loads(path.read_text()) if path.is_file() else {}
    return {name: case for name, case in cases.items() if case.get("rows")}


def replay(rows):
    engine = Engine()
    for step, logs in rows:
        engine.observe(step, logs)
    return engine


@pytest.mark.parametrize("trace", index(), ids=lambda trace: trace["name"])
def test_trace(trace):
    lines = (DATA / "traces" / trace["file"]).read_text().splitlines()
    rows = [(record["step"], record["logs"]) for record in map(json.loads, lines)]
    engine = replay(rows)
    faults = {OURS[fault["kind"]]: fault for fault in trace["faults"] if fault["kind"] in OURS}
    assert {alert.rule for alert in engine.alerts} == set(faults)
    steps = [step for step, _ in rows]
    for alert in engine.alerts:
        begins = faults[alert.rule]["row"]
        assert begins <= steps.index(alert.opened) <= begins + 12


@pytest.mark.parametrize("name", reports())
def test_report(name):
    case = reports()[name]
    rows = [dict(zip(case["columns"], row, strict=True)) if "columns" in case else row for row in case["rows"]]
    engine = replay((row.get("step", i + 1), row) for i, row in enumerate(rows))
    assert {alert.rule: str(alert.severity) for alert in engine.alerts} == REPORTS.get(name, {})


def test_the_first_nan_is_named_at_its_row():
    for name in ("grpo_kl_nan_reward_spread", "dpo_nan_step2", "kto_nan"):
        rows = reports()[name]["rows"]
        engine = replay(enumerate(rows, 1))
        assert engine.alerts[0].opened == (1 if name.startswith("grpo") else 2)
        assert ("rejected side" in engine.alerts[0].advice) == (name == "kto_nan")


def test_older_reports_of_the_ratio():
    cases = json.loads((DATA / "public_reports.json").read_text())
    wild = replay((i, {"val/ratio": ratio}) for i, ratio in enumerate(cases["ppo_ratio_warnings"]["avg_ratio"]))
    assert [(a.rule, a.severity, a.opened) for a in wild.alerts] == [("ratio_out_of_band", "critical", 0)]
    tame = cases["ppo_ratio_mean_first_updates"]
    assert not replay((i, {"val/ratio": ratio}) for key in ("ratio_mean_from_minibatch_6", "epoch0", "epoch1_first6")
                      for i, ratio in enumerate(tame[key])).alerts  # fmt: skip
    for ratio in cases["ppo_adam_reference_vs_aggressive"]["ratio_mean"]:
        assert not replay((i, {"val/ratio": ratio}) for i in range(9)).alerts
