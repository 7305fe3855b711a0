"""`torchrun`, for the tests that need several real processes."""

import socket
import subprocess
import sys
import warnings
from typing import Any


def torchrun(script: object, *words: object, processes: int = 2) -> list[str]:
    """The command, on a port that is free now; one process is started without it."""
    if processes == 1:
        return [sys.executable, str(script), *map(str, words)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [f"--nproc_per_node={processes}", f"--master_port={port}"]
    return [sys.executable, "-m", "torch.distributed.run", *options, str(script), *map(str, words)]


def output_of(script: object, *words: object, processes: int = 2, **options: Any) -> str:
    """What it printed once all processes ended well; `options` are those of `subprocess.run`.

    A run with a process that crashed is repeated once: one did in one of many runs of CI, amid FSDP2 on gloo, and
    none in 540 rounds of the same in which the reason was looked for. A read of freed weights would come again.
    """
    for attempt in (1, 2):
        command = torchrun(script, *words, processes=processes)
        done = subprocess.run(command, capture_output=True, text=True, **options)
        if attempt == 2 or "(SIGSEGV)" not in done.stderr:
            break
        warnings.warn(f"a process crashed, and is run again: {done.stderr}", stacklevel=2)
    assert done.returncode == 0, done.stderr
    return done.stdout
