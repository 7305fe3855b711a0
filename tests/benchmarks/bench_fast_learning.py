"""Whether fast generation learns as the slow one does: the review task, the same seeds with and without it.

    python tests/benchmarks/bench_fast_learning.py                            three seeds on one GPU
    python tests/benchmarks/bench_fast_learning.py --steps 4 --seeds 0 --anywhere   tries the script on a CPU

REINFORCE-LOO on the embedded policy as `bench_learning.py` trains it (float32 weights, so that the twin in bfloat16 is
not the policy), 64 completions a step; then four of each of 256 held-out prompts, by Transformers alone, on
the CPU. `mismatch`: mean over the steps of |log p - log q| a token, training against sampling, where it is corrected.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "learning"))
VARIANTS = ("slow", "fast", "fast, corrected")


def run(variant: str, seed: int, steps: int, learning_rate: float, folder: Path) -> dict[str, Any]:
    import one_run
    import torch
    from tasks import reward_of, start

    from trl_ext import FastGeneration, drop_raw_logs

    one_run.COMMON["use_cpu"] = not torch.cuda.is_available()
    begin, reward = start("review", folder), one_run.Recorded(reward_of("review"))
    with tempfile.TemporaryDirectory() as scratch:
        trainer = one_run.build("reinforce_loo", "review", learning_rate, seed, steps, scratch, begin, reward)
        trainer.args.logging_steps = 1
        drop_raw_logs(trainer)
        fast = FastGeneration(trainer, correct=variant == "fast, corrected").start() if variant != "slow" else None
        began = time.monotonic()
        trainer.train()
        seconds = time.monotonic() - began
    logs = trainer.state.log_history
    apart = [row[key] for row in logs for key in row if key.endswith("sampling_logp_difference/mean")]
    curve = [statistics.fmean(reward.given[at : at + 64]) for at in range(0, 64 * steps, 64)]
    if fast is not None:
        fast.release()
    final = one_run.evaluate(trainer.accelerator.unwrap_model(trainer.model).cpu(), begin, "review", reward.function)
    return {
        "variant": variant, "seed": seed, "seconds": seconds, **final, "curve": curve,
        "compilations": fast.compilations if fast else 0, "refused": fast.refused if fast else None,
        "mismatch": statistics.fmean(apart) if apart else None,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"))
    parser.add_argument("--json", type=Path, help="also write everything there, with the curves")
    parser.add_argument("--anywhere", action="store_true", help="compile where there is no GPU, too")
    options = parser.parse_args()
    if options.anywhere:
        from trl_ext.generation import fast_generation

        fast_generation.DEVICES = ("cuda", "cpu")
    print("| generation | seed | reward | KL | reward - 0.05 KL | first ten | last ten | mismatch | graphs | seconds |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    rows = []
    for variant in options.variants:
        for seed in options.seeds:
            found = run(variant, seed, options.steps, options.learning_rate, options.runs)
            rows.append(found)
            mismatch = "" if found["mismatch"] is None else f"{found['mismatch']:.4f}"
            print(f"| {variant} | {seed} | {found['reward']:.3f} | {found['kl']:.2f} | "
                  f"{found['reward'] - 0.05 * found['kl']:.3f} | {statistics.fmean(found['curve'][:10]):.3f} | "
                  f"{statistics.fmean(found['curve'][-10:]):.3f} | {mismatch} | "
                  f"{found['refused'] or found['compilations']} | {found['seconds']:.0f} |", flush=True)  # fmt: skip
    for variant in options.variants:
        values = [row["reward"] - 0.05 * row["kl"] for row in rows if row["variant"] == variant]
        spread = f" ± {statistics.stdev(values) / len(values) ** 0.5:.3f}" if len(values) > 1 else ""
        print(f"{variant}: reward - 0.05 KL {statistics.fmean(values):.3f}{spread} (standard error)", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
