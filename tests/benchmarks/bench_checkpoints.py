"""What it costs to judge a checkpoint: ratios taken side by side in one run.

    python tests/benchmarks/bench_checkpoints.py [--gigabytes 1] [--rounds 9] [--folder /tmp]

* Judging a warm file beside reading every tensor with safetensors and summing it, each with all cores.
* Judging it against a reference beside judging the two files one after the other.
* One worker beside all.
* Peak memory of a process of its own that judges, above that of one that has only imported the same.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from trl_ext.checkpoints.health.judging import judge

SIDE = 4096
CORES = len(os.sched_getaffinity(0))


def write(folder: Path, gigabytes: float, seed: int, base: Path | None = None) -> Path:
    """A model of square bfloat16 matrices; close to the one in `base` where that is given."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    count = max(1, round(gigabytes * 1e9 / (SIDE * SIDE * 2)))
    tensors = {}
    old = None if base is None else safe_open(base / "model.safetensors", framework="pt")
    for i in range(count):
        name = f"model.layers.{i}.self_attn.q_proj.weight"
        drawn = torch.randn(SIDE, SIDE, generator=generator) * (0.02 if old is None else 0.0005)
        tensors[name] = (drawn if old is None else drawn + old.get_tensor(name).float()).to(torch.bfloat16)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return folder


def read_and_sum(folder: Path) -> float:
    total = 0.0
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - no dictionary
            total += float(file.get_tensor(name).sum())
    return total


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def report(name: str, pairs: list[tuple[float, float]]) -> None:
    """The median of the ratios of pairs taken one after the other, and the ratio of the fastest of each side."""
    ratios = [a / b for a, b in pairs]
    fastest = min(a for a, _ in pairs) / min(b for _, b in pairs)
    print(f"{name:<58} median {statistics.median(ratios):5.2f}   fastest {fastest:5.2f}   "
          f"({min(a for a, _ in pairs):.3f} s, {min(b for _, b in pairs):.3f} s)")  # fmt: skip


def peak_memory(folder: Path, reference: Path | None) -> int:
    """Bytes by which judging raises the memory of a process of its own above what its imports hold."""
    second = f", {str(reference)!r}" if reference else ""
    code = (
        "from trl_ext.checkpoints.health.judging import judge\n"
        "def of(name): return next(int(l.split()[1]) for l in open('/proc/self/status') if l.startswith(name)) << 10\n"
        "open('/proc/self/clear_refs', 'w').write('5')\n"  # the peak so far, which importing torch made
        "before = of('VmRSS')\n"
        f"judge({str(folder)!r}{second})\n"
        "print(of('VmHWM') - before)"
    )
    return int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        first = write(work / "first", options.gigabytes, seed=0)
        second = write(work / "second", options.gigabytes, seed=1, base=first)
        torch.set_num_threads(CORES)
        for folder in (first, second):  # into the page cache
            judge(folder)
            read_and_sum(folder)
        alone, beside, cores = [], [], []
        for _ in range(options.rounds):
            alone.append((seconds(lambda: judge(second)), seconds(lambda: read_and_sum(second))))
            own = seconds(lambda: judge(first)) + seconds(lambda: judge(second))
            beside.append((seconds(lambda: judge(second, first)), own))
            cores.append((seconds(lambda: judge(second, workers=1)), seconds(lambda: judge(second, workers=CORES))))
        print(f"{CORES} cores, {options.gigabytes:g} GB of bfloat16, {options.rounds} rounds")
        report("judging / safetensors and sum", alone)
        report("judging against a reference / judging both", beside)
        report(f"one worker / {CORES} workers", cores)
        print(f"peak memory above the imports: {peak_memory(second, None) / 1e6:.0f} MB, with a reference "
              f"{peak_memory(second, first) / 1e6:.0f} MB")  # fmt: skip
        print("RLDK: not on the package registries, so that its analyzer is not timed beside this.")
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
