"""A reward function that fails: what its completion gets, what is kept, what is told, and that training goes on."""

import asyncio
import contextlib
import json
import logging
import pickle
import re
import signal
import socket
import threading
import time
from collections import OrderedDict, defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from trl_ext.errors import UserError
from trl_ext.rewards import CheckedReward
from trl_ext.rewards.checking import DEFAULT_TIMEOUT
from trl_ext.rewards.failures import LINES_KEPT
from trl_ext.rewards.one_by_one import OneByOne
from trl_ext.rewards.probing import probing
from trl_ext.rewards.results import Unscored, read_error, read_result
from trl_ext.rewards.time_limit import TimeLimitError, call_within


def length(prompts, completions, **kwargs):
    return [float(len(c)) for c in completions]


def breaks_on_x(prompts, completions, **kwargs):
    if any("x" in c for c in completions):
        raise ValueError("an x")
    return length(prompts, completions)


async def awaits_and_breaks_on_x(prompts, completions, **kwargs):
    await asyncio.sleep(0)
    return breaks_on_x(prompts, completions)


def ask(checked, *completions, **kwargs):
    result = checked(prompts=[f"p{i}" for i in range(len(completions))], completions=list(completions), **kwargs)
    return asyncio.run(result) if asyncio.iscoroutine(result) else result


def lines(folder, name="reward_failures.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.mark.parametrize("func", [breaks_on_x, awaits_and_breaks_on_x])
@pytest.mark.parametrize(("policy", "given"), [("none", None), (None, None), (-1.0, -1.0), (0, 0.0)])
def test_one_bad_completion_costs_one_reward(func, policy, given):
    checked = CheckedReward(func, on_failure=policy)
    assert ask(checked, "a", "x", "abc", "bx") == [1.0, given, 3.0, given]
    assert checked.failures == 2


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (lambda c: [1.0, "good", float("nan"), float("inf")], [1.0, None, None, None]),
        (lambda c: [1.0, None, 2.0, 3.0], [1.0, None, 2.0, 3.0]),
        (lambda c: [1.0], [None] * 4),
        (lambda c: "good", [None] * 4),
        (lambda c: None, [None] * 4),
        (lambda c: 0.5, [None] * 4),
    ],
)
def test_what_is_no_finite_number_is_no_reward(result, expected):
    checked = CheckedReward(lambda prompts, completions, **kwargs: result(completions))
    assert ask(checked, "a", "b", "c", "d") == expected


def test_raise_ends_the_run_after_the_completion_is_kept(tmp_path):
    checked = CheckedReward(breaks_on_x, on_failure="raise", failures_dir=tmp_path)
    with pytest.raises(UserError, match="'breaks_on_x' at step 7, completion 1, raised ValueError: an x"):
        ask(checked, "a", "x", trainer_state=SimpleNamespace(global_step=7))
    (line,) = lines(tmp_path)
    assert (line["completion"], line["prompt"], line["kind"], line["step"]) == ("x", "p1", "exception", 7)


def test_the_file_has_what_failed_and_why(tmp_path):
    checked = CheckedReward(breaks_on_x, name="judge", failures_dir=tmp_path / "new")
    ask(checked, "ax", "b")
    ask(CheckedReward(lambda prompts, completions, **kwargs: [float("nan")], failures_dir=tmp_path / "new"), "c")
    first, second = lines(tmp_path / "new")
    assert first["reward"] == "judge" and first["kind"] == "exception" and "ValueError: an x" in first["message"]
    assert second["reward"] == "<lambda>" and second["kind"] == "value" and second["completion"] == "c"


def test_the_file_is_bounded_and_the_count_goes_on(tmp_path):
    checked = CheckedReward(lambda prompts, completions, **kwargs: ["bad"] * len(completions), failures_dir=tmp_path)
    for _ in range(3):
        ask(checked, *["a"] * 500)
    assert len(lines(tmp_path)) == LINES_KEPT == 1000
    assert checked.failures == 1500


def test_other_processes_have_files_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    ask(CheckedReward(breaks_on_x, failures_dir=tmp_path), "x")
    assert len(lines(tmp_path, "reward_failures-rank3.jsonl")) == 1
    assert not (tmp_path / "reward_failures.jsonl").exists()


def test_a_folder_that_cannot_be_written_costs_the_lines_alone(tmp_path):
    (tmp_path / "file").write_text("")
    checked = CheckedReward(breaks_on_x, failures_dir=tmp_path / "file")
    assert ask(checked, "x", "a") == [None, 1.0]


