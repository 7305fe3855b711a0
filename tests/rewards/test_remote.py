import asyncio
import inspect
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from trl_ext.errors import UserError
from trl_ext.rewards import CheckedReward
from trl_ext.rewards.endpoint_errors import EndpointError
from trl_ext.rewards.remote import RemoteReward


class Server:
    """Answers with the length of each completion, after the replies in `replies`: (status, headers, body, seconds)."""

    def __init__(self):
        self.replies, self.requests, self.seconds = [], [], 0.0
        self.at_once = self.most = 0
        lock, server = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    server.at_once += 1
                    server.most = max(server.most, server.at_once)
                    server.requests.append((self.path, dict(self.headers), body))
                    reply = server.replies.pop(0) if server.replies else (200, {}, None, server.seconds)
                status, headers, content, seconds = reply
                time.sleep(seconds)
                if content is None:
                    content = json.dumps({"rewards": [len(c) for c in body["completions"]]})
                with lock:
                    server.at_once -= 1
                try:
                    self.send_response(status)
                    for name, value in {"Content-Length": str(len(content.encode())), **headers}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(content.encode())
                except (BrokenPipeError, ConnectionResetError):
                    pass  # given up on the other side

            def log_message(self, *args):
                pass

        class HttpServer(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self.http = HttpServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.http.server_address[1]}"
        self.url = f"http://{self.address}/score"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = Server()
    yield server
    server.close()


def make(server, **options):
    return RemoteReward(server.url, **{"backoff": 0.01, "check": False, **options})


def ask(reward, completions, **kwargs):
    return asyncio.run(reward(prompts=["p"] * len(completions), completions=list(completions), **kwargs))


def closed_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_rewards_come_in_order_from_batches_of_the_size_asked(server):
    server.seconds = 0.01
    completions = ["a" * length for length in range(10)]
    assert ask(make(server, batch_size=4), completions) == [float(length) for length in range(10)]
    assert sorted(len(body["completions"]) for _, _, body in server.requests) == [2, 4, 4]
    assert all(body["prompts"] == ["p"] * len(body["completions"]) for _, _, body in server.requests)
    assert ask(make(server), []) == []


def test_messages_columns_headers_and_token_are_sent(server, monkeypatch):
    monkeypatch.setenv("REWARD_TOKEN", "sesame")
    reward = make(server, columns=["solution"], headers={"X-Team": "a b"}, token_env="REWARD_TOKEN")
    message = [{"role": "assistant", "content": "é"}]
    assert ask(reward, [message], solution=["s"], other=["t"]) == [1.0]
    ((path, headers, body),) = server.requests
    assert path == "/score"
    assert body == {"prompts": ["p"], "completions": [message], "solution": ["s"]}
    assert headers["X-Team"] == "a b"
    assert headers["Authorization"] == "Bearer sesame"
    assert headers["Content-Type"] == "application/json"
    assert b"sesame" not in pickle.dumps(reward)


