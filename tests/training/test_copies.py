"""Quantised copies while training: where they are, never stale, and what they cost."""

from types import SimpleNamespace

import numpy as np
import pytest
from tiny_run import TINY

from splitbit_kit.api import (
    PackedTensor,
    QuantizerOffer,
    SplitbitError,
    UsageError,
    hookimpl,
)
from splitbit_kit.formats import checkpoint, jsonl, packed, safetensors
from splitbit_kit.model import load
from splitbit_kit.models import tiers
from splitbit_kit.quantize import pack, packed_format
from splitbit_kit.registry import Registry
from splitbit_kit.training.copies import Copies
from splitbit_kit.training.run import Surroundings, resume, train
from splitbit_kit.training.run_folder import RunFolder
from splitbit_kit.training.trainer import Interrupted, Trainer

Q8_0 = {"quantize.format": "q8_0"}
NAME = "model-q8_0.safetensors"
REGISTRY = Registry()


class Killed(BaseException):
    pass


class Exact:
    """A stranger's format, which loses nothing."""

    widths = (32,)

    def __init__(self, *, negated: bool = False):
        self.negated = negated

    def layout(self, shape):
        return {"values": (np.float32, shape)}

    def pack(self, w, calibration=None):
        return PackedTensor("exact", w.shape, {"values": -w if self.negated else w.copy()})

    def unpack(self, packed, bits=None, rows=slice(None)):
        return packed.arrays["values"][rows]

    def round(self, w):
        return w


def surroundings(build, notices=None):
    @hookimpl
    def quantizers():
        return [QuantizerOffer("exact", "a test", build)]

    registry = Registry(extra={"exact": SimpleNamespace(quantizers=quantizers)})
    return Surroundings(registry, notify=(notices if notices is not None else []).append)


def assert_copied(folder, name="q8_0", options=None):
    """The copy in a folder is what comes of packing the model beside it now."""
    model = safetensors.read(folder / "model.safetensors")
    form = packed_format(REGISTRY, name, options)
    expected = packed.encode(pack(model, form), "a test")
    found = safetensors.read(folder / f"model-{name}.safetensors")
    assert found.metadata == expected.metadata
    assert found.arrays.keys() == expected.arrays.keys()
    for key, array in expected.arrays.items():
        assert np.array_equal(found.arrays[key], array), key


def test_no_copy_is_made_unasked(tiny):
    run, _, _ = tiny()
    assert sorted(path.name for path in (run.folder / "best").iterdir()) == ["model.safetensors"]
    assert not list((run.folder / "checkpoints").glob("*/model-*"))
    assert run.statistics["quantizer"] is run.statistics["quantized_loss"] is None


@pytest.mark.parametrize("name", REGISTRY.names("quantizer"))
def test_the_copy_is_the_best_model_packed(tiny, name):
    run, _, notices = tiny(**{"quantize.format": name})
    assert_copied(run.folder / "best", name)
    file = run.folder / f"best/model-{name}.safetensors"
    found = run.statistics
    assert (found["quantizer"], found["quantized_model"]) == (name, str(file))
    assert found["quantized_bytes"] == file.stat().st_size
    assert 0 < abs(found["quantized_loss"] - found["best_loss"]) < 0.5
    assert load(file, backend="numpy").generate("green", max_tokens=5, seed=1)
    assert not [line for line in notices if "quantizer" in line]
    last = jsonl.read(run.folder / "metrics.jsonl")[-1]
    assert last["quantized_loss"] == found["quantized_loss"]


def test_the_loss_is_measured_as_the_models_is(text, tmp_path):
    config = {**TINY, "quantize": {"format": "exact"}}
    run = train(config, text, tmp_path / "run", around=surroundings(Exact))
    assert run.statistics["quantized_loss"] == pytest.approx(run.statistics["best_loss"], rel=1e-6)


def test_auto_is_the_tiers_format(tiny):
    run, events, _ = tiny(**{"quantize.format": "auto"})
    form = tiers.pick(RunFolder(run.folder).read_config().tier).format
    assert events[0].config["quantize"]["format"] == form == run.statistics["quantizer"]


def test_the_training_is_the_same_with_and_without(tiny):
    plain, _, _ = tiny("plain")
    packed_too, _, _ = tiny("packed", **Q8_0, **{"quantize.every": 3})
    for part in ("best", "final"):
        one, other = ((r.folder / part / "model.safetensors") for r in (plain, packed_too))
        assert one.read_bytes() == other.read_bytes()


