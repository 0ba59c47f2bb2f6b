import json
import math
import os

import numpy as np
import pytest

from splitbit_kit.api.errors import SplitbitError
from splitbit_kit.formats import jsonl


def refuse_constant(name):
    raise AssertionError(name)


def test_rows_come_back_with_floats_to_the_bit(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [{"step": 0, "loss": 0.1 + 0.2, "text": "ü\u2028\n"}, {"step": 1, "loss": 5e-324}]
    for row in rows:
        jsonl.append(path, row)
    assert jsonl.read(path) == rows


def test_numpy_scalars_and_tuples_become_plain(tmp_path):
    path = tmp_path / "metrics.jsonl"
    jsonl.append(path, {"loss": np.float32(0.1), "step": np.int64(3), "shape": (1, 2)})
    assert jsonl.read(path) == [{"loss": float(np.float32(0.1)), "step": 3, "shape": [1, 2]}]


def test_what_is_not_finite_becomes_text_that_float_reads(tmp_path):
    path = tmp_path / "metrics.jsonl"
    jsonl.append(path, {"a": math.nan, "b": [np.float32(np.inf)], "c": {"d": -math.inf}})
    row = json.loads(path.read_text(), parse_constant=refuse_constant)
    assert row == {"a": "nan", "b": ["inf"], "c": {"d": "-inf"}}
    assert math.isnan(float(row["a"]))


def test_what_json_cannot_keep_is_refused(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for row in ({"a": np.zeros(2)}, {1: 2}, {"a": "\ud800"}, {"a": object()}):
        with pytest.raises(SplitbitError, match=r"metrics\.jsonl"):
            jsonl.append(path, row)
    assert not path.exists()


def test_a_failed_append_leaves_no_part_of_the_line(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    jsonl.append(path, {"step": 1})
    real = os.write
    calls = []

    def full(descriptor, data):
        calls.append(data)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return real(descriptor, data[:3])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(SplitbitError, match="No space left on device"):
        jsonl.append(path, {"step": 2})
    monkeypatch.undo()
    assert len(calls) == 2
    assert jsonl.read(path) == [{"step": 1}]
    jsonl.append(path, {"step": 3})
    assert jsonl.read(path) == [{"step": 1}, {"step": 3}]


def test_reading_leaves_out_a_torn_last_line_and_names_any_other(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2')
    assert jsonl.read(path) == [{"step": 1}]
    path.write_bytes(b'{"step": 1}\n{"st\n{"step": 2}\n')
    with pytest.raises(SplitbitError, match="line 2"):
        jsonl.read(path)
    path.write_bytes(b"[1]\n")
    with pytest.raises(SplitbitError, match="line 1: an object"):
        jsonl.read(path)


def test_cut_back_drops_later_steps_and_torn_lines_only(tmp_path):
    path = tmp_path / "metrics.jsonl"
    kept = b'{"run": "x"}\n{"step": 9}\n{"step":   10, "loss": 0.5}\n{"step": 10, "eval": 1}\n'
    path.write_bytes(kept + b'{"step": 11}\n\0\0\0\n{"step": 1')
    assert jsonl.cut_back(path, 10) == 3
    assert path.read_bytes() == kept
    assert list(tmp_path.iterdir()) == [path]


def test_cut_back_may_go_further_for_lines_of_a_kind(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [{"kind": kind, "step": step} for step in (4, 8) for kind in ("train", "eval")]
    for row in rows:
        jsonl.append(path, row)
    assert jsonl.cut_back(path, 8, {"eval": 4, "sample": -1}) == 1
    assert jsonl.read(path) == rows[:3]


def test_cut_back_drops_a_torn_line_whose_json_happens_to_be_whole(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}')
    assert jsonl.cut_back(path, 10) == 1
    jsonl.append(path, {"step": 3})
    assert jsonl.read(path) == [{"step": 1}, {"step": 3}]


def test_cut_back_with_nothing_to_cut_leaves_the_file_alone(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert jsonl.cut_back(path, 5) == 0
    assert not path.exists()
    jsonl.append(path, {"step": 5})
    before = path.stat().st_ino
    assert jsonl.cut_back(path, 5) == 0
    assert path.stat().st_ino == before


def test_a_failed_cut_back_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    jsonl.append(path, {"step": 5})
    before = path.read_bytes()

    def broken(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(SplitbitError, match="Input/output error"):
        jsonl.cut_back(path, 4)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_rows_tell_of_damaged_lines_and_go_on(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\nnonsense\n[2]\n{"step": 3}\n{"st')
    told = []
    assert list(jsonl.rows(path, told.append)) == [{"step": 1}, {"step": 3}]
    assert [str(error).split(": ")[1] for error in told] == ["line 2", "line 3"]
    with pytest.raises(SplitbitError, match="line 2"):
        list(jsonl.rows(path))
