"""A tool that misbehaves ends its episode with a named reason; the others, and the run, go on."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time

import pytest
import torch
from episode_builders import agent, call, logged, spoken
from trainer_builders import scored

from trl_ext.errors import UserError
from trl_ext.trainers.tool_guard import ToolGuard


def good(x: int) -> str:
    """
    Twice the number.

    Args:
        x: A number.
    """
    return str(2 * x)


class Unprintable:
    def __str__(self):
        raise ZeroDivisionError("no text")


class UnprintableError(Exception):
    def __str__(self):
        raise ZeroDivisionError("no text")


def recursive():
    return recursive()


def stubborn():
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(10)


def loop_for_ever():
    while True:
        pass


def clear_the_timer():
    signal.alarm(0)
    loop_for_ever()


def set_a_timer_of_its_own():
    """As a time limit of somebody else does, which leaves the default behind."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(60)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    loop_for_ever()


def retry_under_a_handler_of_its_own():
    signal.signal(signal.SIGALRM, lambda *_: None)
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(0.01)


class LeavingError(Exception):
    def __str__(self):
        sys.exit(4)


class EndlessError(Exception):
    def __str__(self):
        while True:
            pass


MISBEHAVIOUR = {
    "raises": (lambda: 1 / 0, "raised"), "leaves": (lambda: sys.exit(3), "raised"), "recurses": (recursive, "raised"),
    "runs out of memory": (lambda: bytearray(1 << 60), "raised"), "answers without text": (Unprintable, "raised"),
    "raises its own time-out": (lambda: (_ for _ in ()).throw(TimeoutError("mine")), "raised"),
    "raises what has no text": (lambda: (_ for _ in ()).throw(UnprintableError()), "raised"),
    "loops": (loop_for_ever, "timed_out"), "sleeps": (lambda: time.sleep(3), "timed_out"),
    "swallows what interrupts it": (stubborn, "timed_out"), "says 10 MB": (lambda: "x" * 10_000_000, "too_long"),
    "raises what ends the process when it is read": (lambda: (_ for _ in ()).throw(LeavingError()), "raised"),
    "raises what Ctrl-C raises": (lambda: (_ for _ in ()).throw(KeyboardInterrupt()), "raised"),
    "clears the timer": (clear_the_timer, "timed_out"),
    "sets a handler of its own and catches everything": (retry_under_a_handler_of_its_own, "timed_out"),
    "sets a timer of its own": (set_a_timer_of_its_own, "timed_out"),
    "raises what reads for ever": (lambda: (_ for _ in ()).throw(EndlessError()), "raised"),
    "says 10 MB in blocks": (lambda: [{"type": "text", "text": "x" * 10_000_000}], "too_long"),
}  # fmt: skip


FOR_EVER = object()
MISBEHAVIOUR["waits for ever"] = (FOR_EVER, "timed_out")
CASES = [
    *(("function", name) for name in MISBEHAVIOUR if name != "waits for ever"),
    ("method", "raises"), ("method", "loops"),
    *(("coroutine", name) for name in ("raises", "leaves", "sleeps", "waits for ever", "says 10 MB")),
    ("coroutine", "raises what Ctrl-C raises"),
]  # fmt: skip


def made(kind, behaviour):
    """(arguments of the trainer) for a tool of that kind with that behaviour, and `good`."""
    if kind == "coroutine":

        async def bad() -> str:
            """Misbehaves."""
            return behaviour() if behaviour is not FOR_EVER else await asyncio.sleep(1000)

        return {"tools": [good, bad]}
    if kind == "function":

        def bad() -> str:
            """Misbehaves."""
            return behaviour()

        return {"tools": [good, bad]}

    class Environment:
        def reset(self, **row):
            return None

        def bad(self) -> str:
            """Misbehaves."""
            return behaviour()

    return {"tools": [good], "environment_factory": Environment}


def first_calls_bad(text):
    """The episodes of the first prompt call the bad tool, those of the second the good one; then all answer."""
    if "tool:" in text:
        return '{"answer": 1}'
    return call("bad") if "first" in text else call("good", '"x": 21')


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_it_ends_its_episode_alone(tmp_path, name, kind):
    behaviour, reason = MISBEHAVIOUR[name]
    seen = []

    def rewards(completions, ended_by, **_):
        seen.extend(ended_by)
        return [float(i) for i in range(len(completions))]

    timeout = 0.2 if reason == "timed_out" else 30  # a busy machine takes its time with 10 MB
    trainer = agent(tmp_path, first_calls_bad, rewards, trainer=made(kind, behaviour), tool_timeout=timeout)
    started = time.monotonic()
    output = scored(trainer)
    assert time.monotonic() - started < 5
    for row in range(4):
        prompt = trainer._tokenizer.decode(output["prompt_ids"][row])
        said, heard = (spoken(output, row, trainer._tokenizer, own) for own in (True, False))
        if "first" in prompt:
            assert (said, heard) == (call("bad") + "<eos>", "") and seen[row] == reason
        else:
            assert said == call("good", '"x": 21') + '<eos>{"answer": 1}<eos>' and seen[row] is None
            assert heard == "tool: 42\nassistant: "
    assert output["advantages"].abs().sum() > 0  # scored as any other
    metrics = logged(trainer)
    assert {r: metrics[f"tools/ended/{r}"] for r in ("raised", "timed_out", "too_long")} == {
        "raised": 0.0, "timed_out": 0.0, "too_long": 0.0, reason: 0.5}  # fmt: skip
    assert metrics["tools/failure_frequency"] == 0.5


