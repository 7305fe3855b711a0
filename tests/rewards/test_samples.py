import sys

import pytest

from trl_ext.rewards.samples import evenly, samples_table

PROMPTS = ["the film is", [{"role": "user", "content": "Say something kind"}]]
COMPLETIONS = [
    "a delight\nfrom\x1b[31m start to finish [bold]twice[/bold]",
    [{"role": "assistant", "content": "You are"}],
]
REWARDS = {"sentiment": [0.8316, None], "length": [float("nan"), -1234.5]}


def test_a_row_holds_prompt_completion_and_every_reward():
    table = samples_table(PROMPTS, COMPLETIONS, REWARDS, width=120)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if "|" in line]
    assert cells == [
        ["prompt", "completion", "rewards"],
        ["the film is", r"a delight\nfrom\x1b[31m start to finish [bold]twice[/bold]", "sentiment  0.83"],
        ["", "", "length     -"],
        ["Say something kind", "You are", "sentiment     -"],
        ["", "", "length -1.23e+03"],
    ]


def test_a_single_function_names_its_column():
    table = samples_table(["p"], ["c"], {"sentiment": [0.5]}, width=80)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if "|" in line]
    assert cells == [["prompt", "completion", "sentiment"], ["p", "c", "0.50"]]


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_its_width_and_a_log_file(width):
    prompts, completions = ["a prompt " * 30] * 2, ["a completion " * 80, "unbreakable" * 60]
    rewards = {"sentiment": [0.1, 0.2], "soft_overlong_punishment_reward": [0.0, -1.0], "repetition": [1.0, 0.5]}
    table = samples_table(prompts, completions, rewards, title="Samples at step 5", width=width)
    assert max(map(len, table.splitlines())) == width
    assert table.isascii()
    assert all(line.isprintable() for line in table.splitlines())
    assert "-1.00" in table
    assert len(table.splitlines()) < 35


def test_long_texts_show_the_end_of_a_prompt_and_the_start_of_a_completion():
    table = samples_table(["a" * 500 + "PROMPT"], ["COMPLETION" + "b" * 500], {"f": [0.0]}, width=120)
    flat = "".join(table.split()).replace("|", "")
    assert "aPROMPT" in flat
    assert "COMPLETIONb" in flat
    assert flat.count("b") < 300
    assert flat.count("a") < 120


@pytest.mark.parametrize(
    ("count", "limit", "rows"), [(8, 4, [0, 2, 4, 6]), (3, 5, [0, 1, 2]), (0, 5, []), (7, 3, [0, 2, 4])]
)
def test_rows_are_taken_at_even_distances(count, limit, rows):
    assert evenly(count, limit) == rows


def test_in_a_terminal_it_is_drawn_with_lines(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    table = samples_table(["p"], ["c"], {"f": [1.0]}, width=60)
    assert "\u2502" in table
    assert "\x1b[" in table
