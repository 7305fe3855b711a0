"""Every log of the benchmark as one kind of case, and what each tool said of it."""

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detection import public_logs, simulated_faults, simulated_healthy

OURS = "trl_ext"
Said = list[tuple[int, str, str, int | None]]  # step, severity, rule or detector, step at which it was taken back

KL = {"kl_high", "kl_spike", "kl_runaway", "reward_flat_kl_rising"}
LENGTH = {"all_truncated", "length_drift", "length_collapse", "eos_missing"}
GROUPS = {"zero_signal", "reward_saturated", "frozen_policy"}
GRADIENT = {"grad_norm_spike", "grad_norm_trend", "nonfinite_metric"}
COMPONENTS = {"dead_reward_component", "component_dominance"}
# what a peer's detector names, in our rules' names: it has named a fault when one of these was expected
MEANS: dict[str, set[str]] = {
    "KL_BLOWUP": KL, "kl_drift": KL, "kl_explosion": KL,
    "ENTROPY_COLLAPSE": {"entropy_collapse"}, "entropy_collapse": {"entropy_collapse"},
    "REWARD_HACK_LENGTH": {"reward_hacking_suspected", "length_drift"}, "reward_hacking": {"reward_hacking_suspected"},
    "FORMAT_GAMING": {"reward_hacking_suspected", *COMPONENTS}, "reward_composition": COMPONENTS,
    "CLIP_SATURATION": {"clip_fraction_high"}, "clip_saturation": {"clip_fraction_high"},
    "DEGENERATE_GROUPS": GROUPS, "REWARD_STD_DEATH": GROUPS, "ADV_COLLAPSE": GROUPS, "advantage_collapse": GROUPS,
    "VALUE_DIVERGENCE": {"value_loss_divergence", "value_explained_variance"},
    "GRAD_PATHOLOGY": {*GRADIENT, "frozen_policy"}, "gradient_pathology": {*GRADIENT, "frozen_policy", "zero_signal"},
    "gradient_norm_spike": GRADIENT - {"nonfinite_metric"}, "loss_nan": {"nonfinite_metric"},
    "TRUNCATION_STARVE": LENGTH, "length_pathology": {*LENGTH, "reward_hacking_suspected"},
    "REPETITION_SPIRAL": {"reward_hacking_suspected", "entropy_collapse"},
    "REF_POLICY_DRIFT_ASYMMETRY": {"sampling_mismatch"}, "THROUGHPUT_ROT": {"step_time_drift"},
    "plateau": {"reward_flat"}, "reward_mean_drift": {"reward_drop"},
    "advantage_variance": {"value_loss_divergence", "value_explained_variance"},
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One log. `title`: the fault, shared by its seeds. `starts`: row at which it begins.

    `verdict` is "troubled", "healthy" or "unclear"; nothing is asked of the last. `said`: by our callbacks in the run
    itself, where a replay cannot tell.
    """

    name: str
    group: str
    title: str
    trainer: str
    rows: list[dict[str, Any]]
    expected: tuple[str, ...]
    starts: int
    verdict: str
    facts: dict[str, Any] = field(default_factory=dict)
    resumed_at: int | None = None
    said: "Said | None" = None

    def logs_after_start(self, step: int) -> int:
        """Logs from the first faulty one (0) to the one at `step`; negative before."""
        steps = [row["step"] for row in self.rows]
        return next((i for i, s in enumerate(steps) if s >= step), len(steps) - 1) - self.starts


def load_runs(folder: Path) -> list[Case]:
    """The real tiny runs of a cache."""
    cases = []
    for kind in ("runs", "healthy"):
        for path in sorted((folder / kind).glob("*.jsonl")):
            about = json.loads(path.with_suffix("").with_suffix(".about.json").read_text())
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            if rows:
                verdict = "troubled" if kind == "runs" else "healthy"
                facts, expected = about["facts"], tuple(about["expected"])
                cases.append(Case(f"real/{path.stem}", "real", path.stem, about["trainer"], rows, expected,
                                  about["starts"], verdict, facts, about["resumed_at"]))  # fmt: skip
    return cases


def load_simulated() -> list[Case]:
    return [
        Case(f"simulated/{run.name}", "simulated", run.name.rsplit("_", 1)[0], run.kind, run.rows, run.expected,
             run.starts, "troubled" if run.expected else "healthy", run.facts, run.resumed_at)
        for source in (simulated_faults.faulty(), simulated_healthy.healthy()) for run in source
    ]  # fmt: skip


def load_public() -> list[Case]:
    return [
        Case(f"public/{v.name}", "public", v.name, v.kind, v.rows, v.expected, v.starts,
             v.verdict, v.facts, v.resumed_at)
        for v in public_logs.verdicts()
    ]  # fmt: skip


def ours(case: Case) -> Said:
    """Each alert of our monitor with the worst severity it reached, as a replay of the log gives it."""
    from trl_ext.monitor import Engine

    if case.said is not None:
        return case.said
    engine = Engine(facts=case.facts)
    for row in case.rows:
        if row["step"] == case.resumed_at:
            engine.resumed()
        engine.observe(row["step"], row["logs"])
    return [(alert.opened, str(alert.severity), alert.rule, alert.closed) for alert in engine.alerts]


@dataclass(frozen=True)
class Outcome:
    """One tool on one faulty log: logs until it named the fault, and until it warned of anything; None is never.

    `named_loudly`: it named the fault as a warning or worse.
    """

    named: int | None
    anything: int | None
    what: str
    named_loudly: bool = False


def outcome(case: Case, said: Said) -> Outcome:
    """What was said before the fault began is a false alarm, and does not count; but in a public log, where one fault
    follows from another, an alert that is still open does: one root cause, one alert. "Anything" leaves `info` out.
    """
    later = []
    for step, severity, what, closed in said:
        delay = case.logs_after_start(step)
        still_open = case.group == "public" and (closed is None or case.logs_after_start(closed) >= 0)
        if severity != "crash" and (delay >= 0 or still_open):
            later.append((max(delay, 0), severity, what))
    later.sort()
    named = [item for item in later if (MEANS.get(item[2], set()) | {item[2]}) & set(case.expected)]
    loud = [item for item in later if item[1] != "info"]
    what = f"{named[0][2]} ({named[0][1]})" if named else ", ".join(sorted({item[2] for item in loud})[:2])
    loudly = any(item in loud for item in named)
    return Outcome(named[0][0] if named else None, loud[0][0] if loud else None, what, loudly)


def false_alarms(cases: Iterable[Case], said: dict[str, Said]) -> tuple[int, int, int]:
    """(healthy rows, warnings, errors or worse) over healthy logs, and over faulty simulated ones before the fault."""
    rows = warnings = errors = 0
    for case in cases:
        if case.verdict == "healthy":
            end = len(case.rows)
        elif case.group == "simulated" and case.starts > 0:
            end = case.starts
        else:
            continue
        rows += end
        for step, severity, *_ in said[case.name]:
            if case.logs_after_start(step) + case.starts < end:
                warnings += severity == "warning"
                errors += severity not in ("info", "warning")
    return rows, warnings, errors


def median_or_dash(delays: list[int]) -> str:
    return f"{statistics.median(delays):g}" if delays else "-"