def test_a_function_that_always_fails_is_not_asked_one_by_one_for_ever():
    calls = []

    def broken(prompts, completions, **kwargs):
        calls.append(len(completions))
        raise ValueError("always")

    checked = CheckedReward(broken)
    for _ in range(10):
        ask(checked, "a", "b", "c")
    assert calls.count(3) == 10
    assert calls.count(1) == 9  # three batches of three


def test_it_is_said_the_first_tenth_and_hundredth_time(caplog):
    checked = CheckedReward(breaks_on_x)
    with caplog.at_level(logging.WARNING):
        for _ in range(120):
            ask(checked, "x", "a")
    said = [record.getMessage() for record in caplog.records]
    assert [int(re.search(r"(\d+) failed so far", text)[1]) for text in said] == [1, 10, 100]
    assert "1 of 2 completions of this batch get no reward (None), training goes on" in said[0]


def test_the_share_that_failed_reaches_the_trainers_log():
    logged = []
    checked = CheckedReward(breaks_on_x)
    ask(checked, "x", "a", "b", "c", log_metric=lambda name, value: logged.append((name, value)))
    ask(checked, "a", log_metric=lambda name, value: logged.append((name, value)))
    assert logged == [("reward_failures/breaks_on_x", 0.25), ("reward_failures/breaks_on_x", 0.0)]
    assert checked.take_failed_share() == 0.2
    assert checked.take_failed_share() is None


def test_a_probe_leaves_no_trace(tmp_path):
    checked = CheckedReward(breaks_on_x, failures_dir=tmp_path)
    with probing():
        assert ask(checked, "x", "a", log_metric=pytest.fail) == [None, 1.0]
    assert checked.failures == checked.calls == 0
    assert checked.last_batch is None
    assert list(tmp_path.iterdir()) == []


def loops(prompts, completions, **kwargs):
    while True:
        with contextlib.suppress(Exception):  # a function that swallows what it can
            time.sleep(0.001)


def catastrophic(prompts, completions, **kwargs):
    return [float(re.match(r"(a+)+$", "a" * 40 + "b") is None) for _ in completions]


@pytest.mark.parametrize("func", [loops, catastrophic])
def test_a_call_that_takes_too_long_is_given_up(func, tmp_path):
    checked = CheckedReward(func, timeout=0.2, failures_dir=tmp_path)
    started = time.monotonic()
    assert ask(checked, "a", "b") == [None, None]
    assert time.monotonic() - started < 5
    assert {line["kind"] for line in lines(tmp_path)} == {"timeout"}
    assert "took longer than 0.2 s" in lines(tmp_path)[0]["message"]


def test_a_coroutine_that_takes_too_long_is_given_up():
    async def sleeps(prompts, completions, **kwargs):
        await asyncio.sleep(60)

    started = time.monotonic()
    assert ask(CheckedReward(sleeps, timeout=0.1), "a", "b") == [None, None]
    assert time.monotonic() - started < 5


def test_a_function_is_given_up_in_other_threads_too():
    given = []
    thread = threading.Thread(target=lambda: given.append(ask(CheckedReward(loops, timeout=0.1), "a")))
    thread.start()
    thread.join(5)
    assert given == [[None]]


def test_the_timer_of_somebody_else_goes_off_when_it_would_have():
    with pytest.raises(TimeLimitError, match=r"took longer than 0\.3 s"):
        call_within(0.3, lambda: [call_within(5, lambda: time.sleep(0.05)) for _ in range(100)])


def test_a_time_out_of_the_function_itself_is_its_own_failure():
    def slow_on_x(prompts, completions, **kwargs):
        if "x" in completions:
            raise TimeoutError("the pattern took too long")
        return length(prompts, completions)

    assert ask(CheckedReward(slow_on_x), "x", "ab") == [None, 2.0]


@pytest.mark.parametrize("policy", ["warn", "nan", float("nan"), True, [1.0]])
def test_another_policy_is_named(policy):
    with pytest.raises(UserError, match="on_failure must be 'raise', 'none' or a number"):
        CheckedReward(length, on_failure=policy)


@pytest.mark.parametrize("timeout", [0, -1, "10", True, float("inf")])
def test_another_timeout_is_named(timeout):
    with pytest.raises(UserError, match="timeout must be a number of seconds above 0"):
        CheckedReward(length, timeout=timeout)


