import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "trainers"))  # for trainer_builders
sys.path.insert(0, str(Path(__file__).parent))  # for subjects


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
