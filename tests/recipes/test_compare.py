"""The recipe `compare.py`: policies side by side, their numbers against those of Transformers alone."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trl_ext import tiny

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def other(tmp_path):
    """A policy that differs from the embedded one."""
    model = tiny.load_policy()
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path / "other")
    tiny.load_tokenizer().save_pretrained(tmp_path / "other")
    return str(tmp_path / "other")


def read(folder: Path) -> tuple[dict, list[dict]]:
    lines = (folder / "completions.jsonl").read_text().splitlines()
    return json.loads((folder / "comparison.json").read_text()), [json.loads(line) for line in lines]


def words(tmp_path: Path, *more: str) -> list[str]:
    rewards = f"{tmp_path / 'rewards.py'}:vowels"
    (tmp_path / "rewards.py").write_text(
        "def vowels(completions, **_):\n    return [float(c.count('a')) for c in completions]\n"
    )
    return [
        "--dtype", "float32", "--num_prompts", "10", "--batch_size", "4", "--max_new_tokens", "12", "--reward_funcs",
        f"{{name: {rewards}, weight: 0.5}}", "--gold_reward", "sentiment", "--output_dir", str(tmp_path / "out"), *more,
    ]  # fmt: skip


def test_rewards_kl_and_length_are_those_of_what_was_sampled(recipe, other, tmp_path, capsys):
    recipe.main(["--policies", "trl_ext/tiny", other, *words(tmp_path)])
    summaries, rows = read(tmp_path / "out")
    assert list(summaries) == ["trl_ext/tiny", other] and len(rows) == 20
    assert [row["prompt"] for row in rows[:10]] == [row["prompt"] for row in rows[10:]]
    for policy, each in summaries.items():
        own = [row for row in rows if row["policy"] == policy]
        counts = [row["completion"].count("a") for row in own]
        assert [row["rewards"]["vowels"] for row in own] == counts
        assert each["rewards/vowels"] == pytest.approx(sum(counts) / 10)
        assert each["reward"] == pytest.approx(0.5 * sum(counts) / 10)  # the gold reward does not count
        mean = sum(counts) / 10
        deviation = math.sqrt(sum((0.5 * (c - mean)) ** 2 for c in counts) / 9)
        assert each["reward_standard_error"] == pytest.approx(deviation / math.sqrt(10))
        assert each["kl"] == pytest.approx(sum(row["kl"] for row in own) / 10)
    assert summaries["trl_ext/tiny"]["kl"] == 0.0
    assert summaries[other]["kl"] > 0.5
    out = capsys.readouterr().out
    assert "vowels" in out and "sentiment (gold)" in out and rows[0]["prompt"] in out


def test_the_kl_is_the_log_ratio_of_each_completion_alone(recipe, other, tmp_path):
    """Completions whose text gives their tokens back; the ids themselves are not kept."""
    recipe.main(["--policies", "trl_ext/tiny", other, *words(tmp_path, "--num_prompts", "24")])
    tokenizer, first = tiny.load_tokenizer(), tiny.load_policy().eval()
    second = type(first).from_pretrained(other).eval()
    checked = 0
    for row in read(tmp_path / "out")[1]:
        start, whole = (tokenizer(text).input_ids for text in (row["prompt"], row["prompt"] + row["completion"]))
        if row["policy"] != other or whole[: len(start)] != start:
            continue
        candidates = [whole, [*whole, tokenizer.eos_token_id]]
        ratios = [ratio(second, first, ids, len(start)) for ids in candidates]
        checked += any(row["kl"] == pytest.approx(value, abs=1e-3) for value in ratios)
    assert checked >= 10


@torch.no_grad()
def ratio(model, reference, ids: list[int], start: int) -> float:
    tokens = torch.tensor([ids])
    log_probs = [
        each(tokens).logits[0, :-1].log_softmax(-1).gather(1, tokens[0, 1:, None]) for each in (model, reference)
    ]
    return (log_probs[0] - log_probs[1])[start - 1 :].sum().item()


def test_messages_go_through_the_template_and_columns_reach_the_reward(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    rows = [{"prompt": [{"role": "user", "content": f"Say {i}"}], "answer": str(i)} for i in range(6)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "r.py").write_text(
        "def of(prompts, completions, answer, **_):\n    assert completions[0][0]['role'] == 'assistant'\n"
        "    return [float(a) for a in answer]\n"
    )
    recipe.main(words(tmp_path, "--dataset_name", str(tmp_path / "data"), "--reward_funcs", f"{tmp_path / 'r.py'}:of"))
    summaries, found = read(tmp_path / "out")
    assert summaries["trl_ext/tiny"]["reward"] == 2.5
    assert [row["prompt"] for row in found] == [row["prompt"] for row in rows]


def test_two_processes_share_the_prompts_and_keep_their_order(tmp_path, other):
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"]
    command = [
        *launch,
        "--main_process_port",
        "0",
        str(ROOT / "recipes" / "compare.py"),
        "--policies",
        "trl_ext/tiny",
        other,
    ]
    done = subprocess.run([*command, *words(tmp_path)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    summaries, rows = read(tmp_path / "out")
    assert len(rows) == 20 and [row["prompt"] for row in rows[:10]] == [row["prompt"] for row in rows[10:]]
    assert len({row["prompt"] for row in rows}) == 10
    assert summaries["trl_ext/tiny"]["kl"] == 0.0


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--policies", "nobody/nothing"], "error: no model 'nobody/nothing'"),
        (["--num_prompts", "0"], "error: num_prompts, batch_size and max_new_tokens are at least 1"),
        (["--reward_funcs", "sentimant"], "sentiment"),
        (["--dataset_test_split", "dev"], "error: no split 'dev'"),
    ],
)
def test_bad_input_is_one_line(recipe, tmp_path, more, expected, capsys):
    with pytest.raises(SystemExit) as stopped:
        recipe.main([*words(tmp_path), *more])
    assert stopped.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert expected in line
    assert not (tmp_path / "out").exists()