def test_options_survive_a_pickle(tmp_path):
    checked = pickle.loads(pickle.dumps(CheckedReward(breaks_on_x, "judge", -2.0, 7.0, tmp_path)))
    assert ask(checked, "x", "a") == [-2.0, 1.0]
    assert (checked.timeout, checked.__name__, len(lines(tmp_path))) == (7.0, "judge", 1)
    assert pickle.loads(pickle.dumps(CheckedReward(length))).timeout == DEFAULT_TIMEOUT


@pytest.mark.parametrize("value", [1e39, 1e19, -(10**30), float("-inf"), 10**400])
def test_what_overflows_in_float32_is_no_reward(value):
    assert ask(CheckedReward(lambda prompts, completions, **kwargs: [value, 1e14]), "a", "b") == [None, 1e14]


def test_a_generator_is_read_within_the_time_limit_and_no_further_than_needed():
    def slow(prompts, completions, **kwargs):
        for _ in completions:
            time.sleep(1)
            yield 1.0

    def endless(prompts, completions, **kwargs):
        while True:
            yield 1.0

    started = time.monotonic()
    assert ask(CheckedReward(slow, timeout=0.2), "a", "b", "c") == [None] * 3
    assert ask(CheckedReward(endless), "a", "b") == [None, None]
    assert time.monotonic() - started < 5
    assert ask(CheckedReward(lambda prompts, completions, **kwargs: map(len, completions)), "a", "bb") == [1.0, 2.0]


def test_a_coroutine_that_blocks_is_told_afterwards(caplog):
    async def blocks(prompts, completions, **kwargs):
        time.sleep(0.3)
        return [1.0] * len(completions)

    assert ask(CheckedReward(blocks, timeout=0.1), "a") == [None]
    assert "blocked all others: await in it" in caplog.text


class Panic(BaseException):
    """As extensions in Rust raise it."""


class UnprintableError(Exception):
    def __str__(self):
        raise ValueError("no text")


@pytest.mark.parametrize("error", [Panic("panicked"), SystemExit(3), UnprintableError(), asyncio.CancelledError()])
@pytest.mark.parametrize("is_async", [False, True])
def test_no_exception_of_a_function_ends_the_run(error, is_async):
    def raises(prompts, completions, **kwargs):
        raise error

    async def raises_later(prompts, completions, **kwargs):
        await asyncio.sleep(0)
        raise error

    assert ask(CheckedReward(raises_later if is_async else raises), "a", "b") == [None, None]


@pytest.mark.parametrize("is_async", [False, True])
def test_the_user_can_interrupt_it_all_the_same(is_async):
    def interrupted(prompts, completions, **kwargs):
        raise KeyboardInterrupt

    async def interrupted_later(prompts, completions, **kwargs):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask(CheckedReward(interrupted_later if is_async else interrupted), "a")


def test_a_call_that_the_trainer_cancels_is_cancelled():
    async def sleeps(prompts, completions, **kwargs):
        await asyncio.sleep(60)

    async def cancelled():
        task = asyncio.ensure_future(CheckedReward(sleeps)(prompts=[""], completions=["a"]))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())


def test_a_function_that_changes_its_lists_changes_nothing_else():
    def pops(prompts, completions, **kwargs):
        completions[0] = None
        completions.pop()
        return [1.0, 2.0]

    completions = ["a", "b"]
    assert CheckedReward(pops)(prompts=["p", "q"], completions=completions) == [1.0, 2.0]
    assert completions == ["a", "b"]


@pytest.mark.parametrize("completion", [None, 5, [{"role": "assistant", "content": [object()]}], ["x"], "\ud800"])
def test_a_completion_of_any_kind_can_be_kept(completion, tmp_path):
    checked = CheckedReward(lambda prompts, completions, **kwargs: ["bad"], failures_dir=tmp_path)
    assert checked(prompts=[None], completions=[completion]) == [None]
    assert lines(tmp_path)[0]["kind"] == "value"


def spoils(prompts, completions, completion_ids=None, solution=(), **kwargs):
    """Changes in place whatever it can reach."""
    for message in [*prompts, *completions]:
        message[-1]["content"] = "spoilt"
        message[-1]["extra"]["tags"].clear()
    for ids in completion_ids:
        ids.clear()
    for one in solution:
        one["parts"].append("more")
    kwargs["table"]["key"].clear()
    solution.clear()
    return [0.0] * len(completions)


