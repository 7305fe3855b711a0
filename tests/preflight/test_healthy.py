"""What is in order is not complained about, on both lanes of TRL."""

import pytest
from subjects import HEALTHY, complaints, embedded
from transformers import PrinterCallback

from trl_ext.preflight import Status, preflight


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_set_up_has_nothing_to_complain_about(name, tmp_path):
    trainer = HEALTHY[name](tmp_path, **({} if name in ("SFT", "reward model", "DPO") else embedded()))
    trainer.remove_callback(PrinterCallback)
    report = preflight(trainer, quick=True)
    assert complaints(report) == []
    assert report.count(Status.PASS) > 12
    assert not list((tmp_path / "run").glob("**/*.jsonl"))  # nothing is left of it
