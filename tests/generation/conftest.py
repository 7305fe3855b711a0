"""The builders of tests/trainers serve here as well, and a CPU counts as a card that compiles."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "trainers"))


@pytest.fixture
def on_cpu(monkeypatch):
    from trl_ext.generation import fast_generation

    monkeypatch.setattr(fast_generation, "DEVICES", ("cpu",))
