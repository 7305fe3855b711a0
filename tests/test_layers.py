"""The layers of trl_ext, and what a recipe may import, read from the source with `ast`: nothing is executed.

Every import counts, also one inside a function or under TYPE_CHECKING.
"""

import ast
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
# A module imports only from the layers named before its own, and from its own.
LAYERS = (
    "errors",
    "strict_yaml",
    "ranks",
    "stand_in",
    "functional",
    "monitor",
    "checkpoints",
    "tiny",
    "data",
    "configuration",
    "rewards",
    "callbacks",
    "generation",
    "trainers",
    "reporting",
    "sweep",
    "pipeline",
    "compat",
    "preflight",
    "cli",
)
# Layers that run where TRL or torch is not installed: what they import besides the standard library, and which layers.
THIRD_PARTY = {"errors": set(), "functional": {"torch"}, "monitor": set()}
# Tested in one lane alone (the Makefile's WITHOUT_TRL): nothing in them may depend on the version of TRL.
WITHOUT_TRL = {"errors", "strict_yaml", "functional", "monitor", "checkpoints", "tiny", "data", "reporting", "sweep"}
BELOW = {"errors": set(), "functional": {"errors"}, "monitor": {"errors"}}


class Import(NamedTuple):
    line: int
    module: str  # absolute: "trl_ext.monitor.rules"
    name: str | None  # what `from module import name` takes from it


