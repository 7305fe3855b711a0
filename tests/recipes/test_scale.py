"""PPO in two processes that divide the model (FSDP2 over gloo): curves of one, resume, what is saved, and a stop."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_divided_ppo_follows_one_process_resumes_saves_whole_weights_and_stops_everywhere(tmp_path):
    command = [
        sys.executable,
        str(ROOT / "tests/benchmarks/scale_runs.py"),
        "--engines",
        "fsdp2",
        "--processes",
        "1",
        "2",
    ]
    command += ["--recipes", "ppo", "--folder", str(tmp_path), "--limit", "100"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr[-1000:]
    assert "fsdp2, 2 processes" in done.stdout and "FSDPQwen2ForCausalLM (shards)" in done.stdout
    for check in ("to one process: ", "resume: ", "from_pretrained: equal", "stop: at step [4]"):
        assert f"ok    {check}" in done.stdout
