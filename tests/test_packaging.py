import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def pins(expression: str = "") -> dict[str, Requirement]:
    """The pinned requirements by name, after a sed expression."""
    command = ["sed", expression, str(ROOT / "constraints.txt")]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    requirements = [Requirement(line) for line in text.splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(requirement.name): requirement for requirement in requirements}


def pins_trl112() -> dict[str, Requirement]:
    """The second lane's, made with the very expression of the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (expression,) = re.findall(r"VENV_TRL112\),(s/.*/)\)$", makefile, flags=re.MULTILINE)
    return pins(expression)


def top_level_imports(folder: str) -> set[str]:
    names: set[str] = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add((node.module or "").split(".")[0])
    return names - set(sys.stdlib_module_names)


def make(*arguments: str) -> subprocess.CompletedProcess:
    """Runs make here; without the variables of a make that started pytest."""
    environment = {key: value for key, value in os.environ.items() if "MAKE" not in key and key != "MFLAGS"}
    command = ["make", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def declared(*extras: str) -> set[str]:
    found = [Requirement(line) for line in PROJECT["dependencies"]]
    for extra in extras:
        found += [Requirement(line) for line in EXTRAS[extra]]
    return {canonicalize_name(requirement.name) for requirement in found}


def test_every_pin_is_exact_and_admitted_by_the_stated_range():
    pinned = pins()
    for requirement in pinned.values():
        (specifier,) = requirement.specifier
        assert specifier.operator == "==" and "+" not in specifier.version, requirement
    for line in [*PROJECT["dependencies"], *(line for extra in EXTRAS.values() for line in extra)]:
        requirement = Requirement(line)
        if requirement.name == PROJECT["name"]:
            continue
        (specifier,) = pinned[canonicalize_name(requirement.name)].specifier
        assert requirement.specifier.contains(specifier.version), f"{line} against the pin {specifier}"


def test_the_lanes_differ_in_trl_alone():
    current, old = pins(), pins_trl112()
    assert {name for name in current if str(current[name]) != str(old[name])} == {"trl"}
    assert str(old["trl"]) == "trl==1.12.0"


def test_the_installed_trl_is_one_of_the_two_lanes(trl_version):
    assert f"trl=={trl_version}" in {str(pins()["trl"]), str(pins_trl112()["trl"])}


@pytest.mark.stock_ppo
def test_the_stock_ppo_lane_has_a_stock_ppo(trl_version):
    assert trl_version < Version("1.13")
    assert (Path(find_spec("trl").origin).parent / "experimental" / "ppo").is_dir()


@pytest.mark.current_trl
def test_the_current_lane_has_none(trl_version):
    assert trl_version >= Version("1.13")
    assert not (Path(find_spec("trl").origin).parent / "experimental" / "ppo").exists()


def test_all_is_every_extra():
    (line,) = EXTRAS["all"]
    assert Requirement(line).extras == set(EXTRAS) - {"all"}


@pytest.mark.parametrize(
    ("folder", "extras"),
    [
        ("trl_ext", ("quantization", "wandb", "rewards", "math", "gpu", "sweep", "recipes")),
        ("recipes", ("rewards", "recipes")),
    ],
)
def test_every_package_imported_is_declared(folder, extras):
    distributions = packages_distributions()
    of_torch = {"triton"}  # PyTorch for CUDA brings its own, and no other version may stand in for it
    for name in top_level_imports(folder) - {"trl_ext"} - of_torch:
        owners = {canonicalize_name(owner) for owner in distributions.get(name, [name])}
        assert owners & declared(*extras), f"{folder} imports {name}: declare {sorted(owners)} in pyproject.toml"


def test_the_wheel_carries_every_file_of_the_package_and_the_licence(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (tree / name).write_bytes((ROOT / name).read_bytes())
    files = [path for path in (ROOT / "trl_ext").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    for path in files:
        copy = tree / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*command, "--wheel-dir", tmp_path, tree], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    missing = {path.relative_to(ROOT).as_posix() for path in files} - packed
    assert not missing, f"not in the wheel, extend package-data in pyproject.toml: {sorted(missing)}"
    assert any(name.endswith("licenses/LICENSE") for name in packed)


def test_make_help_names_every_command():
    (line,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    text = make("help").stdout
    assert set(line.split()) == set(re.findall(r"^make ([\w-]+) +\S", text, flags=re.MULTILINE))


def test_make_ppo_launches_the_recipe_with_its_configuration_and_the_arguments_given():
    text = make("-n", "ppo", "DEVICE=cpu", "THREADS=3", "ARGS=--seed 1").stdout
    assert (
        ".venv/bin/accelerate launch --quiet --config_file accelerate_configs/cpu.yaml "
        "--num_cpu_threads_per_process 3 recipes/ppo.py --config recipes/ppo.yaml --seed 1\n"
    ) in text


def test_an_old_python_is_refused_in_one_line(tmp_path):
    done = make("ppo", "PYTHON=false", f"VENV={tmp_path}/none")
    assert done.returncode != 0
    assert "trl_ext needs Python 3.11 or newer, 'false' is not: make ppo PYTHON=" in done.stderr
