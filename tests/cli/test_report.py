"""The verb `report`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commandline import TINY, Run, process

from splitbit_kit.cli.report import JSON_KEYS

KEYS_FOR_EVER = {"report", "size_bytes", "runs", "states"}
"""Keys that a release had. Add to them; never take one away."""


@pytest.fixture
def bard(trained: Path, place: Path) -> Path:
    """Return a run folder of one's own, by a relative path."""
    shutil.copytree(trained, place / "runs" / "bard")
    return Path("runs/bard")


def test_no_key_was_dropped() -> None:
    assert JSON_KEYS.keys() >= KEYS_FOR_EVER


def test_a_page_is_written_where_it_was_asked_for(run: Run, bard: Path) -> None:
    done = run("report", bard, "-o", "new/folder/bard.html")
    assert (done.code, done.err) == (0, "")
    path = Path("new/folder/bard.html")
    assert done.out.startswith(f"report: {path} (")
    page = path.read_text("utf-8")
    for part in ("bard", "finished", "After step 4", "Loss, nats per token", "memory"):
        assert part in page
    assert [p.name for p in path.parent.iterdir()] == ["bard.html"]


def test_without_output_it_stays_with_the_run(run: Run, bard: Path) -> None:
    done = run("report", bard, "--json")
    assert done.last == {
        "report": str(bard / "report.html"),
        "size_bytes": (bard / "report.html").stat().st_size,
        "runs": [str(bard)],
        "states": ["finished"],
    }
    assert list(done.last) == list(JSON_KEYS)
    assert done.err.startswith("report: ")
    # a run that is replaced takes the page about the old one with it
    assert run("train", "text.txt", *TINY, "--out", bard, "--overwrite").code == 0
    assert not (bard / "report.html").exists()


def test_a_report_is_renewed_and_another_file_is_not_touched(run: Run, bard: Path) -> None:
    for _ in range(2):
        assert run("report", bard, "-o", "bard.html").code == 0
    Path("mine.html").write_text("<p>mine</p>", "utf-8")
    failed = run("report", bard, "-o", "mine.html")
    assert failed.code == 2
    assert failed.error == (
        "error: mine.html: is not a report; choose another --output, or replace it with --overwrite"
    )
    assert Path("mine.html").read_text("utf-8") == "<p>mine</p>"
    assert run("report", bard, "-o", "mine.html", "--overwrite").code == 0
    assert "bard" in Path("mine.html").read_text("utf-8")


def test_several_runs_on_one_page(run: Run, bard: Path, trained: Path) -> None:
    done = run("report", bard, trained, "-o", "both.html", "--json")
    assert done.last["runs"] == [str(bard), str(trained)]
    assert "2 runs" in Path("both.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        ([], 2, "RUN"),
        (["none"], 1, "none: holds no run"),
        (["text.txt"], 1, "text.txt: holds no run"),
        (["RUN", "-o", "runs"], 2, "runs: is not a file"),
        (["RUN", "-o", "runs", "--overwrite"], 2, "runs: is not a file"),
        (["RUN", "-o", "text.txt/page.html"], 1, "text.txt"),
        (["RUN", "none", "-o", "both.html"], 1, "none: holds no run"),
        (["RUN", "RUN/../bard", "-o", "both.html"], 2, "is given twice"),
        (["RUN", "none"], 2, "with several runs a file is expected"),
        ([*(f"run{n}" for n in range(7)), "-o", "x.html"], 2, "7 runs are too many"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_leaves_nothing(
    run: Run, bard: Path, argv: list[str], code: int, said: str
) -> None:
    before = sorted(Path().rglob("*"))
    failed = run("report", *[a.replace("RUN", str(bard)) for a in argv])
    assert (failed.code, failed.out) == (code, ""), failed
    assert said in failed.error
    assert sorted(Path().rglob("*")) == before


@pytest.mark.skipif(os.name == "nt", reason="devices by POSIX names")
def test_a_device_is_never_replaced(run: Run, bard: Path, place: Path) -> None:
    os.mkfifo(place / "pipe")
    for target in ("pipe", "/dev/null"):
        assert "is not a file" in run("report", bard, "-o", target, "--overwrite").error
    assert (place / "pipe").is_fifo()


def test_a_broken_configuration_names_the_file(run: Run, bard: Path) -> None:
    (bard / "config.toml").write_text("preset = ", "utf-8")
    failed = run("report", bard)
    assert failed.code == 1
    assert str(bard / "config.toml") in failed.error


def test_a_run_that_goes_on_is_shown_so_far(run: Run, bard: Path) -> None:
    metrics = bard / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b"".join(lines[:-2]) + lines[-2][:9])
    assert run("report", bard, "--json").last["states"] == ["unfinished"]


def test_paths_that_are_no_words(run: Run, trained: Path, place: Path) -> None:
    folder = place / "run <b>&amp; \N{SNOWMAN}"
    shutil.copytree(trained, folder)
    assert run("report", folder).code == 0
    page = (folder / "report.html").read_text("utf-8")
    assert "run &lt;b&gt;&amp;amp; \N{SNOWMAN}" in page


def test_the_report_loads_no_backend_and_no_tracker(bard: Path) -> None:
    code = (
        "import sys; from splitbit_kit.__main__ import main; "
        f"main(['report', {str(bard)!r}]); "
        "sys.exit(bool({'numba', 'splitbit_numpy_backend', 'tensorboardX'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_in_a_process_of_its_own(bard: Path) -> None:
    assert process("report", bard, "-o", "x.html").returncode == 0
