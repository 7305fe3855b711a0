"""What trackers wrote, read without our own readers: W&B's offline file by its format and W&B's own messages (it
brings no reader), TensorBoard's by its EventAccumulator, trackio's database by SQL."""

import json
import sqlite3
import struct
import time
from pathlib import Path

BLOCK = 32768


def wandb_run(folder: Path) -> dict:
    """Of the one finished run under `folder`: `alerts` (title, text, level), `history` (rows), `summary`, `tables`
    (name -> their files' content, in order)."""
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.finish()
    (path,) = folder.rglob("*.wandb")
    end = time.monotonic() + 30
    while "exit" not in (kinds := [kind for kind, _ in _records(path, wandb_internal_pb2.Record)]):
        assert time.monotonic() < end, kinds  # another process writes it
        time.sleep(0.1)
    run = {"alerts": [], "history": [], "summary": {}, "tables": {}}
    for kind, record in _records(path, wandb_internal_pb2.Record):
        if kind == "alert":
            run["alerts"].append((record.alert.title, record.alert.text, record.alert.level))
        elif kind == "history":
            run["history"].append(_items(record.history.item))
        elif kind == "summary":
            run["summary"].update(_items(record.summary.update))
    for row in run["history"]:
        for name in [key.removesuffix("._type") for key, value in row.items() if value == "table-file"]:
            row[name] = json.loads((path.parent / "files" / row[f"{name}.path"]).read_text())
            run["tables"].setdefault(name, []).append(row[name])
    return run


def _items(items) -> dict:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def _records(path: Path, message):
    """LevelDB's log: blocks of 32 KiB, a record whole (1) or as first (2), middle (3) and last (4) part."""
    data, record = path.read_bytes(), b""
    for start in range(0, len(data), BLOCK):
        at, stop = (7 if start == 0 else start), min(start + BLOCK, len(data))
        while stop - at >= 7:
            length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
            if kind == 0 or at + 7 + length > stop:
                break
            record += data[at + 7 : at + 7 + length]
            at += 7 + length
            if kind in (1, 4):
                parsed, record = message.FromString(record), b""
                yield parsed.WhichOneof("record_type"), parsed


def tensorboard_run(folder: Path) -> dict:
    """Of the one event file under `folder`: `texts` and `scalars`, tag -> list of (step, value)."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (path,) = folder.rglob("events.out.tfevents*")
    events = EventAccumulator(str(path), size_guidance={"tensors": 0})
    events.Reload()
    tags = events.Tags()
    return {
        "texts": {
            tag.removesuffix("/text_summary"): [
                (event.step, event.tensor_proto.string_val[0].decode()) for event in events.Tensors(tag)
            ]
            for tag in tags["tensors"]
        },
        "scalars": {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags["scalars"]},
    }


def trackio_run(folder: Path) -> dict:
    """Of the one project in `folder`: `alerts` (title, text, level), `history` (rows)."""
    (path,) = folder.glob("*.db")
    database = sqlite3.connect(path)
    try:
        alerts = database.execute("select title, text, level from alerts order by id").fetchall()
        rows = [json.loads(row) for (row,) in database.execute("select metrics from metrics order by id")]
    finally:
        database.close()
    return {"alerts": alerts, "history": rows}
