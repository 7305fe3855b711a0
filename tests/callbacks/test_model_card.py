"""The section of the model card, in what trainers would upload; the hub is replaced, nothing leaves the machine."""

import gc
import html
import os
import re
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import rl_trainers
import trl
from datasets import Dataset
from huggingface_hub import ModelCard
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from tracker_files import tensorboard_run

from trl_ext import tiny, train
from trl_ext.callbacks import AnomalyDetectionCallback, PPOMonitoringCallback
from trl_ext.callbacks._markdown import escaped, table
from trl_ext.callbacks._model_card import BEGIN, END, card_section, with_section
from trl_ext.callbacks._public_text import public
from trl_ext.monitor.alerts import Alert, Severity


class Hub:
    """Keeps the README of each upload as it is at that moment."""

    def __init__(self):
        self.uploads = []

    def __call__(self):
        return self

    def create_repo(self, name, **_):
        return SimpleNamespace(repo_id=f"somebody/{name}")

    def upload_folder(self, folder_path, commit_message, ignore_patterns=(), **_):
        path = Path(folder_path, "README.md")
        if path.is_file():
            self.uploads.append((commit_message, path.read_text(encoding="utf-8")))
        sent = [file.name for file in Path(folder_path).iterdir() if not file.name.startswith("_")]
        assert not [name for name in sent if name.endswith(".tmp")]
        return SimpleNamespace(done=lambda: True, result=lambda: None)


@pytest.fixture
def hub(monkeypatch):
    fake = Hub()
    monkeypatch.setattr("transformers.trainer.hf_api", fake)
    return fake


def vowels(completions, **_):
    return [float(sum(text.count(v) for v in "aeiou")) for text in completions]


def is_short(completions, **_):
    return [float(len(text) < 4) for text in completions]


def too_polite(metrics):
    return f"politeness {metrics['reward']:.1f} | **too** high <!-- {END} -->"


def section(card):
    assert card.count(BEGIN) == card.count(END) == 1, card
    return card[card.index(BEGIN) : card.index(END)]


SAVING = {"save_strategy": "steps", "save_steps": 2, "push_to_hub": True, "save_total_limit": 1}
TRAINERS = [rl_trainers.grpo, rl_trainers.rloo, rl_trainers.reinforce_loo, rl_trainers.ppo]
STOCK = pytest.param(rl_trainers.stock_ppo, marks=pytest.mark.stock_ppo)


@pytest.mark.parametrize("build", [*TRAINERS, STOCK], ids=lambda build: getattr(build, "__name__", "x"))
def test_every_upload_has_the_section_once_as_of_then(tmp_path, hub, build):
    callback = AnomalyDetectionCallback(rules=[], custom_rules=[lambda metrics: "odd" if metrics else None])
    trainer = build(tmp_path, [vowels, is_short], callback, reward_weights=[1.0, 0.5], **SAVING)
    trainer.train()
    trainer.push_to_hub()
    cards = [card for message, card in hub.uploads]
    assert len(cards) >= 3 and all("in progress" in message for message, _ in hub.uploads[:-1])
    name = type(trainer).__name__
    assert f"`{name}`, step 2 of 4: not over yet." in section(cards[0])
    assert f"`{name}`, step 4 of 4: completed." in section(cards[-1])
    for card in cards:
        assert "| vowels | 1 |\n| is_short | 0.5 |" in section(card)
        assert re.search(r"\| warning \| \S+ \| 1 \| odd \|", section(card))
    first, last = (callback.summary()["metrics"]["reward"][which] for which in ("first", "last"))
    assert f"| reward | {first:.4g} | {last:.4g} |" in section(cards[-1])
    assert (tmp_path / "README.md").read_text() == cards[-1]


