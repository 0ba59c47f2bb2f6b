"""Put the page where it is wanted, and harm nothing that stands there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from splitbit_kit.api import UsageError
from splitbit_kit.formats import durable
from splitbit_kit.report.chart import COLOURS
from splitbit_kit.report.page import GENERATOR, page
from splitbit_kit.report.record import Record, read
from splitbit_kit.training.run_folder import RunFolder

HEAD = 1024  # bytes of a file in which a page of ours says what made it


class Written(NamedTuple):
    """A page on the disk and what it is about."""

    path: Path
    size_bytes: int
    records: tuple[Record, ...]


def write(
    folders: Sequence[Path], output: Path | None = None, *, overwrite: bool = False
) -> Written:
    """Return what was written: a page about the runs in these folders.

    output: RUN/report.html if None, for a single run. Raises UsageError for a file that stands
    there and is no report, unless `overwrite`; SplitbitError if a folder holds no run.
    """
    if output is None:
        if len(folders) > 1:
            raise UsageError("--output: with several runs a file is expected, such as -o runs.html")
        output = RunFolder(folders[0]).report
    if len(folders) > COLOURS:
        raise UsageError(f"RUN: {len(folders)} runs are too many for one page; at most {COLOURS}")
    twice = [f for n, f in enumerate(folders) if f.resolve() in [g.resolve() for g in folders[:n]]]
    if twice:
        raise UsageError(f"{twice[0]}: is given twice; each run can be on the page once")
    records = tuple(read(folder) for folder in folders)
    _check_target(output, overwrite)
    made = page(records)
    durable.make_folder(output.parent)
    written = durable.replace_file(output, [made])
    return Written(output, written.size, records)


def _check_target(path: Path, overwrite: bool) -> None:
    with durable.explained(path, "write it"):
        if not path.exists():
            return
        if not path.is_file():
            raise UsageError(f"{path}: is not a file; a name such as bard.html is expected")
        if overwrite:
            return
        with path.open("rb") as file:
            if GENERATOR.encode() in file.read(HEAD):
                return
    raise UsageError(
        f"{path}: is not a report; choose another --output, or replace it with --overwrite"
    )
