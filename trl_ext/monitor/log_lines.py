"""The lines of a log as records: broken ones are counted, never fatal."""

import csv
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from trl_ext.errors import UserError

_Item = TypeVar("_Item")
_MISSING = {"", "none", "null", "na", "n/a"}


def parsed(
    items: Iterable[_Item], parse: Callable[[_Item], dict[str, Any] | None], notes: list[str]
) -> Iterator[dict[str, Any]]:
    """What `parse` makes of each item that is no blank line. Those it gives `None` for are skipped: the last one is
    what a killed run left, others are counted; `notes` says so."""
    broken, last_broken = 0, False
    for item in items:
        if isinstance(item, str) and item.isspace():
            continue
        record = parse(item)
        last_broken = record is None
        if record is None:
            broken += 1
        else:
            yield record
    if last_broken:
        notes.append("skipped the last line: it is cut off")
    if broken > last_broken:
        notes.append(f"skipped {broken - last_broken} broken line{'s' * (broken - last_broken > 1)}")


def csv_records(lines: Iterator[str], path: str | os.PathLike[str], notes: list[str]) -> Iterator[dict[str, Any]]:
    """A record a line, without its empty cells, as pandas and W&B export them; separated by comma, semicolon or tab.

    Raises:
        UserError: no header, or one of several runs.
    """
    header = next((line for line in lines if line.strip()), "")
    if not header:
        raise UserError(f"{path} holds blank lines alone")
    delimiter = max(",;\t", key=header.count)
    cells = _cells(header, delimiter)
    if len(cells) < 2 and not str(path).endswith(".csv"):
        raise UserError(f"{path} is neither JSON nor CSV")
    if all(isinstance(_value(cell), float) for cell in cells):
        raise UserError(f"{path} has no header: the first line of a CSV file names its columns")
    names = _column_names(cells, path)

    def record(line: str) -> dict[str, Any] | None:
        cells = _cells(line, delimiter)
        if len(cells) != len(names):
            return None
        pairs = zip(names, cells, strict=True)
        return {name: value for name, cell in pairs if name and (value := _value(cell)) is not None}

    return parsed(lines, record, notes)


def _cells(line: str, delimiter: str) -> list[str]:
    # line by line, so that a quote that is never closed breaks one line and not the rest of the file
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def _value(cell: str) -> float | str | None:
    try:
        return float(cell)
    except ValueError:
        return None if cell.strip().lower() in _MISSING else cell


def _column_names(cells: list[str], path: str | os.PathLike[str]) -> list[str]:
    """W&B exports a chart as `my-run - train/loss`, and the same with `__MIN` and `__MAX`: the metric alone."""
    cells = [cell.strip() for cell in cells]
    charts = [cell.rpartition(" - ")[2] for cell in cells if " - " in cell]
    if not any(cell.endswith("__MIN") for cell in cells) and len(set(charts)) == len(charts):
        return cells
    runs = {cell.rpartition(" - ")[0] for cell in cells if " - " in cell}
    if len(runs) > 1:
        raise UserError(f"{path} holds {len(runs)} runs ({', '.join(sorted(runs))}): export one at a time")
    return ["" if cell.endswith(("__MIN", "__MAX")) else cell.rpartition(" - ")[2] for cell in cells]