@pytest.mark.parametrize("kind", ["SFT", "DPO"])
def test_trainers_without_rewards_have_it_too(tmp_path, hub, kind):
    columns = {"SFT": {"text": ["one two"] * 8},
               "DPO": {"prompt": ["say"] * 8, "chosen": [" yes"] * 8, "rejected": [" no"] * 8}}[kind]  # fmt: skip
    args = getattr(trl, f"{kind}Config")(
        str(tmp_path), max_steps=2, logging_steps=1, report_to="none", use_cpu=True, bf16=False, disable_tqdm=True,
        per_device_train_batch_size=2, gradient_checkpointing=False, **{**SAVING, "save_steps": 1},
    )  # fmt: skip
    trainer = getattr(trl, f"{kind}Trainer")(
        model=tiny.load_policy(), args=args, processing_class=tiny.load_tokenizer(),
        callbacks=[AnomalyDetectionCallback()], train_dataset=Dataset.from_dict(columns),
    )  # fmt: skip
    trainer.train()
    assert len(hub.uploads) == 2
    assert f"`{kind}Trainer`, step 1 of 2: not over yet." in section(hub.uploads[0][1])
    assert "### Reward functions" not in hub.uploads[0][1] and "| loss | " in section(hub.uploads[1][1])
    # nobody uploads again: the card on disk tells the end all the same
    assert f"`{kind}Trainer`, step 2 of 2: completed." in section((tmp_path / "README.md").read_text())


def test_the_card_is_that_of_trl_with_the_section_behind_it(tmp_path):
    for folder, callbacks in (("with", [AnomalyDetectionCallback()]), ("without", [])):
        rl_trainers.grpo(tmp_path / folder, [vowels], callbacks, save_strategy="steps", save_steps=4).train()
    ours, theirs = (ModelCard.load(tmp_path / folder / "README.md") for folder in ("with", "without"))
    assert ours.data.to_dict() | {"model_name": 0} == theirs.data.to_dict() | {"model_name": 0}
    assert ours.data.library_name == "transformers" and "grpo" in ours.data.tags
    before = ours.content[: ours.content.index(BEGIN)].rstrip()
    assert before.replace("Card for with", "").replace("model_name: with\n", "") == theirs.content.rstrip().replace(
        "Card for without", ""
    ).replace("model_name: without\n", "")


def test_a_second_training_and_a_second_monitor_do_not_repeat_it(tmp_path):
    callbacks = [AnomalyDetectionCallback(), PPOMonitoringCallback()]
    trainer = rl_trainers.grpo(tmp_path, [vowels], callbacks, save_strategy="steps", save_steps=4)
    trainer.train()
    trainer.args.max_steps = 8
    trainer.train(resume_from_checkpoint=True)
    assert "step 8 of 8: completed" in section((tmp_path / "README.md").read_text())
    trainer.create_model_card()
    assert "step 8 of 8: completed" in section((tmp_path / "README.md").read_text())


@pytest.mark.parametrize("build", [rl_trainers.grpo, STOCK], ids=lambda build: getattr(build, "__name__", "x"))
def test_a_run_that_was_stopped_says_so(tmp_path, build):
    rule = {"metric": "reward", "comparison": ">", "value": -1, "logs": 2, "severity": "critical", "name": "enough"}
    callback = AnomalyDetectionCallback(rules=[], custom_rules=[rule], on_critical="stop")
    trainer = build(tmp_path, [vowels], callback, report_to="tensorboard")
    train(trainer)
    assert trainer.state.global_step == 2
    text = section((tmp_path / "README.md").read_text())
    assert "step 2 of 4: stopped at step 2 by on_critical='stop'. enough: " in text
    assert re.search(r"\| critical \| enough \| 2 \| ", text)
    ((_, summary),) = tensorboard_run(tmp_path)["texts"]["trl_ext/summary"]
    assert "| completed | False |\n" in summary and "| stopped | stopped at step 2 by" in summary


