"""The verb `probe`, and what a tier does to `train`, on the command line."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from commandline import TINY, Run

from splitbit_kit.api import TIERS, Hardware
from splitbit_kit.cli.probe import JSON_KEYS
from splitbit_kit.registry import Registry

KEYS_FOR_EVER = {"threads", "cores", "memory_bytes", "tier", "sources"}
ANY_TIER = TINY[: TINY.index("--tier")]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Hardware:
    """Let every registry find a machine of tier full."""
    found = Hardware(16, 8, 17_200_000_000, "full", {"cores": "a test"}, ("avx2",), "", None)
    monkeypatch.setattr(Registry, "probe", lambda self: found)
    return found


def test_people_see_each_number_with_its_source_and_what_the_tier_picks(
    run: Run, machine: Hardware
) -> None:
    done = run("probe")
    assert (done.code, done.err) == (0, "")
    rows = {line.split()[0]: line for line in done.out.splitlines() if line.strip()}
    assert rows["cores"].split(maxsplit=2)[1:] == ["8", "a test"]
    assert rows["memory"].split()[1:3] == ["17.2", "GB"]
    assert rows["BLAS"].split() == ["BLAS", "?", "not", "said"]
    assert rows["free"].split()[2] == "?"
    assert rows["preset"].split()[1] == "llama-7m"
    assert rows["format"].split()[1] == "q8_0"
    assert "on tier full" in done.out


def test_json_has_all_keys(run: Run) -> None:
    done = run("probe", "--json")
    assert JSON_KEYS.keys() >= KEYS_FOR_EVER
    assert list(done.last) == list(JSON_KEYS)
    assert len(done.out.splitlines()) == 1
    assert "train takes on tier" in done.err
    assert done.last["tier"] in TIERS
    assert min(done.last[key] for key in ("threads", "cores", "memory_bytes")) >= 1
    assert done.last["sources"].keys() >= {"threads", "cores", "memory_bytes", "tier"}
    for key in done.last["picks"]:
        assert key in JSON_KEYS["picks"]


def test_without_our_probe_there_is_an_answer_too(run: Run) -> None:
    done = run("probe", "--json", "-p", "no:hardware")
    assert done.last["tier"] == "mobile"
    assert done.last["sources"]["tier"].startswith("no probe answered")


# ---- train


def settings(folder: str = "r") -> dict[str, dict[str, object]]:
    return tomllib.loads(Path(folder, "config.toml").read_text("utf-8"))


def test_a_run_says_which_tier_chose_what_and_why_and_keeps_it(run: Run, machine: Hardware) -> None:
    done = run("train", "text.txt", *ANY_TIER, "--out", "r")
    assert done.code == 0, done.err
    assert (
        "  tier full (8 cores, 17.2 GB): preset llama-7m, llama 1 layer x 32, batch 4 x 32, "
        "4 steps, lr 0.003\n"
    ) in done.out
    assert (settings()["tier"], settings()["preset"]) == ("full", "llama-7m")


def test_a_tier_that_was_asked_for_wins_over_the_machines(run: Run, machine: Hardware) -> None:
    done = run("train", "text.txt", *ANY_TIER, "--tier", "mobile", "--out", "r", "--json")
    assert (
        "  tier mobile, as asked (this machine: full, 8 cores, 17.2 GB): preset llama-1m, "
    ) in done.err
    assert done.last["tier"] == "mobile"
    assert (settings()["tier"], settings()["preset"]) == ("mobile", "llama-1m")


def test_a_preset_wins_over_the_tier_and_batch_size_0_is_the_tiers(
    run: Run, machine: Hardware
) -> None:
    argv = [*ANY_TIER, "--preset", "nanogpt-laptop"]
    done = run("train", "text.txt", *argv, "--batch-size", "0", "--out", "r")
    assert done.code == 0, done.err
    assert "  preset nanogpt-laptop, as asked (tier full; 8 cores, 17.2 GB): gpt2 " in done.out
    assert settings()["train"]["batch_size"] == 8
    assert settings()["optimizer"]["lr"] == 4e-3  # the preset's


def test_a_resumed_run_keeps_its_tier(
    run: Run, machine: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["text.txt", *ANY_TIER, "--batch-size", "0"]
    argv[argv.index("--steps") + 1] = "2"
    assert run("train", *argv, "--out", "r").code == 0
    before = settings()
    smaller = Hardware(1, 1, 2**34, "mobile")  # this process may well hold more than 1 GB
    monkeypatch.setattr(Registry, "probe", lambda self: smaller)
    assert run("train", "--resume", "r").code == 0
    assert run("train", *argv, "--tier", "full", "--resume", "r").code == 0
    assert settings() == before
    refused = run("train", "--tier", "mobile", "--resume", "r")
    assert refused.code == 2
    assert "tier: a resumed run keeps what it was begun with" in refused.error


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--tier", "lite"], "tier 'lite' is not known; did you mean light?"),
        (["--tier", "42"], "tier '42' is not known; there are mobile, minimal, light, "),
        (["--config", "tier.toml"], "tier: 5 is not a name"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_tier_that_is_none_is_one_line_and_leaves_nothing(
    run: Run, place: Path, argv: list[str], said: str
) -> None:
    (place / "tier.toml").write_text("tier = 5\n", "utf-8")
    failed = run("train", "text.txt", *ANY_TIER, *argv, "--out", "r")
    assert (failed.code, failed.out) == (2, "")
    assert said in failed.error
    assert not (place / "r").exists()
