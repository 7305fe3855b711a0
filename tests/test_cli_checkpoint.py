"""`trl-ext checkpoint`: verdicts, exit codes, JSON, reports."""

import json
import os
import shutil

import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console
from safetensors.torch import load_file, save_file

from tests.checkpoints.written import TINY, WEIGHTS, content_of, edit_weights, saved_adapter, saved_policy
from trl_ext.checkpoints.health.judging import judge
from trl_ext.cli import main
from trl_ext.reporting.checkpoint_report import _draw_checkpoint
from trl_ext.reporting.checkpoint_table import health_text


def printed(capsys, *arguments, code=0):
    assert main(["checkpoint", *map(str, arguments)]) == code
    return capsys.readouterr()


def strict(text):
    def refuse(constant):
        raise ValueError(constant)

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    return saved_policy(tmp_path_factory.mktemp("cli") / "healthy")


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    folder = saved_policy(tmp_path_factory.mktemp("cli") / "broken")
    edit_weights(folder, lambda tensors: tensors["model.norm.weight"].fill_(float("nan")))
    return folder


@pytest.fixture(scope="module")
def a_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    for i in range(4):
        path = folder / f"checkpoint-{10 * i + 10}"
        path.mkdir()
        generator = torch.Generator().manual_seed(min(i, 2))
        save_file({"model.layers.0.w": torch.randn(40, 50, generator=generator)}, path / "x.safetensors")
    return folder


def test_a_healthy_checkpoint_says_so(capsys, healthy):
    out = printed(capsys, healthy, "--fail-on", "warning").out
    assert "healthy, 1.00" in out and "embedding" in out


def test_a_broken_one_names_the_tensor_and_fails_on_request(capsys, broken):
    out = printed(capsys, broken).out
    assert "nonfinite_weights" in out and "unusable, 0.00" in out
    printed(capsys, broken, "--fail-on", "critical", code=3)


def test_json_is_strict_and_has_the_promised_keys(capsys, broken):
    found = strict(printed(capsys, broken, "--json", "--tensors").out)
    assert {"path", "format", "health", "statistics", "recommendations"} <= found.keys()
    assert found["health"].keys() == {"score", "status", "findings"}
    (finding,) = found["health"]["findings"]
    assert {"rule", "severity", "tensor", "message", "advice"} <= finding.keys()
    assert finding["tensor"] == "model.norm.weight"
    assert found["statistics"]["tensors"]["model.norm.weight"]["nan"] > 0
    assert found["recommendations"] == [finding["advice"]]


def test_a_reference_adds_drift(capsys, healthy, broken):
    found = strict(printed(capsys, healthy, "--reference", TINY, "--json").out)
    assert found["statistics"]["whole"]["drift"]["relative"] == 0
    assert "nothing_moved" in [finding["rule"] for finding in found["health"]["findings"]]


def test_an_adapter_beside_its_base(capsys, tmp_path):
    out = printed(capsys, saved_adapter(tmp_path), "--reference", TINY).out
    assert "LoRA: 8 pairs of rank 8, effective rank" in out and "of its weight's norm" in out


@pytest.mark.parametrize("arguments", [
    ["nowhere"], ["{empty}"], ["{cut}"], ["{healthy}", "--reference", "nowhere/at/all"],
    ["{healthy}", "--reference", "./nowhere"], ["{healthy}", "--reference", "{empty}"],
    ["{healthy}", "--workers", "0"], ["{healthy}", "{healthy}", "--report", "x"],
    ["{healthy}", "--report", "{healthy}/report"],
])  # fmt: skip
def test_what_cannot_be_read_is_exit_code_2(capsys, healthy, tmp_path, arguments, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "empty").mkdir()
    cut = saved_policy(tmp_path / "cut")
    (cut / WEIGHTS).write_bytes((cut / WEIGHTS).read_bytes()[:1000])
    places = {"empty": tmp_path / "empty", "healthy": healthy, "cut": cut}
    before = content_of(healthy)
    capsys.readouterr()
    found = printed(capsys, *(argument.format(**places) for argument in arguments), code=2)
    assert len(found.err.strip().splitlines()) <= 1
    assert content_of(healthy) == before


