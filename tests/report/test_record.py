"""What is read of a run folder, whatever became of the run."""

import math
from itertools import pairwise

import pytest
from run_folders import begun, ended, evaluation, made, sample, step, whole

from splitbit_kit.api import SplitbitError
from splitbit_kit.report.record import Spread, number, read


def test_a_whole_run(tmp_path):
    record = read(made(tmp_path / "run", whole()))
    assert (record.state, record.step, record.damaged) == ("finished", 100, 0)
    assert {name: len(curve) for name, curve in record.curves.items()} == dict.fromkeys(
        ("loss", "lr", "grad_norm", "tokens_per_second"), 100
    )
    assert record.curves["tokens_per_second"].points().mean[0] == 2000
    assert record.best["step"] == 100
    assert [row["step"] for row in record.samples.rows()] == [25, 50, 75, 100]
    assert record.start["machine"]["processor"] == "Abacus 9"
    assert record.seconds == 50


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        (None, "unfinished"),  # killed before its first line
        ([], "unfinished"),
        ([begun(), step(1)], "unfinished"),
        ([begun(), step(1), ended(1)], "finished"),
        ([begun(), step(1), ended(1, "interrupted")], "interrupted"),
        ([begun(), step(1), ended(1, "disk full")], "failed"),
        ([begun(), step(1), ended(1, "interrupted"), begun(1)], "unfinished"),
        ([begun(), step(1), ended(1, "interrupted"), begun(1), step(2), ended(2)], "finished"),
        ([step(1), ended(1, ["finished"])], "failed"),
    ],
)
def test_states(tmp_path, rows, state):
    assert read(made(tmp_path / "run", rows)).state == state


def test_the_best_evaluation_is_not_the_one_before_training(tmp_path):
    rows = [evaluation(0, 1.0), evaluation(5, 3.0), evaluation(10, 2.0), evaluation(15, 2.5)]
    assert read(made(tmp_path / "run", rows)).best["step"] == 10


def test_copies_are_those_of_the_best_model_there_is(tmp_path):
    copied = {**ended(5), "quantizer": "q8_0", "quantized_loss": 3.1}
    rows = [evaluation(5, 3.0), copied, begun(5), evaluation(6, 3.5), ended(6)]
    assert list(read(made(tmp_path / "worse", rows)).copies) == ["q8_0"]
    rows[3] = evaluation(6, 2.5)
    assert read(made(tmp_path / "better", rows)).copies == {}


def test_a_torn_last_line_is_left_out_and_a_damaged_one_counted(tmp_path):
    folder = made(tmp_path / "run", [step(1)], tail=b'{"kind": "tr')
    assert (read(folder).step, read(folder).damaged) == (1, 0)
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'\n[1, 2]\n{"kind": "train", "step": 2, "loss": 1.5}\n')
    record = read(folder)
    assert (record.step, record.damaged) == (2, 2)


@pytest.mark.parametrize(
    "row",
    [
        {"kind": "train"},
        {"kind": "train", "step": "4"},
        {"kind": "train", "step": True},
        {"kind": "train", "step": -1},
        {"kind": "train", "step": 2**60},
        {"kind": "eval", "step": 1.5, "loss": 1},
    ],
)
def test_a_line_without_a_step_is_damaged(tmp_path, row):
    assert read(made(tmp_path / "run", [step(1), row])).damaged == 1


@pytest.mark.parametrize(
    "row",
    [
        {"kind": "weather", "step": 1, "loss": {}},
        {"kind": ["train"], "step": 1},
        {"step": 1},
        {"kind": "weather", "step": "soon"},
        {"kind": None, "format": ["q8_0"]},
        {"kind": "", "step": -1},
        {"kind": "train", "step": 1, "loss": None, "lr": [], "tokens": {}, "seconds": "long"},
        {"kind": "train", "step": 1, "tokens": 5, "seconds": 0},
        {"kind": "eval", "step": 1},
        {"kind": "train", "step": 1, "loss": 10**400},
    ],
)
def test_what_is_not_known_or_of_another_type_is_ignored(tmp_path, row):
    record = read(made(tmp_path / "run", [row]))
    assert record.damaged == 0
    assert not any(len(curve) for curve in record.curves.values())
    assert record.evaluations.count == 0


def test_losses_that_are_not_finite(tmp_path):
    lost = {**evaluation(3, 1.0), "loss": "nan", "perplexity": "nan"}
    rows = [step(1), step(2, loss="nan"), step(3, loss="inf"), lost]
    record = read(made(tmp_path / "run", rows))
    assert record.curves["loss"].lost == [2, 3]
    assert record.best is None
    assert record.evaluations.count == 1


def test_numbers():
    assert number(3) == number(3.0) == 3.0
    assert math.isnan(number("nan"))
    for value in (True, None, "3", "-", [], {}, 10**400):
        assert number(value) is None


def test_no_run_is_an_error_of_one_line(tmp_path):
    with pytest.raises(SplitbitError, match="holds no run"):
        read(tmp_path)


@pytest.mark.parametrize("count", [0, 1, 2, 5, 11, 12, 13, 100, 1001])
def test_rows_are_spread_evenly_over_all(count):
    spread = Spread(12)
    for n in range(count):
        spread.add({"n": n})
    found = [row["n"] for row in spread.rows()]
    assert spread.count == count
    assert len(found) <= 12
    assert len(found) >= min(count, 6)
    if count:
        assert (found[0], found[-1]) == (0, count - 1)
        gaps = [b - a for a, b in pairwise(found[:-1])]
        assert len(set(gaps)) <= 1


def test_many_samples_are_not_all_kept(tmp_path):
    rows = [sample(n, f"text {n}") for n in range(1, 500)]
    record = read(made(tmp_path / "run", rows))
    assert record.samples.count == 499
    assert len(record.samples.rows()) <= 12