def test_the_first_of_each_kind_is_logged_with_the_tools_name_and_its_message(tmp_path, caplog):
    trainer = agent(tmp_path, first_calls_bad, trainer=made("function", lambda: {}["key"]))
    with caplog.at_level(logging.WARNING, "trl_ext"):
        scored(trainer)
        scored(trainer)
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("trl_ext")]
    assert line == "tool 'bad' ended an episode (tools/ended/raised): KeyError: 'key'"


@pytest.mark.parametrize("kind", ["function", "coroutine", "method"])
def test_what_a_tool_raises_is_told_where_that_is_wanted(tmp_path, kind):
    tools = made(kind, lambda: (_ for _ in ()).throw(ValueError("no such key")))
    output = scored(trainer := agent(tmp_path, first_calls_bad, trainer=tools, tool_errors="tell"))
    heard = {spoken(output, row, trainer._tokenizer, False) for row in range(4)}
    assert heard == {"tool: {'error': 'no such key'}\nassistant: ", "tool: 42\nassistant: "}
    assert logged(trainer)["tools/ended/raised"] == 0.0


def test_a_time_out_and_a_giant_answer_are_never_told(tmp_path):
    for name, timeout in (("loops", 0.1), ("says 10 MB", 30)):
        behaviour, reason = MISBEHAVIOUR[name]
        trainer = agent(
            tmp_path, first_calls_bad, trainer=made("function", behaviour), tool_errors="tell", tool_timeout=timeout
        )
        scored(trainer)
        assert logged(trainer)[f"tools/ended/{reason}"] == 0.5


def test_a_call_that_does_not_fit_the_tool_is_told_to_the_policy_that_made_it(tmp_path):
    def script(text):
        return '{"answer": 1}' if "tool:" in text else call("good", '"y": 1') if "first" in text else call("nothing")

    output = scored(trainer := agent(tmp_path, script, trainer={"tools": [good]}))
    heard = {spoken(output, row, trainer._tokenizer, False) for row in range(4)}
    assert any("unexpected" in text or "missing" in text for text in heard) and any(
        "not found" in text for text in heard
    )
    assert logged(trainer)["tools/ended/raised"] == 0.0


def test_later_calls_of_an_ended_episode_are_not_made(tmp_path):
    counted = []

    def script(text):
        return "\n".join([call("bad"), call("good", '"x": 1')]) if "tool:" not in text else "{}"

    def counting(x: int) -> str:
        """
        Counts.

        Args:
            x: A number.
        """
        counted.append(x)
        return "1"

    counting.__name__ = "good"
    tools = made("function", lambda: 1 / 0)
    scored(agent(tmp_path, script, trainer={"tools": [counting, tools["tools"][1]]}))
    assert counted == []


def test_a_process_that_a_tool_forks_does_not_go_on_training(tmp_path):
    """A child that leaves would be taken for a tool that raised, and train beside its parent."""
    mark = tmp_path / "children"

    def forks() -> str:
        if os.fork() == 0:
            sys.exit(0)
        os.wait()
        with mark.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return "done"

    guarded = ToolGuard(None, 100, "end").plain(0, {"forks": forks})["forks"]
    assert guarded() == "done"
    assert mark.read_text().split() == [str(os.getpid())]


def test_ctrl_c_ends_the_run(tmp_path):
    def interrupted():
        signal.raise_signal(signal.SIGINT)

    # a shell that starts the tests in the background has it ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            scored(agent(tmp_path, first_calls_bad, trainer=made("function", interrupted)))
    finally:
        signal.signal(signal.SIGINT, before)


def test_coroutines_of_one_turn_run_side_by_side_and_a_blocked_loop_is_replaced():
    guard = ToolGuard(timeout=1.5, longest=100, errors="end")

    async def waits():
        await asyncio.sleep(0.5)
        return threading.current_thread().ident

    async def blocks():
        time.sleep(4)

    async def turn(*tools):
        made = guard.coroutines(0, {str(i): tool for i, tool in enumerate(tools)})
        return await asyncio.gather(*(tool() for tool in made.values()))

    started = time.monotonic()
    first = asyncio.run(turn(waits, waits))
    assert time.monotonic() - started < 1 and len(set(first)) == 1
    asyncio.run(turn(blocks))
    assert guard.ended == {0: "timed_out"}
    guard.ended = {}
    (after,) = asyncio.run(turn(waits))
    assert after and after != first[0] and guard.ended == {}


