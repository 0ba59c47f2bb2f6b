"""`train --dry-run`: what a training would take, and nothing begun."""

from __future__ import annotations

from pathlib import Path

import pytest
from commandline import TINY, Run

from splitbit_kit.cli.train import PLAN_KEYS
from splitbit_kit.training import plan as planning

KEYS_FOR_EVER = {
    *("preset", "parameters", "backend", "precision", "threads", "steps", "tokens_per_step"),
    *("memory", "memory_total", "memory_peak", "memory_available", "compiled"),
    *("tokens_per_second", "rate", "time", "time_total"),
    *("disk", "disk_total", "disk_available", "fits"),
}
"""Keys that a release had. Add to them; never take one away."""


def test_a_plan_is_told_and_nothing_is_begun(run: Run, place: Path) -> None:
    done = run("train", "text.txt", *TINY, "--out", "r", "--dry-run")
    assert (done.code, done.err) == (0, "")
    lines = [line[10:] for line in done.out.splitlines()]  # without the time
    for head in ("model ", "compute ", "memory ", "disk ", "speed ", "time ", "nothing was begun"):
        assert sum(line.startswith(head) for line in lines) == 1, head
    for part in ("interpreter", "activations", "moments", "gradients", "checkpoints", "temporary"):
        assert f"{part} " in done.out
    assert "backend numpy, fp32, 1 thread\n" in done.out
    assert sorted(path.name for path in place.iterdir()) == ["cache", "text.txt"]
    assert "timed just now" in done.out
    assert "timed before" in run("train", "text.txt", *TINY, "--dry-run").out


def test_json_has_the_documented_keys(run: Run) -> None:
    done = run("train", "text.txt", *TINY, "--dry-run", "--json")
    assert done.code == 0
    assert len(done.out.splitlines()) == 1
    assert list(done.last) == list(PLAN_KEYS)
    assert PLAN_KEYS.keys() >= KEYS_FOR_EVER
    assert done.last["fits"] is True
    assert done.last["tokens_per_step"] == 128
    assert done.last["memory_total"] == sum(done.last["memory"].values())
    disk = dict(done.last["disk"])
    disk.pop("tokens")
    assert done.last["disk_total"] == sum(disk.values())


def test_what_a_training_would_refuse_fails_with_the_same_line(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "_free_disk", lambda folder: 1000)
    planned = run("train", "text.txt", *TINY, "--out", "r", "--dry-run", "--json")
    assert planned.code == 1
    assert planned.last["fits"] is False
    refused = run("train", "text.txt", *TINY, "--out", "r")
    assert refused.code == 1
    assert planned.error == refused.error
    assert "r: the run needs " in refused.error
    assert "--set train.check_resources=false" in refused.error
    assert not (place / "r").exists()
    anyway = ("--set", "train.check_resources=false")
    planned = run("train", "text.txt", *TINY, *anyway, "--out", "r", "--dry-run", "--json")
    assert (planned.code, planned.last["fits"]) == (0, True)
    assert run("train", "text.txt", *TINY, *anyway, "--out", "r").code == 0


def test_the_last_line_says_what_train_would_do(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def last(*more: str) -> str:
        done = run("train", "text.txt", *TINY, *more, "--dry-run")
        return done.out.splitlines()[-1][10:]

    assert last() == "nothing was begun; without --dry-run it is"
    anyway = ("--set", "train.check_resources=false")
    assert last(*anyway) == "nothing was begun; without --dry-run it is"
    monkeypatch.setattr(planning, "_free_disk", lambda folder: 1000)
    assert last() == "nothing was begun; without --dry-run it is refused"
    monkeypatch.setattr(planning, "memory_available", lambda registry: 1000)
    assert last(*anyway) == (
        "nothing was begun; without --dry-run it is, short of memory and disk as it is: "
        "train.check_resources is false"
    )


@pytest.mark.parametrize("out", ["text.txt", "text.txt/run", "dangling"])
@pytest.mark.parametrize("more", [(), ("--overwrite",)])
def test_where_no_folder_can_be_made_both_say_so(
    run: Run, place: Path, out: str, more: tuple[str, ...]
) -> None:
    (place / "dangling").symlink_to(place / "nowhere")
    before = (place / "text.txt").read_bytes()
    planned = run("train", "text.txt", *TINY, "--out", out, *more, "--dry-run")
    refused = run("train", "text.txt", *TINY, "--out", out, *more)
    assert planned.code == refused.code == 2
    assert planned.error == refused.error
    assert f"{Path(out).parts[0]}: is in the way, being no folder; choose another" in refused.error
    assert (place / "text.txt").read_bytes() == before
    assert not (place / "cache").exists(), "not even a token file"


def test_a_file_called_runs_is_in_the_way_too(run: Run, place: Path) -> None:
    (place / "runs").write_text("not a folder", "utf-8")
    assert run("train", "text.txt", *TINY, "--dry-run").code == 2
    assert run("train", "text.txt", *TINY, "--out", "r", "--dry-run").code == 0


def test_a_run_is_not_planned_over_another_nor_resumed(run: Run, trained: Path) -> None:
    over = run("train", "text.txt", *TINY, "--out", trained, "--dry-run")
    assert over.code == 2
    assert "holds a run" in over.error
    resumed = run("train", "--resume", trained, "--dry-run")
    assert resumed.code == 2
    assert "--dry-run" in resumed.error
