"""Memory and time."""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from trl_ext.monitor.alerts import Severity
from trl_ext.monitor.rows import Row
from trl_ext.monitor.rules.base import Finding, Levels, Rule, Verdict
from trl_ext.monitor.rules.reward_components import Functions
from trl_ext.monitor.statistics import Blocks, Recent, Start, Statistic, finite

BLOCK = 4  # logs
MEMORY = {"system/rss_mb": "MB", "system/gpu_memory_mb": "MB", "memory_gb": "GB"}


class _Climb(Statistic):
    """Means of four logs that rise to a new maximum each time: how often in a row, and from where.

    Attributes:
        level: of the latest finding; told: of that before memory was calm again.
    """

    def __init__(self) -> None:
        self._sum, self._count, self.blocks = 0.0, 0, 0
        self._highest = -math.inf
        self.rises, self.base, self.quiet = 0, 0.0, 0  # quiet: means since the last maximum
        self.level = self.told = 0.0

    def push(self, value: float) -> bool:
        """Whether a mean is new."""
        self._sum += finite(value)
        self._count += 1
        if self._count < BLOCK:
            return False
        mean = self._sum / BLOCK
        self._sum, self._count = 0.0, 0
        self.blocks += 1
        if mean > self._highest:
            if self.rises == 0:
                self.base = max(self._highest, 0.0)
            self._highest, self.rises, self.quiet = mean, self.rises + 1, 0
        else:
            self.rises, self.quiet = 0, self.quiet + 1
        return True

    @property
    def growth(self) -> float:
        """Since the first of these rises, as a share of the maximum before it."""
        return self._highest / self.base - 1 if self.rises and self.base > 0 else 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"sum": self._sum, "count": self._count, "blocks": self.blocks, "rises": self.rises,
                "base": self.base, "quiet": self.quiet, "level": self.level, "told": self.told,
                "highest": None if self._highest == -math.inf else self._highest}  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sum, self._count, self.blocks = finite(state["sum"]), int(state["count"]), int(state["blocks"])
        self.rises, self.base, self.quiet = int(state["rises"]), finite(state["base"]), int(state["quiet"])
        self.level, self.told = finite(state["level"]), finite(state["told"])
        self._highest = -math.inf if state["highest"] is None else state["highest"]


