"""Where command lines run, and what they run on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from commandline import TEXT, TINY, Outcome, Run, clean_environment

from splitbit_kit.__main__ import main


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder with a small text, a cache of its own and a fixed width."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ.keys() - clean_environment().keys():
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("SPLITBIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SPLITBIT_PLUGINS", raising=False)
    (tmp_path / "text.txt").write_text(TEXT, "utf-8")
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command line in this process."""

    def run(*argv: str | Path) -> Outcome:
        capsys.readouterr()
        code = main([str(argument) for argument in argv])
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small finished run. Tests only read it."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "text.txt").write_text(TEXT, "utf-8")
    before = os.environ.get("SPLITBIT_CACHE")
    os.environ["SPLITBIT_CACHE"] = str(folder / "cache")
    try:
        assert main(["train", str(folder / "text.txt"), *TINY, "--out", str(folder / "run")]) == 0
    finally:
        os.environ.pop("SPLITBIT_CACHE")
        if before is not None:
            os.environ["SPLITBIT_CACHE"] = before
    return folder / "run"
