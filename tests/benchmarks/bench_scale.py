"""Samples a second on 1, 2, 4 GPUs, ours beside stock, by Accelerate's engines; every process has the same work.

    python tests/benchmarks/bench_scale.py --processes 1 2 4
    python tests/benchmarks/bench_scale.py --processes 1 2 --shape tiny --cpu --samples 16 --response 16    a try

A random policy of Qwen3's shape, prompts of 64 tokens, completions of 256, 64 of them a process and step, gradient
checkpointing. Efficiency is samples a second of n processes over n times those of one (weak scaling: the batch grows
with the processes). Peak memory is that of the fullest card, from the start of training. All trainers of an engine and
a number of processes share one launch, one after another. Medians of the steps after the first two.
"""

import argparse
import copy
import gc
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from bench_generation import CASES, STOCK, run  # noqa: E402
from shapes import SHAPES  # noqa: E402

CONFIGS = {"ddp": "multi_gpu", "fsdp2": "fsdp2", "zero2": "zero2", "zero3": "zero3"}
MARK = "bench_scale: "


def worker(options: argparse.Namespace) -> None:
    """All cases, in each process of a launch; the main one prints a line of JSON a case."""
    import torch
    from accelerate import PartialState
    from accelerate.utils import gather_object

    if options.cpu:
        sys.path.insert(0, str(HERE / "scale"))
        from gloo_engines import allow_engines_on_the_cpu

        allow_engines_on_the_cpu()
    state = PartialState(cpu=options.cpu)
    for case in options.cases:
        try:
            found = run(case, options)
        except Exception as error:  # the others must not wait for this one: all fail in the same way, or none does
            found = {"case": case, "failed": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
        everywhere = gather_object([found])
        if state.is_main_process:
            failed = [each for each in everywhere if "failed" in each]
            found = failed[0] if failed else found | {"peak_gb": max(each["peak_gb"] for each in everywhere)}
            print(MARK + json.dumps(found), flush=True)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        state.wait_for_everyone()


def launch(engine: str, processes: int, options: argparse.Namespace) -> list[dict]:
    config = HERE.parents[1] / "accelerate_configs" / f"{CONFIGS[engine] if processes > 1 else 'single_gpu'}.yaml"
    words = [sys.executable, "-W", "ignore", "-m", "accelerate.commands.launch"]
    words += ["--cpu"] if options.cpu and engine == "ddp" else ["--config_file", str(config)]
    words += ["--num_processes", str(processes), "--main_process_port", "0"]
    words += [
        __file__,
        "--worker",
        "--dtype",
        options.dtype,
        "--cases",
        *options.cases,
        *(["--cpu"] if options.cpu else []),
    ]
    for name in ("samples", "prompt", "response", "micro_batch", "steps", "shape"):
        words += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        out, err = process.communicate(timeout=options.timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        out, err = process.communicate()
        print(f"{engine}, {processes} processes: ended after {options.timeout} s", file=sys.stderr, flush=True)
    found = [json.loads(line.removeprefix(MARK)) for line in out.splitlines() if line.startswith(MARK)]
    for case in options.cases[len(found) :]:
        found.append({"case": case, "failed": "the launch ended before it"})
    if any("failed" in each for each in found):
        print(f"{engine}, {processes} processes:\n{err[-2500:]}", file=sys.stderr, flush=True)
    return found


def line(engine: str, processes: int, found: dict, one: dict | None, stock: dict | None, options) -> str:
    if "failed" in found:
        return f"| {found['case']} | {engine} | {processes} | {found['failed']} | | | | | |"
    samples = processes * options.samples / found["step"]
    tokens = samples * options.response
    efficiency = f"{one['step'] / found['step']:.2f}" if one else ""
    times = f"{stock['step'] / found['step']:.2f}" if stock else ""
    return (
        f"| {found['case']} | {engine} | {processes} | {found['step']:.2f} | {samples:.1f} | {tokens:,.0f} | "
        f"{efficiency} | {times} | {found['peak_gb']:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--engines", nargs="+", choices=list(CONFIGS), default=["ddp"])
    parser.add_argument("--cases", nargs="+", choices=[case for case in CASES if case != "stock_ppo"],
                        default=["grpo", "reinforce_loo_fast"])  # fmt: skip
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--samples", type=int, default=64, help="of each process and step")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--response", type=int, default=256)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--shape", choices=list(SHAPES), default="0.6B")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for all cases of a launch")
    parser.add_argument("--cpu", action="store_true", help="gloo, for trying the script")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.profile, options.adapter = False, None
    if options.worker:
        worker(options)
        return
    lengths = f"{options.prompt} + {options.response} tokens a process and step"
    print(f"{options.shape} shape in {options.dtype}, {options.samples} samples of {lengths}\n")
    print("| trainer | engine | processes | step, s | samples/s | tokens/s | efficiency | times stock | peak, GB |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    sound = True
    alone: dict[str, dict] = {}
    for engine in options.engines:
        for processes in options.processes:
            if processes == 1 and alone:  # no engine has a part in it
                continue
            rows = {found["case"]: found for found in launch(engine, processes, copy.copy(options))}
            for case, found in rows.items():
                if processes == 1 and "failed" not in found:
                    alone[case] = found
                stock = rows.get(STOCK.get(case.split("_fast")[0], ""))
                stock = stock if stock and stock is not found and "failed" not in stock else None
                print(line(engine, processes, found, alone.get(case), stock, options), flush=True)
                sound = sound and "failed" not in found
    if not sound:
        sys.exit(1)


if __name__ == "__main__":
    main()