def test_a_function_that_changes_messages_ids_or_columns_in_place_changes_nothing_else():
    def build():
        message = [{"role": "assistant", "content": "text", "extra": {"tags": ["a"]}}]
        return {
            "prompts": [message], "completions": [json.loads(json.dumps(message))], "completion_ids": [[1, 2, 3]],
            "solution": [{"parts": ["x"]}], "table": {"key": [1]},
        }  # fmt: skip

    given = build()
    checked = CheckedReward(spoils)
    assert checked(**given) == [0.0]
    assert given == build()
    assert checked.failures == 0


def slow_on_x(prompts, completions, **kwargs):
    while any("x" in c for c in completions):
        time.sleep(0.001)
    return length(prompts, completions)


async def awaits_long_on_x(prompts, completions, **kwargs):
    if any("x" in c for c in completions):
        await asyncio.sleep(60)
    return length(prompts, completions)


@pytest.mark.parametrize("func", [slow_on_x, awaits_long_on_x])
def test_one_slow_completion_costs_one_reward(func, tmp_path):
    checked = CheckedReward(func, timeout=0.8, failures_dir=tmp_path)
    started = time.monotonic()
    assert ask(checked, "a", "x", *["abc"] * 20) == [1.0, None, *[3.0] * 20]
    assert time.monotonic() - started < 1.5 * 0.8 + 1
    (line,) = lines(tmp_path)
    assert (line["kind"], line["completion"]) == ("timeout", "x")
    assert line["message"].startswith("took longer than 0.8 s: make it faster")


@pytest.mark.parametrize("func", [slow_on_x, awaits_long_on_x])
def test_where_all_are_slow_a_few_are_asked_alone(func):
    asked = []

    def counted(prompts, completions, **kwargs):
        asked.append(len(completions))
        return func(prompts, completions, **kwargs)

    async def awaited(prompts, completions, **kwargs):
        asked.append(len(completions))
        return await func(prompts, completions, **kwargs)

    checked = CheckedReward(counted if func is slow_on_x else awaited, timeout=0.3)
    started = time.monotonic()
    assert ask(checked, *["x"] * 64) == [None] * 64
    assert time.monotonic() - started < 0.3 * 1.5 + 1
    assert len(asked) <= 1 + 4 + 8


@pytest.mark.filterwarnings("error")
def test_a_coroutine_that_a_plain_function_returns_is_named_and_closed(tmp_path):
    checked = CheckedReward(lambda **kwargs: awaits_and_breaks_on_x(**kwargs), name="f", failures_dir=tmp_path)
    assert ask(checked, "a", "b") == [None, None]
    assert lines(tmp_path)[0]["message"] == "returned a coroutine that nobody awaits: write the function with async def"


def test_a_nan_may_say_why(tmp_path):
    checked = CheckedReward(lambda **kwargs: [1.0, Unscored("is no film"), 2.0], name="f", failures_dir=tmp_path)
    assert ask(checked, "a", "b", "c") == [1.0, None, 2.0]
    assert [line["message"] for line in lines(tmp_path)] == ["is no film"]
    copy = pickle.loads(pickle.dumps(Unscored("why")))
    assert (copy.reason, copy == copy) == ("why", False)


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize("value", [Unprintable(), [Unprintable()], 10**5000], ids=["one", "in a list", "huge"])
def test_a_value_that_cannot_be_printed_costs_one_reward(value, tmp_path):
    checked = CheckedReward(lambda **kwargs: [1.0, value], name="f", failures_dir=tmp_path)
    assert ask(checked, "a", "b") == [1.0, None]
    assert "that cannot be printed" in lines(tmp_path)[0]["message"]


@pytest.mark.parametrize("seconds", [5e-5, 2e-4, 1e-3])
def test_no_interruption_escapes_and_no_timer_is_left_however_short_the_limit(seconds):
    def busy(until):
        while time.perf_counter() < until:
            pass

    for i in range(2000):
        with contextlib.suppress(TimeLimitError):  # about as long as the limit, so that it falls anywhere
            call_within(seconds, lambda i=i: busy(time.perf_counter() + seconds * (i % 20) / 10))
        left = signal.getitimer(signal.ITIMER_REAL)[0]
        assert left == 0.0 or left > 30  # that of pytest-timeout


def test_a_limit_beyond_all_clocks_is_named():
    with pytest.raises(UserError, match=r"null for no limit, not 10000000000\.0"):
        CheckedReward(length, timeout=1e10)
    assert ask(CheckedReward(length, timeout=1e7), "a") == [1.0]


