"""What every test can rely on: no network, one thread, and markers for the two TRL lanes.

The environment is set before any test module imports torch, TRL or a tracker, so this file imports none of them.
"""

import gc
import logging
import os
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from packaging.version import Version

os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    MKL_NUM_THREADS="1",
    MPLBACKEND="Agg",
    OMP_NUM_THREADS="1",
    PYTHONFAULTHANDLER="1",  # of the processes that tests start: where one crashed
    TOKENIZERS_PARALLELISM="false",
    TRL_EXPERIMENTAL_SILENCE="1",
    WANDB_MODE="offline",
    WANDB_SILENT="true",
)

# The machine is shared: how long an example takes says nothing.
settings.register_profile("trl_ext", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("trl_ext")

sys.path.insert(0, str(Path(__file__).parent))  # for rl_trainers, torchrun: test folders are no packages

installed_trl = Version(version("trl"))
ships_ppo = installed_trl < Version("1.13")


@pytest.fixture(scope="session")
def trl_version() -> Version:
    """The installed TRL, without importing it."""
    return installed_trl


@pytest.fixture(scope="module", autouse=True)
def _garbage_is_not_looked_for_among_imports() -> None:
    """Trainers collect garbage often, stock PPO after each mini-batch; over all that TRL imports it takes a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _wandb_writes_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["WANDB_DIR"] = str(tmp_path_factory.mktemp("wandb"))


@pytest.fixture(autouse=True)
def _verbosity_is_as_it_was() -> Iterator[None]:
    """A configuration sets it for the process (`log_level`), and `disable_tqdm` of a later one follows it."""
    logger = logging.getLogger("transformers")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def _no_wandb_run_outlives_its_test() -> Iterator[None]:
    """`wandb.init` in a later test would get that run back, or the folder that its process was set up with."""
    yield
    wandb = sys.modules.get("wandb")
    if hasattr(wandb, "teardown"):
        if wandb.run is not None:
            wandb.finish()
        wandb.teardown()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("stock_ppo") and not ships_ppo:
            item.add_marker(pytest.mark.skip(reason=f"trl {installed_trl} ships no PPO: runs on trl<1.13"))
        if item.get_closest_marker("current_trl") and ships_ppo:
            item.add_marker(pytest.mark.skip(reason=f"trl {installed_trl} ships PPO: runs on trl>=1.13"))
