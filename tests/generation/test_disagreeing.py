"""What one of two processes cannot, both give up, and the run goes on: no process waits for the other."""

import os
from pathlib import Path

import pytest
from torchrun import output_of

pytestmark = pytest.mark.current_trl  # its two launches
NO_ROOM = "the card has no room for the twin, its cache and its graphs"
FSDP2 = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
         "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT", "FSDP_RESHARD_AFTER_FORWARD": "false"}  # fmt: skip


def ended(**environment):
    """Case -> for each process its steps, weights, logs with importance sampling, warnings and reason."""
    output = output_of(Path(__file__).with_name("disagreeing_run.py"), timeout=240, env={**os.environ, **environment})
    found = {}
    for line in output.splitlines():
        if line.count(" / ") == 2:
            case, rank, rest = line.split(" / ")
            steps, norm, rest = rest.split(" ", 2)
            noted, rest = rest.split("] ")
            warnings, reason = rest.split(" ", 1)
            found.setdefault(case, {})[int(rank)] = (steps, norm, noted + "]", warnings, reason)
    return {case: [ranks[0], ranks[1]] for case, ranks in found.items()}


def both(noted, reason):
    """The reason of the second process, at its place; the main process warns."""
    return [("3", noted, "1", f"on process 1, {reason}"), ("3", noted, "0", reason)]


def without_weights(case):
    """Each process has the same ones, where each has all."""
    assert case[0][1] == case[1][1]
    return [(steps, noted, warnings, reason) for steps, _, noted, warnings, reason in case]


def test_the_batch_in_which_one_process_gives_up_is_weighed_on_both_and_none_after_it():
    found = ended()
    assert without_weights(found["stock corrected"]) == both("[0, 1]", NO_ROOM)
    assert without_weights(found["ours corrected"]) == both("[0, 1]", "RuntimeError: an operator")
    assert without_weights(found["stock"]) == both("[]", NO_ROOM)


def test_under_fsdp2_all_processes_generate_with_the_twin_or_none():
    found = ended(**FSDP2)
    assert without_weights(found["sample"]) == both("[]", NO_ROOM)
    assert without_weights(found["room"]) == both("[0]", NO_ROOM)
    assert without_weights(found["greedy"]) == both("[0]", NO_ROOM)  # in the greedy pass of the first batch
    assert without_weights(found["twin"]) == [("3", "[]", warnings, "ValueError: no static cache") for warnings in "10"]
    assert without_weights(found["compare"]) == both("[]", "far")