# ---- never of another model


def test_no_copy_ever_stands_beside_another_model(tiny, monkeypatch):
    real, seen = safetensors.write, []

    def write(path, *tensors):
        if path.name == "model.safetensors":
            assert not list(path.parent.glob("model-*"))
        written = real(path, *tensors)
        seen.append(path.name)
        return written

    monkeypatch.setattr(safetensors, "write", write)
    tiny(**Q8_0, **{"train.eval_every": 1})
    assert seen.count(NAME) >= 3
    best = seen[:-1]  # the last is final's
    assert best[::2] == ["model.safetensors"] * (len(best) // 2)
    assert best[1::2] == [NAME] * (len(best) // 2)


def test_killed_between_the_model_and_its_copy(tiny, again, monkeypatch, tmp_path):
    whole, _, _ = tiny("whole", **Q8_0)
    with monkeypatch.context() as patch:

        def write(self, model):
            if safetensors.read(self._best / "model.safetensors").metadata["step"] == "8":
                raise Killed

        patch.setattr(Copies, "write", write)
        with pytest.raises(Killed):
            tiny("killed", **Q8_0)
    best = tmp_path / "killed/best"
    assert [path.name for path in best.iterdir()] == ["model.safetensors"]
    again("killed")
    assert (best / NAME).read_bytes() == (whole.folder / "best" / NAME).read_bytes()


def test_killed_at_the_first_and_resumed_it_is_made_at_once(tiny, again, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr(Copies, "write", lambda self, model: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            tiny("killed", **Q8_0)
    assert not (tmp_path / "killed/best" / NAME).exists()

    def kill(self):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_stop_if_asked", kill)
        with pytest.raises(Killed):
            again("killed")
    assert_copied(tmp_path / "killed/best")


@pytest.mark.parametrize("step", range(1, 8))
def test_stopped_and_resumed(tiny, again, monkeypatch, tmp_path, step):
    config = {**Q8_0, "quantize.every": 3}
    whole, _, _ = tiny("whole", **config)
    with monkeypatch.context() as patch:

        def stop(self):
            if self.progress.step == step:
                raise Interrupted

        patch.setattr(Trainer, "_stop_if_asked", stop)
        with pytest.raises(Interrupted):
            tiny("part", **config)
    run, _, _ = again("part")
    assert run.statistics["quantized_loss"] == whole.statistics["quantized_loss"]
    for path in ("best", "checkpoints/step-000008"):
        one, other = (tmp_path / name / path / NAME for name in ("part", "whole"))
        assert one.read_bytes() == other.read_bytes()


def test_a_resume_may_ask_for_another_format_or_none(tiny, again, tmp_path):
    tiny()
    best = tmp_path / "run/best"
    run, _, _ = again("run", {"quantize.format": "q8_0", "quantize.every": 2})
    assert run.statistics["quantizer"] == "q8_0"
    assert_copied(best)
    run, _, _ = again("run", {"quantize.format": "ternary"})
    assert run.statistics["quantizer"] == "ternary"
    assert_copied(best, "ternary")
    assert_copied(best)  # still of the same model
    run, _, _ = again("run", {"quantize.format": "none", "train.steps": 40, "optimizer.lr": 1e-2})
    config = RunFolder(run.folder).read_config()
    assert (config.quantize.format, config.quantize.every) == ("none", 0)
    assert safetensors.read(best / "model.safetensors").metadata["step"] == "40"
    assert [path.name for path in best.iterdir()] == ["model.safetensors"]


def test_other_options_make_another_copy(text, tmp_path):
    config = {**TINY, "quantize": {"format": "exact"}}
    around = surroundings(Exact)
    train(config, text, tmp_path / "run", around=around)
    file = tmp_path / "run/best/model-exact.safetensors"
    before = safetensors.read(file).arrays["tok.weight:values"].copy()
    resume(tmp_path / "run", {"quantize.options": {"negated": True}}, around=around)
    assert np.array_equal(safetensors.read(file).arrays["tok.weight:values"], -before)
    with pytest.raises(UsageError, match="quantizer exact: there is no option colour"):
        resume(tmp_path / "run", {"quantize.options": {"colour": 1}}, around=around)
    resume(tmp_path / "run", {"quantize.options.negated": False}, around=around)
    assert np.array_equal(safetensors.read(file).arrays["tok.weight:values"], before)


def test_a_damaged_copy_is_made_again(tiny, again, tmp_path):
    tiny(**Q8_0)
    (tmp_path / "run/best" / NAME).write_bytes(b"damaged")
    again("run")
    assert_copied(tmp_path / "run/best")


def test_overwrite_takes_the_copies_away(tiny, tmp_path):
    tiny(**Q8_0)
    tiny(overwrite=True)
    assert not (tmp_path / "run/best" / NAME).exists()


# ---- checkpoints


def test_checkpoints_are_packed_every_so_often_and_at_the_end(tiny, tmp_path):
    run, _, _ = tiny(**Q8_0, **{"quantize.every": 3, "checkpoint.keep": 20})
    steps = run.folder / "checkpoints"
    # saved every 2 steps, and every 3 for the copies
    found = {path.name: (path / NAME).exists() for path in sorted(steps.iterdir())}
    assert found == {
        "step-000000": False,
        "step-000002": False,
        "step-000003": True,
        "step-000004": False,
        "step-000006": True,
        "step-000008": True,
    }
    for path in steps.glob("*/" + NAME):
        assert_copied(path.parent)
        assert checkpoint.load(path.parent).tensors.keys() == {"model", "optimizer", "model-q8_0"}
        assert load(path, backend="numpy").header.step == int(path.parent.name[5:])


def test_copies_go_with_their_checkpoints(tiny, tmp_path):
    run, _, _ = tiny(**Q8_0, **{"quantize.every": 1})
    assert [p.name for p in sorted((run.folder / "checkpoints").iterdir())] == [
        "step-000007",
        "step-000008",
    ]


# ---- what does not fit, and what fails


def test_matrices_without_room_are_named_before_the_first_step(tiny):
    run, _, notices = tiny(**Q8_0, **{"model.hidden": 60})
    (line,) = [line for line in notices if line.startswith("quantizer")]
    assert line == (
        "quantizer q8_0: rows of 60 do not divide into blocks of 32; kept as they are: "
        "layers.0.mlp.down.weight"
    )
    assert_copied(run.folder / "best")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"quantize.format": "q9"}, "quantizer q9: there is no such quantizer"),
        ({"quantize.format": "tenary"}, "did you mean ternary"),
        ({"quantize.format": ""}, "a format's name, auto or none is expected"),
        ({"quantize.every": 3}, "quantize.every: 3, but in which format"),
        ({"quantize.every": -1, **Q8_0}, "quantize.every: -1 is below 0"),
        ({**Q8_0, "quantize.options": {"bits": 4}}, "there is no option bits"),
        (
            {**Q8_0, "model.width": 20, "model.hidden": 20},
            "no room for any matrix of this model .*rows of 20 do not",
        ),
    ],
)
def test_bad_requests_are_refused_before_anything_is_written(tiny, tmp_path, changes, said):
    with pytest.raises(UsageError, match=said):
        tiny(**changes)
    assert not (tmp_path / "run").exists()


