"""What a pickle says, without running it.

A pickle is a program that may import and call anything. Here its instructions are taken apart by the standard library's
disassembler and followed for their data alone: what it would import is a name, what it would call is a record.
"""

import pickletools
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from trl_ext.checkpoints.errors import UnreadableError

MOST = 256 << 20  # bytes
_MOST_OBJECTS = 3_000_000  # of some 70 bytes and more
_WITHOUT_AN_OBJECT = {
    "PROTO",
    "FRAME",
    "MEMOIZE",
    "BINGET",
    "LONG_BINGET",
    "BINPUT",
    "LONG_BINPUT",
    "APPEND",
    "SETITEM",
}
_MARK = object()


@dataclass(frozen=True)
class Name:
    """What it would import."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass
class Record:
    """What it would make by a call.

    Attributes:
        made_by: a `Name`, or what the pickle has in its place.
        arguments: of the call.
        state: what its attributes would be set from; those of a module's `state_dict()` are its versions.
        items: what it would hold as a dict or a list.
    """

    made_by: Any
    arguments: tuple = ()
    state: Any = None
    items: Any = None


def read_pickle(content: bytes, what: str, names: list[Name] | None = None) -> Any:
    """The data of a pickle, with `Name` and `Record` where it has anything but lists, tuples, dicts, texts and numbers.

    Args:
        what: the file, for errors.
        names: gets all that the pickle would import, used or not.
    Raises:
        UnreadableError: no pickle, or one with instructions that files of torch do not have.
    """
    if len(content) > MOST:
        raise UnreadableError(f"{what} has more than {MOST >> 20} MiB", "format")
    return read_next_pickle(BytesIO(content), what, names)


def read_next_pickle(file: Any, what: str, names: list[Name] | None = None) -> Any:
    """The next one in a file, which is left behind its end. As `read_pickle`."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    left = _MOST_OBJECTS
    try:
        for opcode, argument, _ in pickletools.genops(file):
            if opcode.name == "STOP":
                return stack.pop()
            if opcode.name not in _WITHOUT_AN_OBJECT:
                left -= 1
                if left < 0:
                    raise UnreadableError(f"{what} makes more than {_MOST_OBJECTS:,} objects", "unsafe")
            _follow(opcode.name, argument, stack, memo)
            if names is not None and opcode.name in ("GLOBAL", "STACK_GLOBAL"):
                names.append(stack[-1])
    except UnreadableError:
        raise
    except Exception as error:  # whatever a damaged one brings about
        raise UnreadableError(f"{what} is damaged: {type(error).__name__} in its instructions", "format") from error
    raise UnreadableError(f"{what} is cut off", "truncated")


def _follow(name: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    if name in _LITERALS:
        stack.append(argument)
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name]())
    elif name in ("PROTO", "FRAME"):
        return
    elif name == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
        memo[int(argument)] = stack[-1]
    elif name in ("GET", "BINGET", "LONG_BINGET"):
        stack.append(memo[int(argument)])
    elif name in _ACTIONS:
        _ACTIONS[name](argument, stack)
    else:
        raise UnreadableError(f"a pickle has the instruction {name}, which is not followed", "format")


def _since_mark(stack: list[Any]) -> list[Any]:
    at = next(i for i in range(len(stack) - 1, -1, -1) if stack[i] is _MARK)
    taken = stack[at + 1 :]
    del stack[at:]
    return taken


def _tuple(count: int, stack: list[Any]) -> None:
    taken = tuple(stack[len(stack) - count :])
    del stack[len(stack) - count :]
    stack.append(taken)


def _dict(pairs: list[Any], stack: list[Any]) -> None:
    stack.append({})
    _set_items(pairs, stack)


def _set_items(pairs: list[Any], stack: list[Any]) -> None:
    target = stack[-1]
    if isinstance(target, Record):  # an OrderedDict
        target.items = {} if target.items is None else target.items
        target = target.items
    target.update(zip(map(_key, pairs[::2]), pairs[1::2], strict=True))


def _key(value: Any) -> Any:
    """What cannot be a key of a dict is kept by its place in memory: the pair is in the values."""
    try:
        hash(value)
    except TypeError:
        return _Key(value)
    return value


class _Key:
    """A record as a key."""

    def __init__(self, value: Any) -> None:
        self.value = value


def key_of(key: Any) -> Any:
    """What stands for the key of a dict."""
    return key.value if isinstance(key, _Key) else key


def _append(values: list[Any], stack: list[Any]) -> None:
    target = stack[-1]
    if isinstance(target, Record):  # a list of a class of its own
        target.items = [] if target.items is None else target.items
        target = target.items
    target.extend(values)


def _add_items(values: list[Any], stack: list[Any]) -> None:
    stack[-1].update(map(_key, values))


def _call(stack: list[Any]) -> None:
    arguments, made_by = stack.pop(), stack.pop()
    stack.append(Record(made_by, arguments))


def _build(stack: list[Any]) -> None:
    state = stack.pop()
    stack[-1].state = state


def _global(argument: Any, stack: list[Any]) -> None:
    stack.append(Name(*argument.split(" ", 1)))


def _stack_global(stack: list[Any]) -> None:
    name, module = stack.pop(), stack.pop()
    if not (isinstance(name, str) and isinstance(module, str)):
        raise UnreadableError("a pickle imports what is no name", "unsafe")
    stack.append(Name(module, name))


_LITERALS = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8",
}  # fmt: skip
_CONSTANTS: dict[str, Any] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict, "EMPTY_SET": set, "MARK": lambda: _MARK,
}  # fmt: skip
_ACTIONS: dict[str, Any] = {
    "POP": lambda _, stack: stack.pop(),
    "POP_MARK": lambda _, stack: _since_mark(stack),
    "DUP": lambda _, stack: stack.append(stack[-1]),
    "TUPLE": lambda _, stack: stack.append(tuple(_since_mark(stack))),
    "TUPLE1": lambda _, stack: _tuple(1, stack),
    "TUPLE2": lambda _, stack: _tuple(2, stack),
    "TUPLE3": lambda _, stack: _tuple(3, stack),
    "LIST": lambda _, stack: stack.append(_since_mark(stack)),
    "DICT": lambda _, stack: _dict(_since_mark(stack), stack),
    "APPEND": lambda _, stack: _append([stack.pop()], stack),
    "APPENDS": lambda _, stack: _append(_since_mark(stack), stack),
    "ADDITEMS": lambda _, stack: _add_items(_since_mark(stack), stack),
    "FROZENSET": lambda _, stack: stack.append(_since_mark(stack)),
    "SETITEM": lambda _, stack: _set_items([stack.pop(-2), stack.pop()], stack),
    "SETITEMS": lambda _, stack: _set_items(_since_mark(stack), stack),
    "GLOBAL": _global,
    "STACK_GLOBAL": lambda _, stack: _stack_global(stack),
    "REDUCE": lambda _, stack: _call(stack),
    "NEWOBJ": lambda _, stack: _call(stack),
    "BUILD": lambda _, stack: _build(stack),
    "BINPERSID": lambda _, stack: stack.append(Record(Name("torch", "persistent"), (stack.pop(),))),
}
