"""Which faults the monitor names, after how many logs, and how often it cries wolf; the peers on the same logs.

    python tests/benchmarks/bench_detection.py --runs DIR --stock-python .venv-trl112/bin/python --peers DIR

Three kinds of logs: real tiny runs with a fault injected into the training itself and their healthy twins (trained
where they are not yet in `--runs`: about half a minute each on one core); simulated ones; public ones with verdicts
(where TRL_EXT_SHARED_DATA is). The rules are judged by replay, so a second call trains nothing. `--peers` makes a
throw-away environment there for rlprobe 0.1.0, rldoctor 0.2.0 and rlwatch 0.5.1.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))


def train(folder: Path, names: list[str]) -> None:
    """Trains the named runs in this process and keeps their logs."""
    import torch
    from detection.faults import FAULTS, HEALTHY
    from detection.recording import record, write_run

    torch.set_num_threads(1)
    for kind, table in (("runs", FAULTS), ("healthy", HEALTHY)):
        for run in [run for run in table if run.name in names]:
            begin = time.perf_counter()
            result = record(run.setting)
            about = {"name": run.name, "trainer": run.setting.trainer, "seed": run.setting.seed,
                     "expected": run.expected, "starts": run.starts}  # fmt: skip
            write_run(folder / kind, run.name, about, result)
            alerts = [f"{a['rule']}:{a['severity']}@{a['opened']}" for a in result["alerts"]]
            seconds = time.perf_counter() - begin
            print(f"{kind}/{run.name}: {len(result['rows'])} logs, {seconds:.0f} s", *alerts, result["error"] or "",
                  file=sys.stderr, flush=True)  # fmt: skip


def train_missing(folder: Path, stock_python: str | None, only: str) -> None:
    """One process a lane, so that each imports TRL once."""
    from detection.faults import FAULTS, HEALTHY

    missing = [
        run.name
        for kind, table in (("runs", FAULTS), ("healthy", HEALTHY))
        for run in table
        if only in run.name and not (folder / kind / f"{run.name}.jsonl").is_file()
    ]
    stock = [name for name in missing if name.startswith("stock_ppo")]
    for python, names in ((sys.executable, [n for n in missing if n not in stock]), (stock_python, stock)):
        if names and python:
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
            command = [python, "-W", "ignore", __file__, "--runs", str(folder), "--train", *names]
            subprocess.run(command, check=True, env=environment)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="folder of the real runs' logs; what is missing there is trained")
    parser.add_argument("--no-training", action="store_true", help="judge only the runs that are there")
    parser.add_argument("--stock-python", help="a Python with trl 1.12, for stock PPO; without it those are left out")
    parser.add_argument("--peers", type=Path, help="folder for the peers' environment; without it they are left out")
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--json", type=Path, help="also write what every tool said to this file")
    parser.add_argument("--train", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        return train(options.runs, options.train)

    from detection import exhibits, judging, peers, table

    if options.runs and not options.no_training:
        train_missing(options.runs, options.stock_python, options.only)
        exhibits.train_missing_exhibits(options.runs, options.only)
    cases = [*judging.load_simulated(), *judging.load_public()]
    if options.runs:
        cases = [*judging.load_runs(options.runs), *exhibits.load_exhibits(options.runs), *cases]
    cases = [case for case in cases if options.only in case.name]
    results: table.Results = {judging.OURS: {case.name: judging.ours(case) for case in cases}}
    if options.peers:
        logs = {id(case.rows): case for case in cases}  # a trace with three faults is one log
        asked = ({"name": key, "trainer": case.trainer, "rows": case.rows} for key, case in logs.items())
        answers = peers.judge(peers.prepare(options.peers), asked)
        for tool, version in peers.VERSIONS.items():
            results[f"{tool} {version}"] = {case.name: answers[id(case.rows), tool] for case in cases}

    print("\n".join(table.summary(cases, results)))
    for group in table.GROUPS:
        if any(case.group == group for case in cases):
            print("\n".join(table.faults(group, cases, results)))
        else:
            print(f"No {group} logs: see --help.\n")
    print("Our false alarms:", *table.alarms(cases, results[judging.OURS]), sep="\n")
    if options.json:
        record = [
            {"name": case.name, "verdict": case.verdict, "expected": case.expected, "starts": case.starts,
             "rows": len(case.rows), "said": {tool: said[case.name] for tool, said in results.items()}}
            for case in cases
        ]  # fmt: skip
        options.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
