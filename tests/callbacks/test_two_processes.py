"""Two gloo processes decide alike, although only one of them sees the fault."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_all_ranks_stop_when_one_sees_the_fault(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(Path(__file__).with_name("rank_dependent_run.py")), str(tmp_path)]
    processes = [
        subprocess.Popen(
            command, env={**os.environ, **common, "RANK": rank, "LOCAL_RANK": rank}, stderr=subprocess.PIPE, text=True
        )
        for rank in "01"
    ]
    try:
        errors = [process.communicate(timeout=150)[1][-3000:] for process in processes]
    finally:
        for process in processes:
            process.kill()  # where ranks decide apart, one waits for the other for ever
    assert [process.returncode for process in processes] == [0, 0], errors
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first["processes"] == 2
    assert (first["step"], second["step"]) == (3, 3)
    assert (first["alerts"], second["alerts"]) == (0, 1)
    assert "another process" in first["stopped"] and "nonfinite_metric" in second["stopped"]
    assert first["heard"] == second["heard"] == 0  # on_alert speaks for the main process, which saw nothing
    assert (tmp_path / "checkpoint-3").is_dir()
    assert (
        len((tmp_path / "trl_ext" / "metrics.jsonl").read_text().splitlines()) == 4
    )  # three steps and the closing log
