"""Importing the package costs nothing; names are resolved on first use."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).resolve().parents[2])


def python(code):
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("module", ["trl_ext", "trl_ext.errors", "trl_ext.monitor"])
def test_import_loads_neither_torch_nor_trl(module):
    heavy = "torch", "trl", "transformers", "numpy", "datasets", "accelerate"
    done = python(f"import sys, {module}; print(*[m for m in {heavy!r} if m in sys.modules])")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


@pytest.mark.parametrize("module", ["trl_ext.configuration.templates", "trl_ext.cli.config", "trl_ext.sweep.running"])
def test_templates_and_sweeps_need_no_transformers(module):
    heavy = "torch", "trl", "transformers", "datasets", "accelerate", "peft"
    done = python(f"import sys, {module}; print(*[m for m in {heavy!r} if m in sys.modules])")
    assert done.stdout.split() == [], done.stderr


def test_functional_needs_torch_alone():
    heavy = "trl", "transformers", "datasets", "accelerate", "peft"
    done = python(f"import sys, trl_ext.functional; print(*[m for m in {heavy!r} if m in sys.modules])")
    assert done.stdout.split() == [], done.stderr


def test_public_names_resolve_and_an_unknown_one_lists_them():
    import trl_ext

    assert {"PPOTrainer", "PPOConfig", "ReinforceLOOTrainer", "ReinforceLOOConfig", "train"} <= set(trl_ext.__all__)
    for name in ("PPOTrainer", "PPOConfig", "ReinforceLOOTrainer", "ReinforceLOOConfig", "train", "UserError"):
        assert getattr(trl_ext, name).__name__ == name and name in dir(trl_ext)
    with pytest.raises(AttributeError, match="PPOTrainer"):
        trl_ext.PPOTrainr  # noqa: B018
