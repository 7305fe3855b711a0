import sys
import warnings
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # for trainer_builders: test folders are no packages


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _quiet_tracking():
    """Accelerate and TRL warn once a process about things these tests do on purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="(accelerate|torch|transformers|peft)")
        yield
