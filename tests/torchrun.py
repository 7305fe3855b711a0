"""`torchrun`, for the tests that need several real processes."""

import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def torchrun(script: object, *words: object, processes: int = 2) -> list[str]:
    """The command, on a port that is free now; one process is started without it."""
    if processes == 1:
        return [sys.executable, str(script), *map(str, words)]
    options = [f"--nproc_per_node={processes}", f"--master_port={free_port()}"]
    return [sys.executable, "-m", "torch.distributed.run", *options, str(script), *map(str, words)]


def output_of(script: object, *words: object, processes: int = 2, timeout: float, **options: Any) -> str:
    """What it printed once all processes ended well, within `timeout` seconds; `options` are those of `Popen`.

    Where the launcher says that a process crashed, all is repeated once: one did in one of many runs of CI, amid FSDP2
    on gloo, and none in 540 rounds of the same in which the reason was looked for. What crashes each time fails.
    """
    for attempt in (1, 2):
        with started(torchrun(script, *words, processes=processes), **options) as process:
            output, errors = process.communicate(timeout=timeout)
        if attempt == 2 or "(SIGSEGV)" not in errors:
            break
        warnings.warn(f"a process crashed, and all are started again: {errors}", stacklevel=2)
    assert process.returncode == 0, errors
    return output


@contextmanager
def started(command: list[str], **options: Any) -> Iterator[subprocess.Popen]:
    """Its output in pipes. Nothing of it runs on: the launcher's processes have sessions of their own, and it ends them
    where it is asked to end."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=40)  # it gives its processes 30 seconds
        process.kill()
        process.wait()
