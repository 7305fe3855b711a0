"""Memory and load of this process and machine, sampled in a thread so that no step waits."""

import threading

import psutil

from trl_ext.callbacks._gpu import gpu_reader

SECONDS_BETWEEN_SAMPLES = 1.0


class SystemMetrics:
    """`latest` holds the last sample, a dictionary that is replaced and never changed:

    `system/rss_mb`, `system/vms_mb`: resident and virtual memory of this process, MiB; `system/cpu_percent`: load of
    all CPUs of the machine, 0 to 100; of an NVIDIA GPU also `system/gpu_memory_mb` and `system/gpu_utilization`.

    Args:
        gpu_index: of this process's device as PyTorch counts, `None` for no GPU.
    """

    def __init__(self, gpu_index: int | None = None) -> None:
        self._process = psutil.Process()
        self._gpu = gpu_reader(gpu_index)
        self.latest = self._sample()
        self._ended = threading.Event()
        # A daemon: it must not keep a process alive that failed to call `stop`. A forked child does not inherit it.
        self._thread = threading.Thread(target=self._run, name="trl_ext system metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, without waiting for it; a second call does nothing."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_SAMPLES):
            try:
                self.latest = self._sample()
            except (OSError, psutil.Error):  # /proc is gone: the last sample stays
                return

    def _sample(self) -> dict[str, float]:
        memory = self._process.memory_info()
        return {
            "system/rss_mb": round(memory.rss / 2**20, 1),
            "system/vms_mb": round(memory.vms / 2**20, 1),
            "system/cpu_percent": psutil.cpu_percent(),
            **(self._gpu() if self._gpu is not None else {}),
        }
