"""Asks another process what an architecture has (architecture.py).

A config.json may come from anybody, and to build a model is a large thing to do beside a training: some models draw
random numbers or change PyTorch's default dtype while they are built, some configurations keep the builder busy for
ever. So it is done in a process of its own: offline, without a GPU, with limits on its time and memory. It stays for a
few seconds, since importing Transformers takes longer than building.
"""

import atexit
import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trl_ext.checkpoints.architecture import Differences

_SECONDS = 60.0  # for one answer, with the import
_IDLE = 10.0  # seconds after which the process ends
_MEMORY = 16 << 30  # bytes of address space
_PROCESSOR = 600  # seconds of a core, over all answers
_KEPT = 64  # answers
_OF_A_LAUNCHER = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "ACCELERATE_",
    "FSDP_",
    "TORCHELASTIC_",
)
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from trl_ext.checkpoints.architecture_process import serve; serve()"
)


@dataclass(frozen=True)
class NotCompared:
    """Why there is no comparison.

    Attributes:
        is_contradiction: whether it is the configuration's fault, or the other process could not answer.
    """

    reason: str
    is_contradiction: bool


def differences(config: Mapping[str, Any], stored: Mapping[str, tuple[int, ...]]) -> Differences | NotCompared | None:
    """What is missing, unexpected, reshaped or wrapped among the stored tensors.

    Args:
        config: of `config.json`.
        stored: shapes by name.
    Returns:
        `None` where Transformers does not have the architecture, or it cannot be built from the configuration alone.
    """
    if not _is_known(config):
        return None
    try:
        question = json.dumps(config), json.dumps(stored)
    except (TypeError, ValueError, RecursionError):
        return None
    if question not in _ANSWERS:  # a run's checkpoints have the same
        try:
            answer = _BUILDER.ask(f"[{', '.join(question)}]")
        except _NoAnswerError as error:
            return NotCompared(str(error), is_contradiction=False)
        if len(_ANSWERS) >= _KEPT:
            _ANSWERS.clear()
        _ANSWERS[question] = answer
    answer = _ANSWERS[question]
    if isinstance(answer, str):
        return NotCompared(answer, is_contradiction=True)
    if not isinstance(answer, dict):
        return None
    reshaped = {name: tuple(shape) for name, shape in answer["reshaped"].items()}
    return Differences(answer["missing"], answer["unexpected"], reshaped, answer["wrapped"], frozenset(answer["tied"]))


def prepare(config: Any) -> None:
    """Starts what `differences` of this configuration will ask; not where it has been asked of it before."""
    if not isinstance(config, dict) or not _is_known(config):
        return
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        text = json.dumps(config)
        if all(known != text for known, _ in tuple(_ANSWERS)):  # another thread may add one
            _BUILDER.start()


def _is_known(config: Mapping[str, Any]) -> bool:
    """Whether Transformers may have it. Code from the hub may take a name that it has for something else."""
    named = config.get("architectures")
    return (
        isinstance(named, list)
        and bool(named)
        and isinstance(config.get("model_type"), str)
        and not config.get("auto_map")
    )


class _NoAnswerError(Exception):
    """In words, why."""


_ANSWERS: dict[tuple[str, str], Any] = {}


class _Builder:
    """The other process, from when it is first asked until it has been idle."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Ahead of a question: it takes seconds."""
        with self._lock, contextlib.suppress(OSError, TypeError, ValueError):  # `ask` says so
            self._started()

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None or self._process.poll() is not None:
            self.end()
            self._process = _new_process()
        return self._process

    def ask(self, question: str) -> Any:
        """
        Raises:
            _NoAnswerError: it cannot be started, or takes too long.
        """
        with self._lock:
            for _ in range(2):  # it may have ended a moment ago
                try:
                    return self._answer(question)
                except (OSError, ValueError, TypeError) as error:
                    self.end()
                    reason = f"the process that builds it ended ({type(error).__name__})"
            raise _NoAnswerError(reason)

    def _answer(self, question: str) -> Any:
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(question.encode() + b"\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            ready = selector.select(_SECONDS)
        if not ready:
            self.end()
            raise _NoAnswerError(f"building it takes more than {_SECONDS:g} seconds")
        return json.loads(process.stdout.readline())  # of a process that has ended it is empty: no JSON

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
            self._process.wait()
            self._process = None


_BUILDER = _Builder()
atexit.register(_BUILDER.end)
if hasattr(os, "register_at_fork"):  # a child must not talk to its parent's
    os.register_at_fork(after_in_child=lambda: _BUILDER.__init__())  # type: ignore[misc]


def _new_process() -> "subprocess.Popen[bytes]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OF_A_LAUNCHER)}
    environment = kept | {
        "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    # -P, and the present folder last and not at all if Python only put it there as "": the modules of a checkpoint's
    # folder must never be taken for those of the same name
    here = os.getcwd()
    paths = [os.path.abspath(str(path)) for path in sys.path if path]
    paths = [path for path in paths if path != here] + [path for path in paths if path == here]
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _START, json.dumps(paths)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env=environment, start_new_session=True, cwd=os.path.dirname(sys.executable) or "/",
    )  # fmt: skip


def serve() -> None:
    """In the other process: a line with a question, a line with the answer."""
    import resource

    from trl_ext.checkpoints.architecture import CannotBuildError, architecture_of

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints
    _limit(resource.RLIMIT_AS, _MEMORY)
    _limit(resource.RLIMIT_CPU, _PROCESSOR)  # where nobody is left to end it
    import transformers  # noqa: F401 - takes seconds, during which weights are read

    selector = selectors.DefaultSelector()
    selector.register(sys.stdin.buffer, selectors.EVENT_READ)
    while selector.select(_IDLE):
        line = sys.stdin.buffer.readline()
        if not line:
            return
        config, stored = json.loads(line)
        answer: Any = None
        try:
            architecture = architecture_of(config)
            if architecture is not None:
                found = architecture.compared({name: tuple(shape) for name, shape in stored.items()})
                answer = vars(found) | {"tied": sorted(found.tied)}
        except CannotBuildError as error:
            answer = str(error)
        except Exception:  # of Transformers, on a configuration of any content
            answer = None
        print(json.dumps(answer), file=answers)


def _limit(what: int, most: int) -> None:
    """At most this, and at most what is allowed already."""
    import resource

    _, hard = resource.getrlimit(what)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most))