def swallows(prompts, completions, **kwargs):
    while True:
        try:
            time.sleep(0.001)
        except:  # noqa: E722
            continue


def swallows_twice(prompts, completions, **kwargs):
    while True:
        try:
            try:  # noqa: SIM105
                time.sleep(60)
            except:  # noqa: E722
                pass
        except:  # noqa: E722
            pass


def swallows_in_nested_loops(prompts, completions, **kwargs):
    def inner():
        while True:
            try:
                time.sleep(0.001)
            except:  # noqa: E722
                continue

    while True:
        try:
            inner()
        except:  # noqa: E722
            continue


@contextlib.contextmanager
def limit_of_its_own(seconds):
    def out_of_time(signum, frame):
        raise TimeoutError("a try of mine")

    before = signal.signal(signal.SIGALRM, out_of_time)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def tries_again_with_a_limit_of_its_own(prompts, completions, **kwargs):
    while True:
        with contextlib.suppress(TimeoutError), limit_of_its_own(0.01):
            time.sleep(60)


def blocks_the_signal(prompts, completions, **kwargs):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    while True:
        pass


def waits_with_a_handler_of_its_own(prompts, completions, **kwargs):
    signal.signal(signal.SIGALRM, lambda signum, frame: None)
    signal.alarm(0)
    mine, _other_end = socket.socketpair()
    mine.recv(1)


def ignores_the_signal(prompts, completions, **kwargs):
    while True:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)


@pytest.mark.parametrize(
    "func",
    [swallows, swallows_twice, swallows_in_nested_loops, tries_again_with_a_limit_of_its_own, blocks_the_signal,
     waits_with_a_handler_of_its_own, ignores_the_signal],
)  # fmt: skip
def test_a_function_that_catches_everything_is_given_up_all_the_same(func):
    def outer(signum, frame):
        raise AssertionError

    before = signal.signal(signal.SIGALRM, outer)
    try:
        started = time.monotonic()
        assert ask(CheckedReward(func, timeout=0.2), "a") == [None]
        assert time.monotonic() - started < 10
        assert signal.getsignal(signal.SIGALRM) is outer
        assert signal.SIGALRM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "column",
    [
        lambda: (["x"], ["y"]), lambda: {"a"}, lambda: OrderedDict(a=[1]), lambda: defaultdict(list, a=[1]),
        lambda: np.array([1, 2]), lambda: torch.tensor([1, 2]),
    ],
)  # fmt: skip
def test_columns_of_any_container_are_copies(column):
    def changes(prompts, completions, extra, **kwargs):
        (one,) = extra
        if isinstance(one, tuple):
            one[0].append("z")
        elif isinstance(one, set):
            one.add("z")
        elif isinstance(one, dict):
            one["a"].append(2)
        else:
            one[0] = 99
        return [0.0]

    given = [column()]
    checked = CheckedReward(changes)
    assert checked(prompts=[""], completions=["c"], extra=given) == [0.0]
    assert str(given[0]) == str(column())
    assert checked.failures == 0


@pytest.mark.parametrize(
    "result", [{1.0, 2.0}, frozenset({1.0, 2.0}), b"ab", np.ma.array([1.0, 2.0], mask=[True, True])]
)
def test_what_has_no_order_or_no_value_is_no_reward(result):
    assert ask(CheckedReward(lambda **kwargs: result), "a", "b") == [None, None]


def test_after_a_time_out_each_has_a_sixteenth_and_one_that_comes_keeps_the_others_asked():
    late = read_error(TimeLimitError("took longer than 16 s"), 8)
    alone = read_error(TimeLimitError("took longer than 1 s"), 1)
    turns = OneByOne(late, time.monotonic(), 16.0)
    assert turns.seconds() == 1.0
    for _ in range(4):
        assert turns.given_up() is None
        turns.note(alone)
    assert turns.given_up().failures[0].message.startswith("took longer than 16 s")
    hopeful = OneByOne(late, time.monotonic(), 16.0)
    hopeful.note(read_result([1.0], 1))
    for _ in range(7):
        hopeful.note(alone)
        assert hopeful.given_up() is None
    raised = OneByOne(read_error(ValueError("x"), 8), time.monotonic(), 16.0)
    assert 15.0 < raised.seconds() <= 16.0  # what is left of the batch's time