def test_a_password_in_netrc_does_not_replace_the_token(server, monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password wrong\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("REWARD_TOKEN", "sesame")
    ask(make(server, token_env="REWARD_TOKEN"), ["a"])
    assert server.requests[0][1]["Authorization"] == "Bearer sesame"


def test_null_is_none_and_the_list_is_where_response_key_says(server):
    server.replies = [(200, {}, '{"scores": [null, 2]}', 0), (200, {}, "[1.5, 2]", 0)]
    assert ask(make(server, response_key="scores"), ["a", "b"]) == [None, 2.0]
    assert ask(make(server, response_key=None), ["a", "b"]) == [1.5, 2.0]


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_request_is_repeated_after_a_passing_fault(server, status):
    server.replies = [(status, {}, "", 0)] * 2
    assert ask(make(server, retries=2), ["abc"]) == [3.0]
    assert len(server.requests) == 3


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_request_is_not_repeated_after_a_lasting_one(server, status):
    server.replies = [(status, {}, "", 0)]
    with pytest.raises(EndpointError, match=f"status {status}") as error:
        ask(make(server), ["abc"])
    assert error.value.status == status
    assert len(server.requests) == 1


def test_retries_end_and_wait_longer_each_time(server):
    server.replies = [(500, {}, "", 0)] * 9
    started = time.monotonic()
    with pytest.raises(EndpointError, match=r"status 500 Internal Server Error"):
        ask(make(server, retries=3, backoff=0.1), ["abc"])
    assert len(server.requests) == 4
    assert 0.6 <= time.monotonic() - started < 3  # 0 + 0.2 + 0.4


def test_retry_after_is_kept_to_and_capped(server):
    server.replies = [(429, {"Retry-After": "1"}, "", 0)]
    started = time.monotonic()
    assert ask(make(server), ["abc"]) == [3.0]
    assert 1.0 <= time.monotonic() - started < 3
    server.replies = [(429, {"Retry-After": "3600"}, "", 0), (503, {"Retry-After": "whenever"}, "", 0)]
    started = time.monotonic()
    assert ask(make(server, timeout=0.5), ["abc"]) == [3.0]
    assert time.monotonic() - started < 3


def test_a_slow_answer_is_given_up_and_asked_for_again(server):
    server.replies = [(200, {}, None, 1.0)]
    assert ask(make(server, timeout=0.2), ["abc"]) == [3.0]
    server.replies = [(200, {}, None, 1.0)] * 2
    with pytest.raises(EndpointError, match=r"/score gives no rewards: no answer within 0\.2 s"):
        ask(make(server, timeout=0.2, retries=1), ["abc"])


def test_a_whole_call_has_a_deadline(server):
    server.seconds = 0.3
    started = time.monotonic()
    reward = make(server, batch_size=1, concurrency=1, deadline=0.75)
    first, second, *others = ask(reward, "abcdefghij")
    assert (first, second) == (1.0, 1.0)  # what has come is kept
    assert all("did not answer 10 requests within 0.75 s: raise deadline" in other.reason for other in others)
    assert time.monotonic() - started < 2
    time.sleep(0.5)
    assert len(server.requests) <= 4  # those that had not begun never do
    server.seconds = 1.0
    with pytest.raises(EndpointError, match=r"did not answer 2 requests within 0\.1 s"):
        ask(make(server, batch_size=1, deadline=0.1), "ab")


def test_after_a_failure_the_rest_of_the_call_is_not_asked(server):
    server.replies = [(403, {}, "", 0)]
    server.seconds = 0.05
    with pytest.raises(EndpointError, match="status 403"):
        ask(make(server, batch_size=1, concurrency=1), "abcdefghij")
    time.sleep(0.3)
    assert len(server.requests) <= 2  # one may have begun by then


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"rewards": [1]}', "it gave 1 rewards for 2 completions"),
        ('{"rewards": [1, 2, 3]}', "it gave 3 rewards for 2 completions"),
        ('{"rewards": 3}', "it gave int in place of a list"),
        ('{"scores": [1, 2]}', r"its answer has no 'rewards' but the keys \['scores'\]: set response_key"),
        ("[1, 2]", "its answer has no 'rewards' but list: set response_key"),
        ("<html>oops</html>", "it answered no JSON"),
        ("", "it answered no JSON"),
        ("[" * 100_000, "it answered no JSON"),
    ],
)
def test_an_answer_of_another_shape_is_one_line(server, content, message):
    server.replies = [(200, {}, content, 0)]
    with pytest.raises(EndpointError, match=message) as error:
        make(server).endpoint.ask({"prompts": ["", ""], "completions": ["a", "b"]})
    assert str(error.value).startswith(f"remote: {server.url} gives no rewards: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("bad", ['"2"', "true", "[2]", "1e999", "1e19", "1" + "0" * 400, "NaN", "-Infinity"])
def test_an_entry_that_is_no_number_costs_one_reward(server, bad):
    server.replies = [(200, {}, f'{{"rewards": [1, {bad}, null, 2]}}', 0)]
    checked = CheckedReward(make(server))
    assert ask(checked, "abcd") == [1.0, None, None, 2.0]
    assert (checked.failures, len(server.requests)) == (1, 1)
    server.replies = [(200, {}, f'{{"rewards": [{bad}]}}', 0)]
    with pytest.raises(UserError, match=r"it gave .* as a reward, no number and not null \(asked at start"):
        make(server, check=True)


def test_redirections_are_not_followed(server):
    server.replies = [(302, {"Location": "http://example.com/"}, "", 0)]
    with pytest.raises(EndpointError, match=r"it redirects \(status 302\)"):
        ask(make(server), ["a"])
    assert len(server.requests) == 1


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_more_requests_at_once_than_asked_for(server, concurrency):
    server.seconds = 0.02
    reward = make(server, concurrency=concurrency, batch_size=1)

    async def twice():
        return await asyncio.gather(*(reward(prompts=[""] * 12, completions=["a"] * 12) for _ in range(2)))

    assert asyncio.run(twice()) == [[1.0] * 12] * 2
    assert server.most == concurrency


def test_two_remote_rewards_are_asked_at_the_same_time(server):
    server.seconds = 0.3
    rewards = [CheckedReward(make(server, concurrency=1)) for _ in range(2)]

    async def together():
        return await asyncio.gather(*(reward(prompts=[""], completions=["a"]) for reward in rewards))

    assert asyncio.run(together()) == [[1.0]] * 2
    assert server.most == 2


def test_it_is_a_coroutine_function_that_pickles_after_use(server):
    reward = make(server)
    assert inspect.iscoroutinefunction(reward)  # how TRL 1.12 asks
    assert inspect.iscoroutinefunction(type(reward).__call__)  # how TRL 1.16 asks
    assert ask(reward, ["a"]) == [1.0]
    copy = pickle.loads(pickle.dumps(reward))
    assert inspect.iscoroutinefunction(copy)
    assert ask(copy, ["ab"]) == [2.0]


def test_an_endpoint_that_is_up_is_asked_once_at_start(server):
    make(server, check=True)
    ((_, _, body),) = server.requests
    assert [len(value) for value in body.values()] == [1, 1]


def test_with_columns_it_only_has_to_answer_at_start(server):
    server.replies = [(422, {}, "", 0), (404, {}, "", 0)]
    make(server, check=True, columns=["solution"])
    with pytest.raises(UserError, match=r"status 404 .*: correct the path \(asked at start; check: false"):
        make(server, check=True, columns=["solution"])


def test_an_endpoint_that_is_down_at_start_is_one_line_without_secrets(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    port = closed_port()
    with pytest.raises(UserError) as error:
        RemoteReward(
            f"http://me:hunter2@127.0.0.1:{port}/score?key=hunter3", retries=1, backoff=0, headers={"X-Key": "hunter4"}
        )
    assert str(error.value) == (
        f"remote: http://127.0.0.1:{port}/score gives no rewards: connection refused "
        "(asked at start; check: false leaves that out)"
    )
    shown = error.value
    while shown is not None:  # what a traceback would print
        assert "hunter" not in str(shown)
        shown = shown.__cause__


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "ftp://host/x"}, "url that starts with http:// or https://"),
        ({"url": "localhost:8000"}, "url that starts with http"),
        ({"url": "http://"}, "url that starts with http"),
        ({"url": "http://host:port/"}, "url that starts with http"),
        ({"url": "file:///etc/passwd"}, "url that starts with http"),
        ({"url": None}, "url that starts with http"),
        ({"timeout": 0}, "needs timeout in seconds above 0"),
        ({"timeout": "30"}, "needs timeout in seconds above 0"),
        ({"deadline": -1}, "needs deadline in seconds above 0"),
        ({"retries": -1}, "at least 0 for retries"),
        ({"retries": True}, "at least 0 for retries"),
        ({"backoff": -1}, "backoff of at least 0 seconds"),
        ({"concurrency": 0}, "at least 1 for concurrency"),
        ({"batch_size": 1.5}, "at least 1 for batch_size"),
        ({"headers": ["X: y"]}, "needs a mapping for headers"),
        ({"headers": {"X-Number": 3}}, "needs texts for headers, that of 'X-Number'"),
        ({"headers": {"X": "secret\r\nY: z"}}, "cannot send the header 'X'"),
        ({"response_key": ""}, "needs a text for response_key"),
        ({"token_env": "NO_SUCH_TOKEN_HERE"}, "no token in the environment variable that token_env names"),
        ({"token_env": 3}, "name of an environment variable for token_env"),
        ({"columns": "solution"}, "list of column names"),
        ({"columns": ["prompts"]}, "sends prompts anyway"),
        ({"check": 1}, "true or false for check"),
    ],
)
def test_bad_options_are_one_line(options, message):
    with pytest.raises(UserError, match=message) as error:
        RemoteReward(**{"url": "http://127.0.0.1:1/", "check": False, **options})
    assert "\n" not in str(error.value)
    assert "secret" not in str(error.value)