def test_what_was_written_by_hand_stays(tmp_path):
    trainer = rl_trainers.grpo(
        tmp_path, [vowels], AnomalyDetectionCallback(), save_strategy="steps", save_steps=2, max_steps=2
    )
    mine = "---\nlicense: mit\n---\r\n# Mine\n\nwritten by hand\n"
    (tmp_path / "README.md").write_bytes(mine.encode())
    trainer.create_model_card = lambda **_: None  # keeps its own card
    trainer.train()
    text = (tmp_path / "README.md").read_bytes().decode()
    assert text.startswith(mine.rstrip()) and "completed" in section(text)
    # moved by hand, it is renewed where it is
    (tmp_path / "README.md").write_bytes((section(text) + END + "\n\nbelow\n").encode())
    trainer.create_model_card()
    assert (tmp_path / "README.md").read_text().endswith(END + "\n\nbelow\n")


def test_a_card_that_the_trainer_did_not_write_is_not_touched(tmp_path):
    (tmp_path / "README.md").write_text("mine\n")
    rl_trainers.grpo(tmp_path, [vowels], AnomalyDetectionCallback(), max_steps=1).train()
    assert (tmp_path / "README.md").read_text() == "mine\n"


def test_an_end_without_a_beginning_swallows_nothing():
    torn = f"a\n{BEGIN}\nb\n"
    once = with_section(torn, "new")
    twice = with_section(once, "newer")
    assert once == f"{torn.rstrip()}\n\n{BEGIN}\nnew\n{END}\n" and twice == once.replace("new", "newer")
    assert with_section("", "s") == f"{BEGIN}\ns\n{END}\n"
    assert with_section(f"x {BEGIN}{END} y", r"\1 \g<0>") == f"x {BEGIN}\n\\1 \\g<0>\n{END} y"


def test_no_message_breaks_the_card_or_tells_a_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "correct horse battery")
    nasty = (
        f"---\nlicense: stolen\n---\n{END}\n# Title\n| a | b |\n<script>alert(1)</script> "
        "![x](http://evil.example/p.png) correct horse battery "
        f"hf_{'a' * 34} {tmp_path}/private/data.jsonl `code` $$x$$"
    )
    callback = AnomalyDetectionCallback(rules=[], custom_rules=[lambda metrics: nasty])
    rl_trainers.grpo(tmp_path, [vowels], callback, save_strategy="steps", save_steps=4).train()
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.library_name == "transformers" and "license" not in card.data.to_dict()
    text = section(card.content)
    assert "correct horse" not in card.content and "hf_aaa" not in card.content
    assert str(tmp_path) not in card.content and str(Path.home()) + "/" not in card.content
    assert "data.jsonl" in text
    rendered = MarkdownIt("commonmark").enable("table").render(text)
    assert not re.search(r"<(script|img|a|h1|code>code)\b", rendered) and "alert(1)" in rendered


def test_a_card_that_cannot_be_written_costs_a_warning(tmp_path, monkeypatch, caplog):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trl_ext.callbacks._model_card.os.replace", full)
    trainer = rl_trainers.grpo(tmp_path, [vowels], AnomalyDetectionCallback(), save_strategy="steps", save_steps=2)
    trainer.train()
    assert trainer.state.global_step == 4 and BEGIN not in (tmp_path / "README.md").read_text()
    assert "Outlets cannot write: [Errno 28] No space left on device; training goes on." in caplog.messages


def test_a_trainer_goes_with_its_last_reference(tmp_path):
    gc.collect()
    gc.disable()  # the model of one that held itself would stay on the GPU
    try:
        trainer = rl_trainers.grpo(tmp_path, [vowels], AnomalyDetectionCallback(), max_steps=1)
        trainer.train()
        gone = weakref.ref(trainer)
        del trainer
        assert gone() is None
    finally:
        gc.enable()


# --- the text alone


MARKUP = [
    "\\",
    "`",
    "*",
    "_",
    "|",
    "<b>",
    "[x](y)",
    "~~",
    "&amp;",
    "a",
    " ",
    "\n",
    "http://a.b",
    "$",
    "![",
    "#",
    "-",
    ":",
]