def test_a_coroutine_that_swallows_its_cancellation_ends_no_other_episode():
    guard = ToolGuard(timeout=1.0, longest=100, errors="end")

    async def swallows():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(30)
        time.sleep(6)

    async def works():
        await asyncio.sleep(0.01)
        return "done"

    async def call(episode, tool):
        return await guard.coroutines(episode, {"tool": tool})["tool"]()

    asyncio.run(call(0, swallows))
    for _ in range(3):
        assert asyncio.run(call(1, works)) == "done"
    assert guard.ended == {0: "timed_out"}


def test_a_coroutine_that_lets_itself_be_cancelled_leaves_the_loop_to_the_others():
    """What tools keep, such as a session, is bound to it."""
    guard = ToolGuard(timeout=0.5, longest=100, errors="end")
    loops = []

    async def tool(wait: float):
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(wait)

    for episode, wait in enumerate((0.0, 10.0, 0.0)):
        asyncio.run(guard.coroutines(episode, {"tool": tool})["tool"](wait=wait))
    assert guard.ended == {1: "timed_out"} and len(set(loops)) == 1


def test_gradients_are_on_again_after_a_tool_that_turned_them_off(tmp_path):
    trainer = agent(tmp_path, first_calls_bad, trainer=made("function", lambda: torch.set_grad_enabled(False)))
    scored(trainer)
    assert torch.is_grad_enabled()


def test_the_thread_of_a_loop_that_was_given_up_ends():
    guard = ToolGuard(timeout=0.1, longest=100, errors="end")

    async def waits():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(10)
        await asyncio.sleep(2)

    before = set(threading.enumerate())
    for episode in range(3):
        asyncio.run(guard.coroutines(episode, {"waits": waits})["waits"]())
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
        assert not thread.is_alive()


def test_answers_that_no_template_or_tokenizer_takes_are_made_texts(tmp_path):
    """Half of a surrogate pair, and blocks of content for a model that reads texts alone."""
    for answer, heard in (("half \ud83d a pair", "half"), ([{"type": "text", "text": "in blocks"}], "in blocks")):
        trainer = agent(tmp_path, first_calls_bad, trainer=made("function", lambda answer=answer: answer))
        output = scored(trainer)
        assert any(heard in spoken(output, row, trainer._tokenizer, False) for row in range(4))
        assert logged(trainer)["tools/ended/raised"] == 0.0


def test_a_turn_that_the_parser_fails_on_is_a_text(tmp_path):
    """Transformers' parser raises a KeyError for a call without arguments, and TRL catches two other errors alone."""
    trainer = agent(tmp_path, first_calls_bad, trainer={"tools": [good]})
    parse = trainer._tokenizer.parse_response

    def failing(ids, *args, **kwargs):
        raise KeyError("arguments")

    trainer._tokenizer.parse_response = failing
    output = scored(trainer)
    assert logged(trainer)["episodes/turns"] == 1.0 and output["completion_mask"].any()
    trainer._tokenizer.parse_response = parse


def test_a_list_that_is_no_content_blocks_is_a_text():
    plain = ToolGuard(1.0, 100, "end").plain(0, {"a": lambda: [1, 2], "b": lambda: [{"type": "text", "text": "x"}]})
    assert plain["a"]() == "[1, 2]" and plain["b"]() == "x"
    seeing = ToolGuard(1.0, 100, "end", images=True).plain(0, {"b": lambda: [{"type": "text", "text": "x"}]})
    assert seeing["b"]() == [{"type": "text", "text": "x"}]


def test_no_thread_that_is_left_behind_keeps_the_process_from_ending():
    guard = ToolGuard(timeout=0.05, longest=100, errors="end")

    async def blocks():
        time.sleep(1)

    asyncio.run(guard.coroutines(0, {"blocks": blocks})["blocks"]())
    left = [thread for thread in threading.enumerate() if thread.name == "trl_ext tools"]
    assert left and all(thread.daemon for thread in left)


def test_a_reset_that_fails_ends_the_run_in_one_line(tmp_path):
    class Fragile:
        def reset(self, **row):
            raise KeyError("board")

        def move(self) -> str:
            """Moves."""
            return ""

    with pytest.raises(UserError, match=r"Fragile\.reset failed with KeyError: 'board'"):
        scored(agent(tmp_path, first_calls_bad, trainer={"environment_factory": Fragile}))


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        ({"tool_timeout": 0.0}, "above 0"),
        ({"max_tool_answer": 0}, "at least 1"),
        ({"tool_errors": "stop"}, "'end' or 'tell'"),
    ],
)
def test_options_that_cannot_be_are_one_line(tmp_path, options, fix):
    with pytest.raises(UserError, match=fix):
        agent(tmp_path, first_calls_bad, trainer={"tools": [good]}, **options)
