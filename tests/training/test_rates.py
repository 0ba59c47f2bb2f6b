"""Speeds are timed once, kept safely, and never timed by a training."""

import json
import os

import pytest
from test_plan import changed

from splitbit_kit.text.tokens import cache_folder
from splitbit_kit.training import rates
from splitbit_kit.training.rates import Seconds
from splitbit_kit.training.run import Surroundings, dry_run, train

QUICK = Seconds(micro_batch=0.5, update=0.25, evaluated_token=1e-3, written_token=2e-3)


@pytest.fixture(autouse=True)
def no_rates(tmp_path, monkeypatch):
    monkeypatch.setenv("SPLITBIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def timed(monkeypatch):
    """The timings made, each of them QUICK."""
    made = []
    monkeypatch.setattr(rates, "_timed", lambda *args: made.append(args) or QUICK)
    return made


def kept():
    return list((cache_folder() / "rates").iterdir())


def test_a_speed_is_really_timed(text):
    _, rate, _ = dry_run(changed(), text)
    assert rate.source == "measured"
    (path,) = kept()
    found = json.loads(path.read_text("utf-8"))
    assert all(0 <= seconds < 10 for seconds in found["seconds"].values())
    key = found["key"]
    assert {"processor", "backend", "precision", "threads", "versions"} <= key.keys()


def test_a_speed_is_timed_once(text, timed):
    notices = []
    around = Surroundings(notify=notices.append)
    assert dry_run(changed(), text, around=around)[1].source == "measured"
    assert any("a few steps are timed" in line for line in notices)
    _, rate, _ = dry_run(changed(), text)
    assert rate.source == "cached"
    assert len(timed) == 1
    for other in ({"train__batch_size": 3}, {"compute__threads": 2}, {"model__layers": 2}):
        dry_run(changed(**other), text)
    assert len(timed) == len(kept()) == 4


def test_the_time_is_made_of_steps_evaluations_and_samples(text, timed):
    config = changed(train__steps=10, train__grad_accum=3, train__eval_every=4, sample__every=5)
    plan, rate, _ = dry_run(config, text)
    assert rate.training == pytest.approx(10 * (3 * 0.5 + 0.25))
    assert rate.tokens_per_second == pytest.approx(3 * 2 * 16 / (3 * 0.5 + 0.25))
    tokens = plan.disk.tokens // 2 // 10  # the validation split: a tenth, two bytes each
    # before the first step, at 4, 8, and the last
    assert rate.evaluations == pytest.approx(4 * tokens * 1e-3, rel=0.02)
    assert rate.samples == pytest.approx(2 * 8 * 2e-3)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace("splitbit-kit rate 1", "splitbit-kit rate 0"),
        lambda text: text.replace('"threads": 1', '"threads": 7'),
        lambda text: text.replace("0.5", "-0.5"),
        lambda text: text.replace("0.5", "0.0"),
        lambda text: text.replace("0.5", "NaN"),
        lambda text: text.replace("0.5", '"fast"'),
        lambda text: text.replace('"micro_batch"', '"macro_batch"'),
        lambda text: text + " " * rates.CAP,
    ],
)
def test_a_damaged_file_is_timed_anew(text, timed, damage):
    dry_run(changed(), text)
    (path,) = kept()
    whole = path.read_text("utf-8")
    path.write_text(damage(whole), "utf-8")
    assert dry_run(changed(), text)[1].source == "measured"
    assert path.read_text("utf-8") == whole


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(text, timed):
    if not hasattr(os, "mkfifo"):
        pytest.skip("no named pipes here")
    dry_run(changed(), text)
    (path,) = kept()
    path.unlink()
    os.mkfifo(path)
    assert dry_run(changed(), text)[1].source == "measured"


def test_a_cache_that_cannot_be_written_is_told(text, timed):
    cache_folder().mkdir(parents=True)
    (cache_folder() / "rates").write_text("in the way", "utf-8")
    notices = []
    rate = dry_run(changed(), text, around=Surroundings(notify=notices.append))[1]
    assert rate.source == "measured"
    assert any(line.startswith("the speed is not kept: ") for line in notices)


def test_what_takes_long_or_does_not_fit_is_extrapolated(text, timed, monkeypatch):
    monkeypatch.setattr(rates, "LONGEST", 0.0)
    _, rate, _ = dry_run(changed(), text)
    assert rate.source == "extrapolated"
    assert rate.training > 0 < rate.evaluations
    assert not timed
    assert not (cache_folder() / "rates").exists()


def test_a_training_times_nothing(tmp_path, text, timed):
    train(changed(), text, tmp_path / "run")
    assert not timed
    assert not (cache_folder() / "rates").exists()
