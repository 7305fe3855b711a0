"""The recipe a test file is named after, and a run of it on the file's few rows."""

import importlib
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # of reinforcement_runs: pytest's importlib mode leaves it alone


@pytest.fixture(scope="module")
def recipe(request):
    """Of `test_dpo.py` the module `recipes/dpo.py`."""
    return importlib.import_module(f"recipes.{request.path.stem.removeprefix('test_')}")


@pytest.fixture
def run(request, recipe, tmp_path, monkeypatch, capsys):
    """Runs `main` on the file's TRAIN and HELD_OUT, or on other rows, and returns what it printed."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "rows").mkdir()

    def main(*words: str, train=request.module.TRAIN, held_out=request.module.HELD_OUT) -> str:
        for split, rows in (("train", train), ("test", held_out)):
            (tmp_path / "rows" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        options = ["--dataset_name", str(tmp_path / "rows"), "--output_dir", str(tmp_path / "out"), "--use_cpu", "true"]
        recipe.main([*request.module.CONFIG, *options, "--disable_tqdm", "true", "--warmup_steps", "1", *words])
        return capsys.readouterr().out

    return main