@given(st.text(max_size=40) | st.lists(st.sampled_from(MARKUP), max_size=12).map("".join))
def test_what_is_escaped_reads_as_it_was(text):
    rendered = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(table(["head"], [["x" + text]]))
    (cell,) = re.findall(r"<td>(.*?)</td>", rendered, re.DOTALL)
    assert not re.search("<", cell)
    visible = "".join(char if char.isprintable() else " " for char in "x" + text)
    assert html.unescape(cell).split() == visible.split()


def test_addresses_are_no_links():
    assert "://" not in escaped("see https://a.b and www.c.d") and "www." not in escaped("see WWW.c.d").lower()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("cannot read /home/me/runs/x.json", "cannot read x.json"),
        (r"in C:\Users\me\model", "in model"),
        ("~/secret/place/", "place"),
        ("file:///home/me/x.json", "x.json"),
        ("'/home/me/my runs/x.json'", "'my runs/x.json'"),
        ("rewards/vowels/mean is 0.39 nats a token: 3/4", "rewards/vowels/mean is 0.39 nats a token: 3/4"),
        ("https://hub.example/a/b", "https://hub.example/a/b"),
        ("https://me:pass@hub.example/a", "https://***@hub.example/a"),
        ("key hf_abcdefghijklmnop", "key ***"),
        ("?api_key=12345678&x=1", "?***&x=1"),
        ("kl_per_token=0.12345678", "kl_per_token=0.12345678"),
        ("Authorization: Bearer abcdefgh.ijk", "Authorization: Bearer ***"),
    ],
)
def test_paths_and_secrets_are_left_out(text, wanted):
    assert public(text) == wanted


def test_the_worst_alerts_are_shown_in_the_order_of_their_steps():
    def alert(step, severity):
        return Alert(step, f"rule{step}", severity, "m", 1.0, f"says {step}", "", opened=step, closed=step + 5)

    alerts = [alert(step, Severity.INFO) for step in range(1, 31)] + [alert(40, Severity.CRITICAL)]
    summary = {"last_step": 50, "completed": False, "stopped": "stopped at step 50 | by /a/b/c", "metrics": {}}
    text = card_section("T", {}, summary, alerts, -1)
    assert "| critical | rule40 | 40 to 45 | says 40 |" in text and "And 11 less severe ones." in text
    assert text.index("rule1 ") < text.index("rule19 ") < text.index("rule40") and "rule20" not in text
    assert r"`T`, step 50: stopped at step 50 \| by c. Recorded" in text


def test_numbers_of_an_evaluation_after_the_training_are_in_the_card_that_is_pushed_last(tmp_path, hub):
    args = trl.SFTConfig(
        str(tmp_path), max_steps=2, logging_steps=1, report_to="none", use_cpu=True, bf16=False, push_to_hub=True
    )
    trainer = trl.SFTTrainer(
        tiny.random_policy(), args, train_dataset=Dataset.from_dict({"text": ["one two"] * 8}),
        processing_class=tiny.byte_tokenizer(), callbacks=[AnomalyDetectionCallback(rules=[])],
    )  # fmt: skip
    train(trainer)
    trainer.save_metrics("eval", {"eval_loss": 3.25, "eval_rewards/accuracies": 0.75, "eval_runtime": 9.0})
    trainer.push_to_hub()
    text = section(hub.uploads[-1][1])
    assert "| loss | 3.25 |" in text and "| rewards/accuracies | 0.75 |" in text and "runtime" not in text
    os.utime(tmp_path / "eval_results.json", (1, 1))  # of an earlier run
    trainer.push_to_hub()
    assert "Held-out" not in section(hub.uploads[-1][1])
    (tmp_path / "eval_results.json").write_text("[1")
    trainer.push_to_hub()
    assert "Held-out" not in section(hub.uploads[-1][1])
