"""What was replaced for a while is as it was, also where something stood in already."""

import pytest

from trl_ext.stand_in import StandIn


class Trainer:
    def ask(self):
        return "class"


def test_methods_of_the_class_and_of_the_object_come_back_whatever_happens_inside():
    plain, patched = Trainer(), Trainer()
    patched.ask = lambda: "own"
    for trainer, before in ((plain, "class"), (patched, "own")):
        with pytest.raises(KeyError), StandIn(trainer, ask=lambda: "ours", more=1):
            assert (trainer.ask(), trainer.more) == ("ours", 1)
            raise KeyError
        assert trainer.ask() == before and not hasattr(trainer, "more")
    assert vars(plain) == {}


def test_one_inside_another_ends_first():
    trainer = Trainer()
    with StandIn(trainer, ask=lambda: "outer"):
        with StandIn(trainer, ask=lambda: "inner"):
            assert trainer.ask() == "inner"
        assert trainer.ask() == "outer"
    assert trainer.ask() == "class"