class CannotPack(Exact):
    def pack(self, w, calibration=None):
        raise RuntimeError("no luck")


class CannotUnpack(Exact):
    def unpack(self, packed, bits=None, rows=slice(None)):
        raise RuntimeError("no luck")


@pytest.mark.parametrize("build", [CannotPack, CannotUnpack])
def test_a_quantizer_that_fails_stops_nothing(text, tmp_path, build):
    notices = []
    config = {**TINY, "quantize": {"format": "exact", "every": 4}}
    run = train(config, text, tmp_path / "run", around=surroundings(build, notices))
    assert run.statistics["quantized_loss"] is None
    assert (run.folder / "final/model.safetensors").exists()
    assert any("quantizer exact" in line and "no luck" in line for line in notices)
    assert (run.folder / "best/model-exact.safetensors").exists() == (build is CannotUnpack)


def test_a_disk_that_is_full_stops_nothing(tiny, again, monkeypatch, tmp_path):
    real = safetensors.write

    def write(path, *tensors):
        if path.name == NAME:
            raise SplitbitError(f"{path}: cannot write it (no space)")
        return real(path, *tensors)

    with monkeypatch.context() as patch:
        patch.setattr(safetensors, "write", write)
        run, _, notices = tiny(**Q8_0)
    assert run.statistics["quantized_loss"] is None
    assert any("no space" in line for line in notices)
    again("run")
    assert_copied(tmp_path / "run/best")
