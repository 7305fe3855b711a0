"""What a monitor costs: on_log + on_step_end at growing histories, and memory over 100,000 logs; ours and the peers.

    python tests/benchmarks/bench_overhead.py --peers DIR

All rules and files are on. Every tool runs in a process of its own, on the same logs, driven as a TRL trainer drives a
callback; the tools take turns, round after round. `--peers` is the throw-away environment of `bench_detection.py`.
Peers that read their whole history again and again would need days: rldoctor is handed its records, rlprobe records
without diagnosing, and is then timed as it runs by default.
"""

import argparse
import gc
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

HISTORIES = (0, 10_000, 100_000)
MEMORY = 12 << 30  # bytes a peer may ask for
TIMED = {"trl_ext": 10_000, "rlwatch": 10_000}  # logs at each history
TIMED_SLOW = 100  # of a peer that diagnoses its whole history every 25 logs
GRPO = {
    "loss": 0.01, "grad_norm": 0.4, "learning_rate": 1e-6, "num_tokens": 1e6, "completions/mean_length": 200.0,
    "completions/min_length": 60.0, "completions/max_length": 400.0, "completions/clipped_ratio": 0.03,
    "completions/mean_terminated_length": 190.0, "completions/min_terminated_length": 60.0,
    "completions/max_terminated_length": 390.0, "rewards/accuracy/mean": 0.5, "rewards/accuracy/std": 0.4,
    "rewards/format/mean": 0.9, "rewards/format/std": 0.2, "reward": 1.4, "reward_std": 0.5,
    "frac_reward_zero_std": 0.1, "kl": 0.03, "entropy": 0.6, "clip_ratio/low_mean": 0.001, "clip_ratio/low_min": 0.0005,
    "clip_ratio/high_mean": 0.001, "clip_ratio/high_max": 0.002, "clip_ratio/region_mean": 0.002,
    "sampling/importance_sampling_ratio/min": 0.8, "sampling/importance_sampling_ratio/mean": 1.0,
    "sampling/importance_sampling_ratio/max": 1.2, "sampling/sampling_logp_difference/mean": 0.01, "step_time": 12.0,
    "epoch": 0.5,
}  # fmt: skip
PPO = {
    "eps": 2, "objective/kl": 4.0, "objective/entropy": 60.0, "objective/non_score_reward": -0.2,
    "objective/rlhf_reward": 1.3, "objective/scores": 1.5, "policy/approxkl_avg": 0.004, "policy/clipfrac_avg": 0.02,
    "loss/policy_avg": -0.01, "loss/value_avg": 0.3, "val/clipfrac_avg": 0.01, "policy/entropy_avg": 1.1,
    "val/ratio": 1.0, "val/ratio_var": 1e-5, "val/num_eos_tokens": 40, "lr": 3e-6, "episode": 640,
}  # fmt: skip
KEYS = {"GRPO": GRPO, "PPO": PPO}


# One tool -----------------------------------------------------------------------------------------


def build(tool: str, folder: str):
    """(callback, what fills its history fast, what then makes it work as by default)."""
    if tool == "trl_ext":
        from trl_ext import PPOMonitoringCallback

        return PPOMonitoringCallback(output_dir=folder), None, None
    if tool == "rlprobe":
        from rlprobe.integrations.trl import RlprobeCallback

        callback = RlprobeCallback(f"{folder}/probe")
        return callback, None, lambda: setattr(callback, "_on_finding", lambda finding: None)
    if tool == "rldoctor":
        from rl_doctor.integrations.trl import RLDoctorCallback

        callback = RLDoctorCallback()
        return callback, lambda step, logs: callback.monitor.records.append({**logs, "step": step}), None
    import rlwatch

    return rlwatch.attach(framework="trl")._trl_callback_class(), None, None


