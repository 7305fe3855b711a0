"""Completions with their rewards in real trackers, from trainers as users build them."""

import pytest
import rl_trainers
from tracker_files import tensorboard_run, trackio_run, wandb_run

from trl_ext import tiny
from trl_ext.callbacks import ConsoleCallback, PPOMonitoringCallback
from trl_ext.callbacks._sample_tables import NUM_SAMPLES
from trl_ext.reporting.log_sources import open_log
from trl_ext.rewards import CheckedReward

TABLE = "trl_ext/samples"


def vowels(completions, **_):
    return [float(sum(text.count(v) for v in "aeiou")) for text in completions]


def is_short(completions, **_):
    """Does not apply to every other completion."""
    return [None if i % 2 else -0.25 for i in range(len(completions))]


def rewards_fit(rows):
    """The oracle: each row's completion scored again."""
    assert rows
    for prompt, completion, given, short in rows:
        assert prompt in rl_trainers.PROMPTS
        assert given == vowels([completion])[0]
        assert short in (-0.25, None)
    return True


GROUPS = [rl_trainers.grpo, rl_trainers.rloo, rl_trainers.reinforce_loo, rl_trainers.ppo]


@pytest.mark.parametrize("build", GROUPS, ids=lambda build: build.__name__)
def test_the_first_and_the_last_step_are_in_tensorboard(tmp_path, build):
    build(tmp_path, [vowels, is_short], PPOMonitoringCallback(), report_to="tensorboard").train()
    tables = tensorboard_run(tmp_path)["texts"][TABLE]
    assert [step for step, _ in tables] == [1, 4]
    for _, table in tables:
        head, _, *rows = table.splitlines()
        assert head == "| prompt | completion | vowels | is_short |" and len(rows) == NUM_SAMPLES
        assert {row.split(" | ")[0].removeprefix("| ") for row in rows} <= set(rl_trainers.PROMPTS)


def test_two_monitors_show_them_once(tmp_path):
    monitors = [PPOMonitoringCallback(), PPOMonitoringCallback()]
    rl_trainers.grpo(tmp_path, [vowels], monitors, report_to="tensorboard").train()
    texts = tensorboard_run(tmp_path)["texts"]
    assert [step for step, _ in texts[TABLE]] == [1, 4] and {"trl_ext/summary", "trl_ext-2/summary"} <= set(texts)


@pytest.mark.stock_ppo
def test_stock_ppo_shows_what_checked_rewards_remember(tmp_path):
    callback = PPOMonitoringCallback()
    rl_trainers.stock_ppo(tmp_path, [CheckedReward(vowels)], callback, report_to="tensorboard").train()
    tables = tensorboard_run(tmp_path)["texts"][TABLE]
    assert [step for step, _ in tables] == [1, 4]
    head, _, *rows = tables[0][1].splitlines()
    assert head == "| prompt | completion | vowels |" and len(rows) == NUM_SAMPLES


def test_wandb_gets_rows_whose_rewards_are_those_of_their_completions(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    rl_trainers.grpo(tmp_path, [vowels, is_short], PPOMonitoringCallback(), report_to="wandb").train()
    run = wandb_run(tmp_path)
    tables = run["tables"][TABLE]
    assert [row["train/global_step"] for row in run["history"] if TABLE in row] == [1, 4]
    for table in tables:
        assert table["columns"] == ["prompt", "completion", "vowels", "is_short"]
        assert len(table["data"]) == NUM_SAMPLES and rewards_fit(table["data"])
    assert tables[0] != tables[1]
    # a replay of that file sees the logs, and neither tables nor TRL's timings between them
    (path,) = tmp_path.rglob("*.wandb")
    rows = list(open_log(path).rows)
    assert [row.step for row in rows] == [1, 2, 3, 4, 4] and "train/reward" in rows[0].logs
    assert not any("samples" in key for row in rows for key in row.logs)


def test_trackio_gets_them(tmp_path, trackio_folder):
    rl_trainers.grpo(tmp_path, [vowels, is_short], PPOMonitoringCallback(), report_to="trackio").train()
    tables = [row[TABLE]["_value"] for row in trackio_run(trackio_folder)["history"] if TABLE in row]
    assert len(tables) == 2
    assert all(rewards_fit([list(row.values()) for row in table]) for table in tables)


def test_with_log_completions_wandb_has_that_table_alone_and_tensorboard_ours(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    rl_trainers.rloo(
        tmp_path, [vowels], PPOMonitoringCallback(), report_to=["wandb", "tensorboard"], log_completions=True,
        num_completions_to_print=0, logging_steps=2,
    ).train()  # fmt: skip
    run = wandb_run(tmp_path)
    assert set(run["tables"]) == {"completions"}
    assert [step for step, _ in tensorboard_run(tmp_path)["texts"][TABLE]] == [2, 4]


def test_they_come_where_the_console_shows_samples(tmp_path):
    rewards = [CheckedReward(vowels)]
    callbacks = [PPOMonitoringCallback(), ConsoleCallback(rewards, samples_every=2, num_samples=3)]
    rl_trainers.grpo(tmp_path, rewards, callbacks, report_to="tensorboard").train()
    tables = tensorboard_run(tmp_path)["texts"][TABLE]
    assert [(step, len(table.splitlines()) - 2) for step, table in tables] == [(1, 3), (3, 3), (4, 3)]


@pytest.mark.parametrize("kind", ["SFT", "DPO"])
def test_trainers_without_completions_have_no_table(tmp_path, kind):
    import trl
    from datasets import Dataset

    columns = {"SFT": {"text": ["one two"] * 8},
               "DPO": {"prompt": ["say"] * 8, "chosen": [" yes"] * 8, "rejected": [" no"] * 8}}[kind]  # fmt: skip
    args = getattr(trl, f"{kind}Config")(
        str(tmp_path), max_steps=2, logging_steps=1, report_to="tensorboard", use_cpu=True, bf16=False,
        save_strategy="no", disable_tqdm=True, per_device_train_batch_size=2, gradient_checkpointing=False,
    )  # fmt: skip
    callback = PPOMonitoringCallback()
    trainer = getattr(trl, f"{kind}Trainer")(
        model=tiny.load_policy(), args=args, processing_class=tiny.load_tokenizer(), callbacks=[callback],
        train_dataset=Dataset.from_dict(columns),
    )  # fmt: skip
    trainer.train()
    texts = tensorboard_run(tmp_path)["texts"]
    assert "trl_ext/summary" in texts and TABLE not in texts
    assert callback._outlets is not None and not [name for name in vars(callback) if name.startswith("_reported")]


def test_long_texts_are_cut_and_a_reward_without_a_number_is_none(tmp_path, monkeypatch):
    def odd(completions, **_):
        return [float("inf"), None, 1.0, 2.0] * (len(completions) // 4)

    sent = []
    monkeypatch.setattr("trl_ext.callbacks._trackers.Trackers._send", lambda self, *content, **_: sent.append(content))
    monkeypatch.setattr("trl_ext.callbacks._sample_tables._COMPLETION", 3)
    monkeypatch.setattr("trl_ext.callbacks._sample_tables._PROMPT", 2)
    rl_trainers.grpo(tmp_path, [odd], PPOMonitoringCallback(rules=[]), report_to="tensorboard", max_steps=1).train()
    (rows,) = [content[3] for content in sent if content[0] == "table"]
    assert {row[2] for row in rows} <= {None, 1.0, 2.0} and None in {row[2] for row in rows}
    assert all(len(row[0]) <= 2 and len(row[1]) <= 3 for row in rows)
