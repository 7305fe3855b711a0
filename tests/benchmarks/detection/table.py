"""The markdown tables of the detection benchmark."""

from collections.abc import Iterator

from detection.judging import OURS, Case, Outcome, Said, false_alarms, median_or_dash, outcome

SOON = 30  # logs
GROUPS = {
    "real": "Real tiny runs",
    "exhibit": "A reward that is hacked, and its healthy twin",
    "simulated": "Simulated logs",
    "public": "Public logs and reports",
}
Results = dict[str, dict[str, Said]]  # tool, then the case's name


def by_title(cases: list[Case]) -> dict[str, list[Case]]:
    titles: dict[str, list[Case]] = {}
    for case in cases:
        titles.setdefault(case.title, []).append(case)
    return titles


def cell(outcomes: list[Outcome], ours: bool) -> str:
    """`rule (severity), 5` logs after the fault began; a peer that said something else: `says other, 5`."""
    named = [o.named for o in outcomes if o.named is not None]
    seeds = f" {len(named)}/{len(outcomes)}" if len(outcomes) > 1 else ""
    best = next((o for o in outcomes if o.named is not None), outcomes[0])
    if named:
        return f"{best.what}{seeds}, {median_or_dash(named)}"
    spoke = [o for o in outcomes if o.anything is not None]
    if not spoke:
        return "**missed**" if ours else "-"
    other = f"{spoke[0].what}, {median_or_dash([o.anything for o in spoke if o.anything is not None])}"
    return f"**missed**; says {other}" if ours else f"({other})"


def faults(group: str, cases: list[Case], results: Results) -> Iterator[str]:
    tools = list(results)
    yield f"### {GROUPS[group]}: rule or detector, logs from the fault's first one until it was named"
    yield ""
    yield "| fault | " + " | ".join(tools) + " |"
    yield "|---" * (len(tools) + 1) + "|"
    troubled = [case for case in cases if case.group == group and case.verdict == "troubled"]
    for title, same in by_title(troubled).items():
        cells = [cell([outcome(case, results[tool][case.name]) for case in same], tool == OURS) for tool in tools]
        yield f"| {title} | " + " | ".join(cells) + " |"
    yield ""


def summary(cases: list[Case], results: Results) -> Iterator[str]:
    """Faults named, and false alarms per 1,000 healthy rows."""
    yield "| logs | | " + " | ".join(results) + " |"
    yield "|---" * (len(results) + 2) + "|"
    for group in GROUPS:
        mine = [case for case in cases if case.group == group]
        troubled = [case for case in mine if case.verdict == "troubled"]
        if not mine:
            continue
        lines: dict[str, list[str]] = {}
        for said in results.values():
            outcomes = [outcome(case, said[case.name]) for case in troubled]
            rows, warnings, errors = false_alarms(mine, said)
            for what, value in {
                f"faults named, of {len(troubled)}": sum(o.named is not None for o in outcomes),
                f"within {SOON} logs": sum(o.named is not None and o.named <= SOON for o in outcomes),
                "as a warning or worse": sum(o.named_loudly for o in outcomes),
                "a warning of whatever kind": sum(o.anything is not None for o in outcomes),
                f"false alarms per 1,000 of {rows:,} healthy rows, warnings / errors":
                    f"{1000 * warnings / max(rows, 1):.2f} / {1000 * errors / max(rows, 1):.2f}",
            }.items():  # fmt: skip
                lines.setdefault(what, []).append(str(value))
        for i, (what, values) in enumerate(lines.items()):
            yield f"| {'' if i else GROUPS[group]} | {what} | " + " | ".join(values) + " |"
    yield ""


def alarms(cases: list[Case], said: dict[str, Said]) -> Iterator[str]:
    """Our own false alarms, one a line."""
    for case in cases:
        before = len(case.rows) if case.verdict == "healthy" else case.starts if case.group == "simulated" else 0
        for step, severity, rule, _ in said[case.name]:
            if severity != "info" and case.logs_after_start(step) + case.starts < before:
                yield f"* {case.name}: {rule} ({severity}) at step {step}"
