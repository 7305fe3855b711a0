"""The thread that samples memory and load, and the GPU it looks at."""

import gc
import os
import sys
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from trl_ext.callbacks import AnomalyDetectionCallback
from trl_ext.callbacks._gpu import gpu_reader
from trl_ext.callbacks._system_metrics import SystemMetrics


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "trl_ext system metrics"]


def wait_until(condition):
    end = time.monotonic() + 5
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


@pytest.fixture(autouse=True)
def nothing_left_over():
    gc.collect()
    assert wait_until(lambda: not threads())
    yield
    gc.collect()
    assert wait_until(lambda: not threads())


def test_the_first_sample_is_there_at_once_and_right():
    system = SystemMetrics()
    system.stop()
    memory = psutil.Process().memory_info()
    assert system.latest["system/rss_mb"] == pytest.approx(memory.rss / 2**20, rel=0.05)
    assert system.latest["system/vms_mb"] == pytest.approx(memory.vms / 2**20, rel=0.05)
    assert 0 <= system.latest["system/cpu_percent"] <= 100
    assert not any("gpu" in key for key in system.latest)


def test_the_thread_goes_on_sampling(monkeypatch):
    monkeypatch.setattr("trl_ext.callbacks._system_metrics.SECONDS_BETWEEN_SAMPLES", 0.01)
    system = SystemMetrics()
    first = system.latest
    assert wait_until(lambda: system.latest is not first)
    system.stop()
    system.stop()


def test_a_failing_sample_ends_the_thread_alone(monkeypatch):
    monkeypatch.setattr("trl_ext.callbacks._system_metrics.SECONDS_BETWEEN_SAMPLES", 0.01)
    system = SystemMetrics()
    first = system.latest
    system._process = SimpleNamespace(memory_info=lambda: (_ for _ in ()).throw(psutil.NoSuchProcess(1)))
    assert wait_until(lambda: not threads()) and system.latest is first


def test_it_lives_as_long_as_the_training(scripted):
    alive = []
    trainer = scripted(AnomalyDetectionCallback(), lambda step: alive.append(len(threads())) or {}, steps=3)
    trainer.train()
    assert alive == [1, 1, 1] and wait_until(lambda: not threads())


def test_it_ends_when_training_raises(scripted):
    def crash(step):
        raise RuntimeError

    trainer = scripted(AnomalyDetectionCallback(), crash)
    with pytest.raises(RuntimeError):
        trainer.train()
    del trainer  # the fixture waits for the thread's end


def test_there_is_none_without_system_metrics_and_none_on_other_ranks(scripted):
    alive = []
    callback = AnomalyDetectionCallback(log_system_metrics=False)
    scripted(callback, lambda step: alive.append(len(threads())) or {}, steps=2).train()
    other = AnomalyDetectionCallback()
    trainer = scripted(other)
    trainer.state.is_world_process_zero = False
    other.on_train_begin(trainer.args, trainer.state, trainer.control)
    other.on_log(trainer.args, trainer.state, trainer.control, logs={"loss": 1.0})
    assert alive == [0, 0] and not threads()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_no_thread_and_does_not_write_the_summary(scripted, tmp_path):
    callback = AnomalyDetectionCallback()
    trainer = scripted(callback)
    callback.on_train_begin(trainer.args, trainer.state, trainer.control)
    summary = tmp_path / "run" / "trl_ext" / "summary.json"
    summary.unlink()  # of the start
    child = os.fork()
    if child == 0:
        callback._run.finish(completed=False)  # what the exit handlers do
        os._exit(len(threads()))
    assert os.waitpid(child, 0)[1] == 0
    assert not summary.exists()
    callback._run.finish(completed=False)
    assert summary.exists()


# --- NVML, of which there is none here


class NVMLError(Exception):
    pass


def machine(utilization=True):
    """NVML on a machine of three GPUs; device i uses i GiB."""

    def rates(handle):
        if not utilization:
            raise NVMLError("Not Supported")
        return SimpleNamespace(gpu=10 * handle)

    def by_uuid(uuid):
        return {"MIG-7": 7}[uuid]

    return SimpleNamespace(
        NVMLError=NVMLError, nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 3,
        nvmlDeviceGetHandleByIndex=lambda i: int(i), nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetUUID=lambda handle: f"GPU-{'abc'[handle]}0", nvmlDeviceGetUtilizationRates=rates,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=handle * 2**30),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("visible", "index", "device"),
    [(None, 1, 1), ("", 2, 2), ("2,0", 0, 2), ("2, 0", 1, 0), ("GPU-c0,GPU-a", 0, 2), ("GPU-b", 0, 1), ("MIG-7", 0, 7)],
)
def test_the_device_is_the_one_that_pytorch_sees(monkeypatch, visible, index, device):
    monkeypatch.setitem(sys.modules, "pynvml", machine())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_reader(index)() == {"system/gpu_memory_mb": 1024.0 * device, "system/gpu_utilization": 10.0 * device}


def test_what_the_device_does_not_tell_is_left_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", machine(utilization=False))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    system = SystemMetrics(gpu_index=1)
    system.stop()
    assert system.latest["system/gpu_memory_mb"] == 1024.0 and "system/gpu_utilization" not in system.latest


@pytest.mark.parametrize("visible", ["GPU-x", "5,"])
def test_a_device_that_cannot_be_found_is_left_out(monkeypatch, visible):
    monkeypatch.setitem(sys.modules, "pynvml", machine())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_reader(1) is None


def test_without_a_gpu_the_package_or_the_driver_there_is_nothing(monkeypatch):
    assert gpu_reader(None) is None
    assert gpu_reader(0) is None  # nvidia-ml-py is here, a driver is not
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_reader(0) is None
