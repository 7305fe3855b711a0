"""The pipelines of this repository: their recipes take the options that are written for them."""

import importlib
from pathlib import Path

import pytest

from trl_ext.pipeline.definition import read_pipeline
from trl_ext.strict_yaml import dump_yaml

ROOT = Path(__file__).resolve().parents[2]
STAGES = [
    pytest.param(stage, id=f"{file.stem}-{stage.name}")
    for file in sorted((ROOT / "recipes").glob("pipeline*.yaml"))
    for stage in read_pipeline(file).stages
]


class Read(Exception):  # noqa: N818 - the options were read
    pass


@pytest.mark.parametrize("stage", STAGES)
def test_a_recipe_reads_the_options_of_its_stage(stage, tmp_path, monkeypatch):
    name = Path(stage.recipe).stem
    module = importlib.import_module(f"recipes.{name}")
    parse = module.parse

    def read(*arguments):
        parse(*arguments)
        raise Read

    monkeypatch.setattr(module, "parse", read)
    options = {**stage.options, "output_dir": str(tmp_path)}
    if name != "compare":
        options |= {"use_cpu": True, "bf16": False}
    (tmp_path / "options.yaml").write_text(dump_yaml(options))
    with pytest.raises(Read):
        module.main(["--config", str(tmp_path / "options.yaml")])
