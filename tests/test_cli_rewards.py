"""`trl-ext rewards`: list, try, check."""

import json

import pytest

from trl_ext.cli import main
from trl_ext.rewards import REWARDS

CONFIG = """
model_name_or_path: trl_ext/tiny
learning_rate: 1e-4
reward_funcs:
  - {name: sentiment, weight: 1.0}
  - {name: repetition, weight: 0.5, kwargs: {n: 1}}
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(CONFIG)
    return str(path)


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def printed(capsys, *arguments, code=0):
    assert main(["rewards", *map(str, arguments)]) == code
    return capsys.readouterr()


def test_list_names_every_reward_with_its_arguments(capsys):
    out = printed(capsys, "list").out
    assert all(name in out for name in REWARDS)
    rows = [json.loads(line) for line in printed(capsys, "list", "--json").out.splitlines()]
    assert {row["name"]: row["kwargs"] for row in rows}["length"] == [
        "minimum=10",
        "maximum=60",
        "edge=5",
        "unit='words'",
    ]


def test_try_prints_each_component_and_the_weighted_total(capsys, config):
    out = printed(capsys, "try", "--config", config, "--text", "good good", "--text", "a table").out
    # VADER: "good" is 1.9, twice 3.8, and 3.8 / sqrt(3.8 ** 2 + 15) = 0.7003; one distinct word of two
    row = next(line for line in out.splitlines() if line.strip().startswith("good good"))
    assert row.split()[-3:] == ["0.700", "0.500", "0.950"]
    row = next(line for line in out.splitlines() if line.strip().startswith("a table"))
    assert row.split()[-3:] == ["0.000", "1.000", "0.500"]


def test_try_reads_json_lines_with_columns(capsys, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "def match(prompts, completions, solution, **kw): return [c == s for c, s in zip(completions, solution)]"
    )
    file = lines(tmp_path / "c.jsonl", [{"completion": "4", "solution": "4"}, {"completion": "5", "solution": "4"}])
    out = printed(capsys, "try", file, "--reward_funcs", f"{own}:match", "--json").out
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["rewards"] for row in rows] == [{"match": 1.0}, {"match": 0.0}]
    assert [row["reward"] for row in rows] == [1.0, 0.0]


def test_try_tells_of_a_function_that_fails_by_its_exit_code(capsys, tmp_path):
    own = tmp_path / "own.py"
    own.write_text("def bad(prompts, completions, **kw): return [float('nan') for _ in completions]")
    printed(capsys, "try", "--reward_funcs", f"{own}:bad", "--text", "a", code=3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["try", "--text", "a"], "name the rewards: --config FILE.yaml, or --reward_funcs"),
        (["try", "--reward_funcs", "sentiment"], "give completions as --text"),
        (["try", "--reward_funcs", "sentimet", "--text", "a"], "did you mean 'sentiment'?"),
        (["try", "--config", "nowhere.yaml", "--text", "a"], "cannot read nowhere.yaml"),
        (["try", "nowhere.jsonl", "--reward_funcs", "sentiment"], "cannot read nowhere.jsonl"),
        (["check", "nowhere.jsonl"], "cannot read nowhere.jsonl"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(capsys, arguments, said):
    err = printed(capsys, *arguments, code=2).err
    assert said in err and err.count("\n") == 1 and err.startswith("trl-ext: error: ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "has no completions"),
        ("{", "line 1: no JSON"),
        ("[1]", "line 1: write an object a line"),
        ('{"prompt": "a"}', "completion 1: no completion"),
        ('{"completion": 3}', "completion 1: no completion"),
        ('{"completion": "a"}', "holds no rewards: name reward functions"),
        ('{"completion": "a", "reward": 1, "step": "x"}', "step must be a number"),
        ('{"completion": "a", "rewards": {"a": "0.5"}}', "completion 1: a must be a number or null, not '0.5'"),
        (
            '{"completion": "a", "rewards": {"a": 1}}\n{"completion": "b", "rewards": {"b": 1}}',
            "completion 2 has a reward 'b'",
        ),
        ('{"completion": "a", "reward": 1, "prompts": 3}', "'prompts' is no column"),
    ],
)
def test_a_file_that_is_no_list_of_completions_is_named(capsys, tmp_path, content, said):
    (tmp_path / "bad.jsonl").write_text(content)
    assert said in printed(capsys, "check", tmp_path / "bad.jsonl", code=2).err


def run_of(steps, reward, text=lambda step, i: f"text number {step} of {i} about the film"):
    return [
        {"step": step, "prompt": "p", "completion": text(step, i), "rewards": reward(step, i), "gold": 0.0}
        for step in range(steps)
        for i in range(16)
    ]


def test_check_judges_rewards_that_a_file_holds(capsys, tmp_path):
    file = lines(tmp_path / "run.jsonl", run_of(40, lambda step, i: {"a": (i * 7 + step * 3) % 16, "never": 0.0}))
    out = printed(capsys, "check", file).out
    assert "640 completions, reliability 0." in out
    assert "dead_reward_component" in out and "never gave exactly 0 to each of the last 640 completions" in out
    report = json.loads(printed(capsys, "check", file, "--json").out)
    assert report["parts"]["signal"] == 0.5
    assert report["parts"]["consistency"] is None
    printed(capsys, "check", file, "--fail-on", "warning", code=3)
    printed(capsys, "check", file, "--fail-on", "error")


def test_check_asks_functions_again(capsys, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "import random\ndef drawn(prompts, completions, **kw): return [random.random() for _ in completions]"
    )
    rows = [{"completion": f"text {i} of a film that is {i % 7}"} for i in range(200)]
    file = lines(tmp_path / "c.jsonl", rows)
    report = json.loads(printed(capsys, "check", file, "--reward_funcs", f"{own}:drawn", "--json").out)
    assert report["parts"]["consistency"] == 0.0
    assert report["findings"][0]["rule"] == "reward_inconsistent"
    report = json.loads(printed(capsys, "check", file, "--reward_funcs", "repetition", "--json").out)
    assert report["parts"]["consistency"] == 1.0


def test_check_sees_a_held_back_reward_part_from_the_reward(capsys, tmp_path):
    rows = run_of(30, lambda step, i: {"proxy": 0.1 * step + 0.05 * (i % 5)})
    for row in rows:
        row["gold"] = -0.1 * row["step"] + 0.05 * (row["step"] * 7 % 5)
    report = json.loads(
        printed(capsys, "check", lines(tmp_path / "run.jsonl", rows), "--json", "--fail-on", "error", code=3).out
    )
    found = {finding["rule"]: finding for finding in report["findings"]}
    assert "the reward rose" in found["reward_hacking_suspected"]["message"]


def test_columns_of_any_row_reach_the_functions(capsys, tmp_path):
    file = lines(tmp_path / "c.jsonl", [{"completion": "5"}, {"completion": "5", "solution": "5"}])
    out = printed(capsys, "try", file, "--reward_funcs", "numeric", "--json").out
    assert [json.loads(line)["reward"] for line in out.splitlines()] == [None, 1.0]


def test_mappings_on_the_command_line(capsys):
    out = printed(
        capsys, "try", "--reward_funcs", "{name: repetition, weight: 2, kwargs: {n: 1}}", "--text", "a a", "--json"
    ).out
    assert json.loads(out)["reward"] == 1.0
