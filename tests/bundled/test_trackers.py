"""TensorBoard's files, read back frame by frame as its own reader does."""

import struct
from pathlib import Path

import pytest

from splitbit_kit.api import (
    CheckpointSaved,
    EvalDone,
    RunEnded,
    RunStarted,
    SampleWritten,
    StepDone,
)
from splitbit_kit.registry import Registry

pytest.importorskip("tensorboardX")


def crc32c(data):
    """Return Castagnoli's checksum, bit by bit (RFC 3720, B.4), masked as TFRecord has it."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def events(file):
    """Return the events in a file: each is its length, checksum, protocol buffer, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    data, found = file.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12]) == (crc32c(data[:8]),)
        body = data[12 : 12 + length]
        assert struct.unpack("<I", data[12 + length : 16 + length]) == (crc32c(body),)
        found.append(Event.FromString(body))
        data = data[16 + length :]
    return found


def build(folder, **options):
    return Registry().build("tracker", "tensorboard", folder, **options)


def record(folder, start=0, **options):
    """Record a little run, and return its file."""
    before = set(folder.iterdir())
    tracker = build(folder, **options)
    for event in (
        RunStarted(
            folder, {"tier": "light", "train": {"steps": 9}}, 1, 2, {}, start, 9, {"cores": 2}
        ),
        StepDone(start + 1, 3.5, 1e-3, 0.5, 256, 0.125),
        StepDone(start + 2, float("nan"), 1e-3, 0.5, 256, 0.0),
        EvalDone(start + 2, 3.25, 25.75, 1.5, 4096, 0.5, True),
        SampleWritten(start + 2, "Once ", "upon\n# <b>a</b> time"),
        CheckpointSaved(start + 2, Path("step-000002"), True),
        RunEnded(start + 2, "interrupted", {"quantizer": "q8_0", "quantized_loss": 3.375}),
    ):
        tracker.event(event)
    tracker.close()
    (file,) = set(folder.iterdir()) - before
    return file


def scalars(file):
    return {
        (value.tag, event.step): value.simple_value
        for event in events(file)
        for value in event.summary.value
        if value.HasField("simple_value")
    }


def texts(file):
    return {
        value.tag.removesuffix("/text_summary"): value.tensor.string_val[0].decode()
        for event in events(file)
        for value in event.summary.value
        if not value.HasField("simple_value")
    }


def test_curves_and_samples_can_be_read_back(tmp_path):
    file = record(tmp_path)
    assert "tfevents" in file.name
    found = scalars(file)
    assert found["train/loss", 1] == 3.5
    assert str(found["train/loss", 2]) == "nan"
    assert found["train/lr", 1] == pytest.approx(1e-3)
    assert found["train/grad_norm", 1] == 0.5
    assert found["perf/tokens_per_s", 1] == 2048
    assert found["eval/loss", 2] == 3.25
    assert found["eval/perplexity", 2] == 25.75
    assert found["eval/bits_per_byte", 2] == 1.5
    assert found["eval/loss_q8_0", 2] == 3.375
    assert texts(file) == {
        "run/configuration": "    tier = 'light'\n    \n    [train]\n    steps = 9",
        "run/machine": "    cores = 2",
        "sample": "    Once upon\n    # <b>a</b> time",
        "run/end": "    reason = 'interrupted'\n    quantizer = 'q8_0'\n    quantized_loss = 3.375",
    }


def test_steps_may_be_thinned(tmp_path):
    steps = {step for tag, step in scalars(record(tmp_path, every=2)) if tag == "train/lr"}
    assert steps == {2}
    with pytest.raises(Exception, match="every: 0; at least 1 is expected"):
        build(tmp_path, every=0)


def test_a_resume_hides_later_steps_and_wipes_out_nothing(tmp_path):
    first, second = record(tmp_path), record(tmp_path, start=1)  # in the same second
    assert first != second
    assert ("train/loss", 1) in scalars(first)
    (log,) = [event for event in events(second) if event.HasField("session_log")]
    assert (log.step, log.session_log.status) == (2, log.session_log.START)


def test_what_is_written_can_be_seen_at_a_checkpoint(tmp_path):
    tracker = build(tmp_path)
    tracker.event(StepDone(1, 3.5, 1e-3, 0.5, 256, 0.125))
    tracker.event(CheckpointSaved(1, Path("step-000001"), False))
    (file,) = tmp_path.iterdir()
    assert scalars(file)["train/loss", 1] == 3.5
    tracker.close()


def test_a_full_disk_is_an_error_that_the_run_hears_of(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    tracker = build(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            tracker.event(CheckpointSaved(1, Path("step-000001"), False))
    tracker.close()