def test_an_empty_adapter_is_read_and_found_empty(capsys, tmp_path):
    saved_adapter(tmp_path)
    save_file({}, tmp_path / "adapter_model.safetensors")
    assert "adapter_empty" in printed(capsys, tmp_path, "--fail-on", "error", code=3).out


def test_one_that_cannot_be_read_does_not_hide_the_others(capsys, healthy):
    found = printed(capsys, "nowhere", healthy, code=2)
    assert "healthy, 1.00" in found.out and "does not exist" in found.err


def test_a_run_has_a_line_for_each_checkpoint_and_its_trend(capsys, a_run):
    out = printed(capsys, a_run).out
    assert all(f"checkpoint-{step} " in out for step in (10, 20, 30, 40))
    assert "nothing_moved" in out and "since checkpoint-30" in out
    found = strict(printed(capsys, a_run, "--json", "--fail-on", "error", code=3).out)
    assert {"path", "format", "health", "statistics", "recommendations", "checkpoints", "trend"} <= found.keys()
    assert found["health"]["status"] == "damaged"
    assert [row["step"] for row in found["trend"]["checkpoints"]] == [10, 20, 30, 40]


def test_the_verdict_of_a_run_is_that_of_its_worst_checkpoint(capsys, a_run, tmp_path):
    shutil.copytree(a_run, tmp_path / "run")
    save_file(
        {"model.layers.0.w": torch.full((40, 50), float("nan"))}, tmp_path / "run" / "checkpoint-20" / "x.safetensors"
    )
    found = strict(printed(capsys, tmp_path / "run", "--json", "--fail-on", "critical", code=3).out)
    assert (found["health"]["score"], found["health"]["status"]) == (0.0, "unusable")


@pytest.mark.parametrize("what", ["one", "compared", "run", "broken"])
def test_a_report_is_markdown_and_a_picture(capsys, healthy, broken, a_run, tmp_path, what):
    path = {"one": healthy, "compared": healthy, "run": a_run, "broken": broken}[what]
    arguments = ["--reference", TINY] if what == "compared" else []
    printed(capsys, path, *arguments, "--report", tmp_path / "report")
    text = (tmp_path / "report" / "checkpoint.md").read_text()
    assert text.startswith(f"# {path.name.replace('_', chr(92) + '_')}") and "![" in text
    assert (tmp_path / "report" / "checkpoint.png").read_bytes().startswith(b"\x89PNG")
    if what == "compared":
        assert "| drift |" in text and "## Layers" in text


def test_tables_fit_a_narrow_terminal(healthy):
    from rich.console import Console

    from trl_ext.checkpoints.health.judging import judge

    text = health_text(judge(healthy, TINY), Console(width=60, highlight=False))
    assert "…" not in text
    assert max(map(len, text.splitlines()[1:])) <= 60


def test_a_path_that_is_no_text_is_read_and_written_readably(capsys, healthy, tmp_path):
    folder = tmp_path / os.fsdecode(b"odd\xff [red]x\n-nl")
    shutil.copytree(healthy, folder)
    assert main(["checkpoint", str(folder), "--report", str(tmp_path / "report")]) == 0
    heading = capsys.readouterr().out.splitlines()[0]
    assert "healthy, 1.00" in heading and "[red]x" in heading and "\udcff" not in heading
    assert (tmp_path / "report" / "checkpoint.png").stat().st_size > 5000


def test_a_picture_of_weights_that_are_all_nan_says_so(healthy, tmp_path):
    folder = tmp_path / "checkpoint-3"
    shutil.copytree(healthy, folder)
    tensors = {name: t.fill_(float("nan")) for name, t in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    figure = Figure()
    _draw_checkpoint(figure, judge(folder))
    assert "No weight is a finite number" in figure.axes[0].texts[0].get_text()


def test_the_name_of_a_tensor_is_whole_on_a_very_narrow_terminal(broken):
    text = health_text(judge(broken), Console(width=40, force_terminal=False))
    lines = [line.strip() for line in text.splitlines()]
    assert "model.norm.weight" in "".join(lines)