def read_imports(source: str, module: str, is_package: bool) -> list[Import]:
    """Every import of a module's source, relative ones resolved against `module`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [Import(node.lineno, alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parent = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parent, *([node.module] if node.module else [])])
            found += [Import(node.lineno, base, alias.name) for alias in node.names]
    return found


def layer_faults(source: str, module: str, is_package: bool = False) -> list[str]:
    """What a module of trl_ext imports against the order of the layers; one line a fault, naming the fix."""
    parts = module.split(".")
    if parts == ["trl_ext"]:
        return []  # the public names: may import every layer
    layer = parts[1]
    if "utils" in parts:
        return [f"{module}: no utils.py; name the module after its topic"]
    if layer not in LAYERS:
        return [f"{module}: '{layer}' is no layer; move it into one, or add it in its place to {', '.join(LAYERS)}"]
    allowed = BELOW.get(layer, set(LAYERS[: LAYERS.index(layer)])) | {layer}
    faults = []
    for line, target, name in read_imports(source, module, is_package):
        where = f"{module}, line {line}"
        root, *rest = target.split(".")
        if root != "trl_ext":
            if layer in THIRD_PARTY and root not in sys.stdlib_module_names and root not in THIRD_PARTY[layer]:
                may = " and ".join(["the standard library", *sorted(THIRD_PARTY[layer])])
                faults.append(f"{where}: imports '{root}', but {layer} may use {may} only")
            elif root == "trl" and layer in WITHOUT_TRL:
                faults.append(
                    f"{where}: imports 'trl', and {layer} is tested without TRL 1.12: take it from a later layer"
                )
            continue
        wanted = rest[0] if rest else name
        if wanted not in LAYERS:
            faults.append(f"{where}: imports the package; take '{name or target}' from the module that defines it")
        elif wanted not in allowed:
            first = [other for other in LAYERS if other in allowed]
            faults.append(f"{where}: {layer} must not import {wanted}; it may import {', '.join(first)}")
    return faults


def recipe_faults(source: str, name: str, recipes: set[str], public: set[str]) -> list[str]:
    """What a recipe imports that is not public in trl_ext, or that is another recipe."""
    faults = []
    for line, module, imported in read_imports(source, name, is_package=False):
        where = f"recipes/{name}.py, line {line}"
        root, *rest = module.split(".")
        if root in recipes | {"recipes", ""}:
            faults.append(f"{where}: imports another recipe; move what both need into trl_ext")
        elif root == "trl_ext":
            if any(part.startswith("_") for part in [*rest, imported or ""]):
                faults.append(f"{where}: imports a private name, {module}.{imported or ''}; use a public one")
            elif not rest and imported is not None and imported not in public | set(LAYERS):
                faults.append(f"{where}: '{imported}' is not in trl_ext.__all__; add it there or import its module")
    return faults


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_every_module_imports_only_the_layers_below_it():
    faults = []
    for path in sources("trl_ext"):
        faults += layer_faults(path.read_text(encoding="utf-8"), module_name(path), path.name == "__init__.py")
    assert not faults, "\n" + "\n".join(faults)


def test_recipes_import_public_names_and_never_each_other():
    import trl_ext

    recipes = {path.stem for path in sources("recipes")}
    public = set(getattr(trl_ext, "__all__", ()))
    faults = []
    for path in sources("recipes"):
        faults += recipe_faults(path.read_text(encoding="utf-8"), path.stem, recipes, public)
    assert not faults, "\n" + "\n".join(faults)


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("trl_ext.monitor.engine", "import torch", "imports 'torch', but monitor may use the standard library only"),
        ("trl_ext.monitor.engine", "from trl_ext.functional import kl", "monitor must not import functional"),
        ("trl_ext.functional.kl", "import numpy.linalg", "may use the standard library and torch only"),
        ("trl_ext.functional.kl", "def f():\n    from trl import PPOConfig", "line 2: imports 'trl'"),
        ("trl_ext.checkpoints.reader", "from trl import X", "checkpoints is tested without TRL 1.12"),
        ("trl_ext.errors", "import rich", "errors may use the standard library only"),
        ("trl_ext.rewards.loading", "from ..callbacks import ppo_monitoring", "rewards must not import callbacks"),
        ("trl_ext.rewards.loading", "from .. import callbacks", "rewards must not import callbacks"),
        ("trl_ext.rewards.loading", "import trl_ext.trainers.ppo_trainer", "rewards must not import trainers"),
        ("trl_ext.callbacks.budget", "from trl_ext import PPOTrainer", "take 'PPOTrainer' from the module"),
        ("trl_ext.callbacks.budget", "import trl_ext", "imports the package"),
        ("trl_ext.helpers", "", "'helpers' is no layer"),
        ("trl_ext.monitor.utils", "", "no utils.py"),
    ],
)
def test_a_module_that_breaks_the_order_is_named_with_the_fix(module, source, expected):
    (fault,) = layer_faults(source, module)
    assert fault.startswith(module)
    assert expected in fault


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("trl_ext", "from .trainers.ppo_trainer import PPOTrainer"),
        ("trl_ext.functional.kl", "import math, torch\nfrom .masking import masked_mean\nfrom trl_ext import errors"),
        ("trl_ext.monitor.engine", "import json\nfrom trl_ext.errors import UserError\nfrom .alerts import Alert"),
        ("trl_ext.callbacks.budget", "import trl\nfrom trl_ext.monitor import engine\nfrom ..errors import UserError"),
        ("trl_ext.cli", "from trl_ext.preflight import run"),
    ],
)
def test_what_the_order_allows_passes(module, source):
    assert layer_faults(source, module, is_package=module == "trl_ext") == []


def test_the_makefile_leaves_out_in_one_lane_what_imports_no_trl():
    lines = (ROOT / "Makefile").read_text().replace("\\\n", " ").splitlines()
    named = {name: words.split() for name, sign, words in (line.partition(" := ") for line in lines) if sign}
    for name in named["REWARDS_WITHOUT_TRL"]:  # of the rewards alone `registry` and `trl_functions` import TRL
        text = (ROOT / "tests" / "rewards" / f"test_{name}.py").read_text()
        assert not re.search(r"(from|import) trl\b|registry|trl_functions|load_reward_funcs|as_reward_model", text), (
            name
        )
    assert set(named["WITHOUT_TRL"]) <= WITHOUT_TRL


def test_a_relative_import_in_a_package_starts_at_the_package():
    source = "from .engine import Engine\nfrom ..functional import kl"
    (fault,) = layer_faults(source, "trl_ext.monitor", is_package=True)
    assert "line 2: monitor must not import functional" in fault


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from sft import main", "imports another recipe"),
        ("from recipes.sft import main", "imports another recipe"),
        ("from . import sft", "imports another recipe"),
        ("from trl_ext import Hidden", "'Hidden' is not in trl_ext.__all__"),
        ("from trl_ext.compat import _stock", "private name, trl_ext.compat._stock"),
        ("import trl_ext.trainers._seams", "private name"),
    ],
)
def test_a_recipe_that_reaches_too_far_is_named(source, expected):
    (fault,) = recipe_faults(source, "ppo", {"ppo", "sft"}, {"PPOTrainer"})
    assert fault.startswith("recipes/ppo.py, line 1")
    assert expected in fault


def test_a_recipe_may_use_public_names_and_other_libraries():
    source = "import trl\nfrom trl_ext import PPOTrainer, tiny\nfrom trl_ext.compat import PPOConfig"
    assert recipe_faults(source, "ppo", {"ppo", "sft"}, {"PPOTrainer"}) == []
