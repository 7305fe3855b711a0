"""Memory and load of one NVIDIA GPU, through nvidia-ml-py (`pip install trl_ext[gpu]`)."""

import logging
import os
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


def gpu_reader(index: int | None) -> Callable[[], dict[str, float]] | None:
    """A function that reads `system/gpu_memory_mb` (MiB in use on the device, by any process) and
    `system/gpu_utilization` (percent of the time in which a kernel ran). What the device does not tell is left out.

    Args:
        index: of the device as PyTorch counts, among those that `CUDA_VISIBLE_DEVICES` names.
    Returns:
        `None` without a GPU, a driver or the package.
    """
    if index is None:
        return None
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handle = _handle(pynvml, index, os.environ.get("CUDA_VISIBLE_DEVICES"))
    except Exception as error:  # pynvml's errors share no base class with anything
        logger.info("No GPU metrics: %s", error)
        return None

    def read() -> dict[str, float]:
        values: dict[str, float] = {}
        try:
            values["system/gpu_memory_mb"] = round(pynvml.nvmlDeviceGetMemoryInfo(handle).used / 2**20, 1)
            values["system/gpu_utilization"] = float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        except pynvml.NVMLError:  # a MIG slice has no utilization, a lost device nothing
            pass
        return values

    return read


def _handle(pynvml: Any, index: int, visible: str | None) -> Any:
    """NVML counts all devices of the machine, whatever the variable says; entries may be numbers or UUIDs."""
    if visible is None or not visible.strip():
        return pynvml.nvmlDeviceGetHandleByIndex(index)
    name = visible.split(",")[index].strip()
    if name.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(name))
    if name.startswith("MIG-"):
        return pynvml.nvmlDeviceGetHandleByUUID(name)
    for i in range(pynvml.nvmlDeviceGetCount()):  # CUDA takes the first characters of a UUID as well
        handle = pynvml.nvmlDeviceGetHandleByIndex(i)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        if name and (uuid.decode() if isinstance(uuid, bytes) else uuid).startswith(name):
            return handle
    raise LookupError(f"CUDA_VISIBLE_DEVICES names {name!r}, which NVML does not know")
