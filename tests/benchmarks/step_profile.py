"""Where the time of one training step goes: the card's kernels of generating, scoring and updating, the dearest first.

The phases are ranges that `range_of(name)` opens around methods, the inner of two nested ones counts; what lies in none
is the update. The profiler slows the host, not the kernels: compare their seconds with those of steps without it.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

MARK = "phase/"
KERNELS_SHOWN = 8


def range_of(name: str) -> Any:
    import torch

    return torch.profiler.record_function(MARK + name)


def profiler() -> Any:
    import torch

    kinds = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    return torch.profiler.profile(activities=kinds)


def phases_of(profile: Any, on_card: bool) -> dict[str, tuple[Counter, Counter]]:
    """Phase -> microseconds and calls by kernel; without a card those of the operators themselves."""
    from torch.autograd import DeviceType

    events = profile.events()
    ranges = sorted(
        (event.time_range.end - event.time_range.start, event.time_range.start, event.time_range.end,
         event.name.removeprefix(MARK))
        for event in events
        if event.name.startswith(MARK) and event.device_type == DeviceType.CPU
    )  # fmt: skip
    found: dict[str, tuple[Counter, Counter]] = {}
    for event in events:
        # ranges of others (compiled graphs', the optimizer's) stand on the card's line of time beside their kernels
        if event.is_user_annotation or (event.device_type == DeviceType.CUDA) != on_card:
            continue
        start = event.time_range.start
        phase = next((name for _, first, last, name in ranges if first <= start <= last), "update")
        times, calls = found.setdefault(phase, (Counter(), Counter()))
        times[event.name] += event.time_range.elapsed_us() if on_card else event.self_cpu_time_total
        calls[event.name] += 1
    return found


def lines(profile: Any, on_card: bool, seconds: Mapping[str, float]) -> list[str]:
    """Markdown: a heading and a table a phase.

    Args:
        seconds: phase -> what it takes without the profiler.
    """
    text = []
    for phase, (times, calls) in phases_of(profile, on_card).items():
        busy, wall = times.total() / 1e6, seconds.get(phase)
        of = f" of {wall:.2f} s ({busy / wall:.0%})" if wall else " s"
        text += ["", f"{phase}: kernels {busy:.2f}{of}, {calls.total():,} of them", "",
                 "| kernel | seconds | calls |", "|---|---|---|"]  # fmt: skip
        for name, took in times.most_common(KERNELS_SHOWN):
            text.append(f"| {name[:100].replace('|', '/')} | {took / 1e6:.3f} | {calls[name]:,} |")
    return text
