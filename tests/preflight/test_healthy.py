"""What is in order is not complained about, on both lanes of TRL."""

import pytest
import torch
from subjects import HEALTHY, complaints, embedded, grpo, loo, looked_at, ppo, sft
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback

from trl_ext.preflight import Status, preflight
from trl_ext.tiny import byte_tokenizer

PASS, SKIP = Status.PASS, Status.SKIP
current = pytest.mark.current_trl  # one lane is enough


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_set_up_has_nothing_to_complain_about(name, tmp_path):
    trainer = HEALTHY[name](tmp_path, **({} if name in ("SFT", "reward model", "DPO") else embedded()))
    trainer.remove_callback(PrinterCallback)
    report = preflight(trainer, quick=True)
    assert complaints(report) == []
    assert report.count(Status.PASS) > 12
    assert not list((tmp_path / "run").glob("**/*.jsonl"))  # nothing is left of it


@current
@pytest.mark.parametrize("build", [loo, ppo])
def test_the_side_on_which_the_tokenizer_pads_is_nothing_to_trainers_that_pad_prompts_themselves(build, tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.padding_side = "right"
    found = looked_at(build(tmp_path, tokenizer=tokenizer), "masks", "mini_run")
    assert (found["prompt"].status, found["monitor"].status) == (PASS, PASS), found["monitor"].message


@current
@pytest.mark.parametrize("build", [loo, grpo, sft])
def test_a_schedule_of_the_users_own_is_no_drift(build, tmp_path):
    trainer = build(tmp_path, learning_rate=5.0)  # of no consequence beside an optimizer
    trainer.optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=5e-4)
    trainer.lr_scheduler = LambdaLR(trainer.optimizer, lambda step: min(1.0, (step + 1) / 10))
    found = looked_at(trainer, "options", "mini_run")
    assert found["monitor"].status == PASS, found["monitor"].message
    assert (found["learning_rate"].status, found["learning_rate"].numbers["learning_rate"]) == (PASS, 5e-4)
