"""What is said to the user on stderr."""

import ast
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SAY = "from trl_ext.errors import say; say('error: one line')"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_line_is_one_write_so_that_no_other_process_can_write_between_it_and_its_end(unbuffered):
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)  # one message for each write
    with reader, writer:
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        subprocess.run([sys.executable, "-c", SAY], stderr=writer, cwd=ROOT, env=environment, timeout=120)
        reader.setblocking(False)
        assert reader.recv(1000) == b"error: one line\n"


def test_lines_on_stderr_are_said_not_printed():
    printed = []
    for path in (path for folder in ("trl_ext", "recipes") for path in (ROOT / folder).rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            named = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print"
            if named and call.args and any(ast.unparse(keyword.value) == "sys.stderr" for keyword in call.keywords):
                printed.append(f"{path}:{call.lineno}")
    assert printed == []