class MemoryGrowth(Rule):
    """Memory grows all the time.

    Sees: the memory of the process and of the GPU over the whole run, in blocks; the first quarter of them, in which
    caches fill, is left out. Rising in nine of ten blocks, by 2% in all, or by 10% for the process, whose files in
    memory count as well. A leak that begins later: means of four logs that rise to a new maximum seven times in a row,
    by 5%.
    Matters: the run ends at night, out of memory.
    Source: unsloth#2470: 36.0 to 39.9 GB in 650 steps. Default: a warning after 128 logs.
    """

    name = "memory_growth"
    patient = True
    metrics = tuple(MEMORY)
    close_after = 1

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        self._blocks, self._climbs = Functions(Blocks), Functions(_Climb)

    def check(self, row: Row) -> Finding | Verdict:
        verdicts = [self._follow(metric, row) for metric in MEMORY if metric in row.metrics]
        found = next((verdict for verdict in verdicts if isinstance(verdict, Finding)), None)
        if found is not None:
            return found
        return Verdict.HEALTHY if Verdict.HEALTHY in verdicts and Verdict.NO_DATA not in verdicts else Verdict.NO_DATA

    def _follow(self, metric: str, row: Row) -> Finding | Verdict:
        value, blocks, climb = row.metrics[metric], self._blocks.get(metric), self._climbs.get(metric)
        before = len(blocks)
        blocks.push(value)
        new, whole = climb.push(value), len(blocks) > before
        if not (new or whole) or climb.blocks * BLOCK < self.limits["logs"]:
            return Verdict.NO_DATA
        calm = climb.quiet >= self.limits["quiet_blocks"]
        found = self._leak(metric, row, climb) if new else None
        if found is None and whole and not calm:
            found = self._judge(metric, row, blocks)
        if found is not None and value > self.limits["again"] * climb.told:
            climb.level = max(climb.level, value)
            return found
        if not calm:
            return Verdict.NO_DATA
        climb.told = climb.level
        return Verdict.HEALTHY

    def _leak(self, metric: str, row: Row, climb: _Climb) -> Finding | None:
        if climb.rises < self.limits["leak_blocks"] or climb.growth < self.limits["leak_growth"]:
            return None
        pace = climb.base * climb.growth / (BLOCK * climb.rises)
        return _grows(metric, row, climb.base, climb.base * (1 + climb.growth), climb.growth, pace)

    def _judge(self, metric: str, row: Row, blocks: Blocks) -> Finding | None:
        means = blocks.means[len(blocks.means) // 4 :]
        rises = [after > before for before, after in pairwise(means)]
        growth = means[-1] / means[0] - 1 if means[0] > 0 else 0.0
        if growth < self.limits["process_growth" if metric == "system/rss_mb" else "growth"] or sum(
            rises
        ) < self.limits["rising_share"] * len(rises):
            return None
        pace = (means[-1] - means[0]) / (blocks.length * (len(means) - 1))
        return _grows(metric, row, means[0], means[-1], growth, pace)


def _grows(metric: str, row: Row, before: float, now: float, growth: float, pace: float) -> Finding:
    unit = MEMORY[metric]
    return Finding(
        Severity.WARNING, metric, row.metrics[metric],
        f"memory grows steadily: {before:.4g} to {now:.4g} {unit}, about {pace:.2g} {unit} a log",
        "1. Something keeps tensors: a list of losses or completions in a reward function or callback (use .item(), "
        "detach). 2. Lengths grow, and the allocator fragments: "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True. 3. A data loader with workers copies what it reads: "
        "dataloader_num_workers=0 to test.",
        {"growth": growth, "per_log": pace},
    )  # fmt: skip


class StepTimeDrift(Rule):
    """Steps take much longer than they did.

    Sees: `step_time`, in all and a completion token, since longer completions honestly take longer: the
    median of the last 16 logs against that of the first 16.
    Matters: a node that throttles, a disk that fills, a reward service that queues: all cost GPU time.
    Source: DESIGN. Default: 2.5 times for ten logs a warning.
    """

    name = "step_time_drift"
    patient = True
    metrics = ("step_time",)
    statistical = True

    def __init__(self, limits: Mapping[str, float], window: int = 64):
        super().__init__(limits, window)
        size = int(limits["stretch"])
        self._start, self._recent = Start(size), Recent(size)
        self._seconds_start, self._seconds = Start(size), Recent(size)
        self._levels = Levels({Severity.WARNING: limits["logs"]})

    def check(self, row: Row) -> Finding | Verdict:
        seconds = row.metrics.get("step_time")
        if seconds is None or seconds < self.limits["smallest"]:
            return Verdict.NO_DATA
        length = row.metrics.get("completion_length_max", row.metrics.get("completion_length", 0.0))
        cost = seconds / length if length >= 1 else seconds
        if self._start.level is None:
            self._start.push(cost)
            self._seconds_start.push(seconds)
        self._recent.push(cost)
        self._seconds.push(seconds)
        start, seconds_start = self._start.level, self._seconds_start.level
        if start is None or seconds_start is None:
            return Verdict.NO_DATA
        if seconds < self.limits["times"] / 2 * seconds_start:
            self._levels.push(False)
            return Verdict.HEALTHY
        # shorter completions cost more a token, since a step has fixed costs: the step itself must be slower as well
        times = min(self._recent.median() / start, self._seconds.median() / seconds_start)
        verdict = self._levels.push(times > self.limits["times"])
        if isinstance(verdict, Verdict):
            return verdict
        return Finding(
            verdict, "step_time", seconds,
            f"a step takes {times:.2g} times as long as at the start ({'a token; ' if length else ''}{seconds:.3g} s "
            "now)",
            "1. The GPU throttles or is shared: look at nvidia-smi. 2. The reward function got slower: a service with "
            "a queue, a growing cache. 3. Memory is nearly full and the allocator works: see memory_growth. 4. "
            "Checkpoints or logs go to a slow disk.",
            {"times": times},
        )  # fmt: skip
