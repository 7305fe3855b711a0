"""TensorBoard's event files and W&B's offline files, written by those packages themselves, read back."""

import math
import struct
import sys

import pytest

from trl_ext.errors import UserError
from trl_ext.monitor import Engine
from trl_ext.monitor.replay import replay
from trl_ext.reporting.event_files import read_event_files
from trl_ext.reporting.wandb_files import read_wandb_file

LOGS = [
    (1, {"loss": 0.5, "rewards/f/mean": 1.0}),
    (2, {"loss": math.nan, "rewards/f/mean": -math.inf}),
    (2, {"eval_loss": 0.25, "eval_kl": 2.0}),
    (3, {"loss": 0.125, "rewards/f/mean": 1.5}),
]


def tracked(logs):
    """As Transformers hands a log to a tracker."""
    return {key.replace("eval_", "eval/") if key.startswith("eval_") else f"train/{key}": x for key, x in logs.items()}


def write_events(path, logs, tensors=False, text=True):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.summary.writer.record_writer import RecordWriter

    with open(path, "wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=1.0, file_version="brain.Event:2").SerializeToString())
        if text:  # the arguments, which Transformers writes first
            value = Summary.Value(tag="args", tensor=TensorProto(dtype=7, string_val=[b"{}"]))
            writer.write(Event(step=0, summary=Summary(value=[value])).SerializeToString())
        for step, log in logs:
            for tag, number in tracked(log).items():  # an event a scalar, as torch writes them
                tensor = {"tensor": TensorProto(dtype=1, float_val=[number])}
                value = Summary.Value(tag=tag, **(tensor if tensors else {"simple_value": number}))
                writer.write(Event(step=step, summary=Summary(value=[value])).SerializeToString())
    return path


def metrics(rows):
    """Step and metrics of each row by canonical name, non-finite ones as text."""
    engine, found = Engine(rules=[]), []
    for step, logs, *_ in rows:
        engine.observe(step, logs)
        found.append((step, {**engine.row.metrics, **{key: str(x) for key, x in engine.row.nonfinite.items()}}))
    return found


def plain(logs):
    return metrics((step, log, False) for step, log in logs)


@pytest.mark.parametrize("tensors", [False, True])
def test_the_scalars_of_one_log_are_one_row(tmp_path, tensors):
    path = write_events(tmp_path / "events.out.tfevents.1.host", LOGS, tensors)
    log = read_event_files([path])
    assert metrics(log.rows) == plain(LOGS)
    assert log.notes == []


def test_each_log_is_a_row_whatever_keys_it_shares_with_others(tmp_path):
    logs = [(5, {"loss": 1.0, "kl": 0.5}), (5, {"loss": 2.0}), (5, {"eval_loss": 3.0}), (6, {"eval_kl": 3.0})]
    assert metrics(read_event_files([write_events(tmp_path / "events", logs)]).rows) == plain(logs)


def test_a_further_file_is_a_resume_that_replaces_what_it_logs_again(tmp_path):
    first = write_events(tmp_path / "1", [(step, {"loss": 1.0}) for step in range(1, 7)])
    hparams = write_events(tmp_path / "2", [])
    second = write_events(tmp_path / "3", [(step, {"loss": 2.0}) for step in range(5, 9)])
    log = read_event_files([first, hparams, second])
    rows = [(row.step, row.logs["train/loss"], row.resumed) for row in log.rows]
    assert rows == [(s, 1.0, False) for s in range(1, 5)] + [(5, 2.0, True)] + [(s, 2.0, False) for s in range(6, 9)]
    assert log.notes == ["left out 2 rows: a later run in this file began again before them"]


@pytest.mark.parametrize("missing", [1, 10, 25])
def test_a_cut_event_file_loses_its_last_record_alone(tmp_path, missing):
    whole = write_events(tmp_path / "whole", LOGS).read_bytes()
    path = tmp_path / "cut"
    path.write_bytes(whole[:-missing])
    log = read_event_files([path])
    assert metrics(log.rows) == plain([*LOGS[:-1], (3, {"loss": 0.125})])
    assert log.notes == ["skipped the last record: it is cut off"]


def test_a_broken_record_is_counted(tmp_path):
    path = write_events(tmp_path / "events", LOGS[:1])
    data = path.read_bytes()
    garbage = b"\xff" * 9
    path.write_bytes(data + struct.pack("<QI", len(garbage), 0) + garbage + bytes(4))
    log = read_event_files([path])
    assert metrics(log.rows) == plain(LOGS[:1])
    assert log.notes == ["skipped 1 broken record"]


def test_a_file_without_scalars_or_of_something_else_holds_no_log(tmp_path):
    (tmp_path / "noise").write_bytes(b"\x93" * 100)
    for path in (write_events(tmp_path / "empty", []), tmp_path / "noise"):
        with pytest.raises(UserError, match="holds no log of a run"):
            replay(read_event_files([path]), Engine(), path)


@pytest.fixture(scope="module")
def wandb_file(tmp_path_factory):
    """A real offline run, long enough for records that straddle the blocks of the file."""
    wandb = pytest.importorskip("wandb")
    folder = tmp_path_factory.mktemp("wandb")
    run = wandb.init(project="test", mode="offline", dir=folder, settings=wandb.Settings(silent=True))
    for step, log in [*LOGS, *((step, {"loss": step / 8, "nll_loss": 1.0}) for step in range(4, 400))]:
        run.log({**tracked(log), "train/global_step": step, "nested": {"a": 1}, "text": "x" * 100})
    run.finish()
    (path,) = folder.rglob("*.wandb")
    assert path.stat().st_size > 3 << 15
    return path


def test_the_history_of_a_wandb_run_is_read(wandb_file):
    log = read_wandb_file(wandb_file)
    rows = metrics(log.rows)
    assert log.notes == []
    assert [step for step, _ in rows] == [1, 2, 2, *range(3, 400)]
    wanted = plain([*LOGS, *((step, {"loss": step / 8, "nll_loss": 1.0}) for step in range(4, 400))])
    assert [{k: v for k, v in row.items() if k != "nested.a"} for _, row in rows] == [row for _, row in wanted]


# The third block starts with the seven bytes of a part's header, always; a record may end where the second block does.
@pytest.mark.parametrize("more", [1, 6, 7, 8])
def test_a_cut_wandb_file_loses_its_end_alone(wandb_file, tmp_path, more):
    path = tmp_path / "cut.wandb"
    path.write_bytes(wandb_file.read_bytes()[: (2 << 15) + more])
    log = read_wandb_file(path)
    rows = metrics(log.rows)
    assert 10 < len(rows) < 400
    assert rows == metrics(read_wandb_file(wandb_file).rows)[: len(rows)]
    assert log.notes == ["skipped the last record: it is cut off"]


def wandb_record(value_json):
    from wandb.proto import wandb_internal_pb2

    item = wandb_internal_pb2.HistoryItem(key="x", value_json=value_json)
    return wandb_internal_pb2.Record(history=wandb_internal_pb2.HistoryRecord(item=[item])).SerializeToString()


def part(kind, data):
    return struct.pack("<IHB", 0, len(data), kind) + data


@pytest.mark.parametrize("left", [0, 6, 7])  # bytes in the block after the first record
def test_a_block_without_room_for_a_header_ends_empty(tmp_path, left):
    room, size = (1 << 15) - 7 - 7 - left, 1 << 15
    while len(first := wandb_record(f'"{"a" * size}"')) > room:
        size -= 1
    assert len(first) == room
    second = wandb_record("2")
    rest = part(2, b"") + part(4, second) if left == 7 else bytes(left) + part(1, second)
    path = tmp_path / "log.wandb"
    path.write_bytes(b":W&B\xe1\xbe\x00" + part(1, first) + rest)
    assert [row.logs["x"] for row in read_wandb_file(path).rows] == ["a" * size, 2]


def test_another_file_under_that_name_is_refused(tmp_path):
    path = tmp_path / "other.wandb"
    path.write_bytes(b"something else")
    with pytest.raises(UserError, match=r"other\.wandb is no W&B file"):
        list(read_wandb_file(path).rows)


@pytest.mark.parametrize(
    ("read", "module", "package"),
    [
        (lambda path: read_event_files([path]), "tensorboard.compat.proto.event_pb2", "tensorboard"),
        (read_wandb_file, "wandb.proto", "wandb"),
    ],
)
def test_a_missing_package_is_named_with_the_command(tmp_path, monkeypatch, read, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=f"pip install {package} to read it$"):
        read(tmp_path / "log")


@pytest.mark.parametrize("read", [lambda path: read_event_files([path]), read_wandb_file])
def test_a_file_that_is_not_there_is_named(tmp_path, read):
    with pytest.raises(UserError, match=r"cannot read .*none: No such file"):
        list(read(tmp_path / "none").rows)