def measure(tool: str, keys: str, histories: list[int]) -> Iterator[dict]:
    """`{"history", "median", "p99", "mean", "cpu"}` in microseconds, and `rss_mb` since the first 1,000 logs.

    `cpu` is the median of the thread's own time, which other work on the machine disturbs less.
    """
    import logging

    from transformers import TrainerControl, TrainerState, TrainingArguments

    logging.disable(logging.CRITICAL)
    chance = random.Random(0)
    variants = [{k: v * chance.uniform(0.9, 1.1) for k, v in KEYS[keys].items()} for _ in range(997)]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        args = TrainingArguments(
            f"{folder}/run", use_cpu=True, report_to="none", max_steps=10**6, learning_rate=KEYS[keys].get("lr", 1e-6),
            lr_scheduler_type="constant",
        )  # fmt: skip
        state, control = TrainerState(max_steps=10**6), TrainerControl()
        callback, fill, start = build(tool, folder)
        callback.on_train_begin(args, state, control)
        base, cpu_times = None, []

        def log(times: list[int] | None = None) -> None:
            state.global_step += 1
            logs = dict(variants[state.global_step % len(variants)])
            if times is None and fill is not None:
                return fill(state.global_step, logs)
            cpu, begin = time.thread_time_ns(), time.perf_counter_ns()
            callback.on_log(args, state, control, logs=logs)
            callback.on_step_end(args, state, control)
            if times is not None:
                times.append(time.perf_counter_ns() - begin)
                cpu_times.append(time.thread_time_ns() - cpu)
            if state.global_step == 1000:
                nonlocal base
                base = resident()

        for history in histories:
            while state.global_step < history:
                log()
            if start is not None:
                start()
            gc.collect()
            grown = None if base is None else resident() - base
            times: list[int] = []
            cpu_times.clear()
            for _ in range(TIMED.get(tool, TIMED_SLOW)):
                log(times)
            times.sort()
            microseconds = {"median": times[len(times) // 2], "p99": times[-max(1, len(times) // 100)],
                            "mean": statistics.fmean(times), "cpu": statistics.median(cpu_times)}  # fmt: skip
            yield {"history": history, "rss_mb": grown, **{k: v / 1000 for k, v in microseconds.items()}}
            if tool == "rlprobe":
                callback._on_finding = None
        os.chdir("/")


def resident() -> float:
    """MiB of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


# The comparison -----------------------------------------------------------------------------------


def worker(python: str, tool: str, keys: str, histories: list[int], seconds: int) -> list[dict]:
    """What `measure` gives in a process of its own; of a peer, what it gives before its time or memory is over."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
    command = [python, "-W", "ignore", __file__, "--worker", tool, keys, "--histories", *map(str, histories)]
    with tempfile.TemporaryFile("w+") as answers:
        try:
            done = subprocess.run(
                command, stdout=answers, stderr=subprocess.PIPE, text=True, env=environment, timeout=seconds
            )
            if done.returncode and tool == "trl_ext":
                raise SystemExit(f"{tool} failed:\n{done.stderr[-2000:]}")
        except subprocess.TimeoutExpired:
            pass
        answers.seek(0)
        return [json.loads(line) for line in answers if line.startswith('{"history"')]


def best(rounds: list[list[dict]]) -> list[dict]:
    """Of each number the median over the rounds."""
    return [
        {key: statistics.median(run[i][key] for run in rounds) if rounds[0][i][key] is not None else None
         for key in rounds[0][i]}
        for i in range(min(map(len, rounds)))
    ]  # fmt: skip


def table(keys: str, measured: dict[str, list[dict]]) -> None:
    ours = measured["trl_ext"]
    print(f"\n{keys}, {len(KEYS[keys])} keys: microseconds for on_log + on_step_end (x: times ours)\n")
    print(
        "| tool | history | median | median of CPU time | p99 | mean | memory since log 1,000, MiB |\n"
        + "|---" * 7
        + "|"
    )
    for tool, results in measured.items():
        for row, own in zip(results, ours, strict=False):
            cells = [f"{row[k]:,.0f}" + ("" if tool == "trl_ext" else f" (x {row[k] / own[k]:,.1f})")
                     for k in ("median", "cpu", "p99", "mean")]  # fmt: skip
            memory = "" if row["rss_mb"] is None else f"{row['rss_mb']:.1f}"
            print(f"| {tool} | {row['history']:,} | " + " | ".join(cells) + f" | {memory} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="folder of the peers' environment; without it ours alone")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--histories", nargs="+", type=int, default=list(HISTORIES))
    parser.add_argument("--seconds", type=int, default=900, help="longest a peer may take")
    parser.add_argument("--keys", nargs="+", default=list(KEYS), choices=list(KEYS))
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--worker", nargs=2, metavar=("TOOL", "KEYS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        if options.worker[0] != "trl_ext":  # rldoctor asks for more than 24 GiB at 100,000 logs
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        for result in measure(*options.worker, options.histories):
            print(json.dumps(result), flush=True)
        return

    from detection import peers

    python, tools = sys.executable, ["trl_ext"]
    if options.peers:
        python, tools = peers.prepare(options.peers), ["trl_ext", *peers.VERSIONS]
    everything = {}
    for keys in options.keys:
        rounds: dict[str, list] = {tool: [] for tool in tools}
        for _ in range(options.rounds):
            for tool in tools:
                rounds[tool].append(worker(python, tool, keys, options.histories, options.seconds))
        everything[keys] = {tool: best(runs) for tool, runs in rounds.items()}
        table(keys, everything[keys])
        for tool, results in everything[keys].items():
            if len(results) < len(options.histories):
                where = f"{options.histories[len(results)]:,} logs"
                print(f"\n{tool} did not get through {where} in {options.seconds} s and {MEMORY >> 30} GiB.")
    if options.json:
        options.json.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