def test_a_missing_column_and_what_is_no_json_are_named(server):
    with pytest.raises(UserError, match="needs the dataset column 'solution'"):
        ask(make(server, columns=["solution"]), ["a"])
    with pytest.raises(UserError, match=r"cannot send what JSON cannot hold: .*object"):
        ask(make(server, columns=["solution"]), ["a"], solution=[object()])
    assert server.requests == []


class Moody(Server):
    """Answers a request that holds the completion "bad" in its own way: with a status, or a text as the whole body."""

    def __init__(self, answer):
        super().__init__()
        self.replies = self
        self.answer = answer

    def __bool__(self):
        return True

    def pop(self, index):
        _, _, body = self.requests[-1]
        good = (200, {}, json.dumps({"rewards": [len(c) for c in body["completions"]]}), 0)
        if "bad" not in body["completions"]:
            return good
        return (self.answer, {}, "", 0) if isinstance(self.answer, int) else (200, {}, self.answer, 0)


@pytest.mark.parametrize(
    ("answer", "lost"),
    [(400, 1), (413, 1), (422, 1), (500, 1), ("no JSON", 1), ('{"rewards": []}', 1), (429, 8), (503, 8), (504, 8)],
)
def test_a_bad_completion_costs_itself_or_its_request_and_no_other(answer, lost, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = Moody(answer)
    try:
        checked = CheckedReward(make(server, batch_size=8, retries=1))
        completions = [f"{i}" for i in range(40)]
        completions[19] = "bad"
        rewards = ask(checked, completions)
    finally:
        server.close()
    assert checked.failures == lost
    assert rewards[19] is None
    assert rewards.count(1.0) + rewards.count(2.0) == 40 - lost


@pytest.mark.parametrize("bad", [(0, 1, 2, 3, 4, 5), (34, 35, 36, 37, 38, 39)])
def test_it_does_not_matter_where_the_bad_ones_stand(bad, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = Moody(400)
    try:
        checked = CheckedReward(make(server, batch_size=16, concurrency=1))
        rewards = ask(checked, ["bad" if i in bad else "a" for i in range(40)])
    finally:
        server.close()
    assert [i for i, reward in enumerate(rewards) if reward is None] == list(bad)


@pytest.mark.parametrize("status", [500, 503])
def test_an_endpoint_that_fails_at_everything_is_not_asked_for_ever(server, status):
    server.replies = [(status, {}, "", 0)] * 500
    with pytest.raises(EndpointError, match=f"status {status}"):
        ask(make(server, batch_size=4, retries=0, concurrency=2), ["a"] * 100)
    assert len(server.requests) < 40


def test_one_bad_request_costs_one_reward(server):
    """The third batch is refused and, after the fourth, the second of its completions alone."""
    server.replies = [(200, {}, None, 0)] * 2 + [(422, {}, "", 0)] + [(200, {}, None, 0)] * 2 + [(422, {}, "", 0)]
    checked = CheckedReward(make(server, batch_size=2, concurrency=1))
    assert ask(checked, ["a", "bb", "ccc", "d", "ee", "f", "gg", "h"]) == [1, 2, 3, 1, 2, None, 2, 1]
    assert checked.failures == 1


def test_where_all_requests_are_bad_the_cause_is_told(server):
    server.replies = [(400, {}, "", 0)] * 9
    with pytest.raises(EndpointError, match="status 400"):
        ask(make(server, batch_size=2), ["a", "b", "c"])


def test_an_answer_that_never_ends_does_not_keep_the_process_alive(tmp_path):
    """It drips a byte now and then, so that no read times out."""
    program = """
import asyncio, socketserver, sys, threading, time
from trl_ext.rewards.remote import RemoteReward

class Drips(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.recv(65536)
        self.request.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 99999\\r\\n\\r\\n")
        while True:
            time.sleep(0.05)
            self.request.sendall(b" ")

class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

server = Server(("127.0.0.1", 0), Drips)
threading.Thread(target=server.serve_forever, daemon=True).start()
reward = RemoteReward(f"http://127.0.0.1:{server.server_address[1]}/", check=False, retries=0, **OPTIONS)
try:
    asyncio.run(reward(prompts=["p"], completions=["c"]))
except Exception as error:
    print(error)
"""
    for options, said in (
        ({"timeout": 0.4, "deadline": 30}, "its answer did not end within 0.4 s"),
        ({"timeout": 30, "deadline": 0.4}, "did not answer 1 requests within 0.4 s"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program.replace("OPTIONS", repr(options)).replace("\\\\", "\\")],
            capture_output=True, text=True, timeout=25, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]),
                                                             "NO_PROXY": "127.0.0.1"},
        )  # fmt: skip
        assert said in done.stdout, done.stderr
