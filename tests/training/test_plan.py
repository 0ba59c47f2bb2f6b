"""What a plan says holds, and what is short is refused before anything is written."""

import re
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tiny_run import TINY

from splitbit_kit.api import CheckpointSaved, EvalDone, Hardware, RunEnded, SplitbitError
from splitbit_kit.registry import Registry
from splitbit_kit.text.batches import Windows
from splitbit_kit.training import plan as planning
from splitbit_kit.training.config import build_config
from splitbit_kit.training.rehearsal import resident_bytes
from splitbit_kit.training.run import Surroundings, dry_run, resume, train


def changed(**changes):
    config = {section: dict(keys) for section, keys in TINY.items() if section != "preset"}
    for key, value in changes.items():
        section, _, name = key.partition("__")
        config[section][name] = value
    return config


@pytest.fixture
def short(monkeypatch):
    """Call short(bytes) to leave so much memory besides what the interpreter has."""

    def leave(nbytes):
        monkeypatch.setattr(
            planning, "memory_available", lambda registry: resident_bytes() + nbytes
        )

    return leave


def wide(**changes):
    """A training whose arrays outweigh the interpreter's ups and downs."""
    sizes = {"model__width": 128, "model__hidden": 512, "model__context": 128}
    return changed(**{**sizes, "train__seq_len": 128, "train__batch_size": 32, **changes})


# ---- the plan


def test_parts_add_up(text):
    plan, rate, refused = dry_run(changed(), text)
    assert refused is None
    memory = plan.memory
    taken = memory.parameters + memory.gradients + memory.moments + memory.activations
    assert memory.total == taken + memory.backend + memory.data + memory.interpreter
    assert memory.gradients == memory.parameters >= 4 * plan.parameters
    assert memory.moments == pytest.approx(2 * memory.parameters, rel=0.01)
    assert memory.interpreter < plan.peak
    assert rate.total == rate.training + rate.evaluations + rate.samples > 0


def test_a_plan_writes_nothing_but_caches(tmp_path, text, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for out in (None, tmp_path / "run"):
        dry_run(changed(), text, out)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_the_disk_is_never_fuller_than_foretold(tmp_path, text):
    config = wide(train__batch_size=2, train__steps=6, train__eval_every=2)
    out = tmp_path / "run"
    seen = []

    def look(event):
        if isinstance(event, EvalDone | CheckpointSaved | RunEnded):
            seen.append(sum(f.stat().st_size for f in out.rglob("*") if f.is_file()))

    plan, _, _ = dry_run(config, text, out)
    train(config, text, out, around=Surroundings(listeners=[look]))
    assert max(seen) <= plan.disk.total
    # a checkpoint that is written while two stand has gone when the event comes
    assert plan.disk.total - plan.disk.temporary == pytest.approx(max(seen), rel=0.1)


def test_quantised_copies_are_counted(tmp_path, text):
    config = wide(train__batch_size=2, train__steps=2, train__eval_every=1)
    config["quantize"] = {"format": "q8_0", "every": 1}
    plan, _, _ = dry_run(config, text)
    train(config, text, tmp_path / "run")
    copy = (tmp_path / "run/best/model-q8_0.safetensors").stat().st_size
    assert plan.memory.copies == pytest.approx(copy, rel=0.02)
    written = sum(f.stat().st_size for f in (tmp_path / "run").rglob("model-q8_0.safetensors"))
    assert written <= plan.disk.copies <= written + 1.02 * copy


def test_what_stands_in_the_folder_makes_room_for_its_successor(tmp_path, text, monkeypatch):
    out = tmp_path / "run"
    train(changed(), text, out)
    monkeypatch.setattr(planning, "_free_disk", lambda folder: 0)
    plan, _, _ = dry_run(changed(), text, out, overwrite=True)
    assert plan.disk_available >= (out / "final/model.safetensors").stat().st_size


def test_no_more_memory_is_there_than_the_probe_allows(monkeypatch):
    registry = Registry()
    hardware = Hardware(1, 1, 5 * 10**7, "mobile")
    monkeypatch.setattr(Registry, "probe", lambda self: hardware)
    assert planning.memory_available(registry) == 5 * 10**7
    hardware = Hardware(1, 1, 10**15, "mobile")
    assert planning.memory_available(registry) <= psutil.virtual_memory().total


# ---- refusal


def test_the_batch_that_is_said_to_fit_does_and_the_next_does_not(
    tmp_path, text, short, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    short(100_000_000)
    with pytest.raises(SplitbitError, match=r"^memory: the training needs ") as refused:
        train(wide(train__batch_size=300), text)
    assert not Path("runs").exists()
    fits = int(re.search(r"; --batch-size (\d+) fits; ", str(refused.value))[1])
    assert 20 < fits < 200
    # what the allocator keeps of earlier tests comes and goes
    assert dry_run(wide(train__batch_size=round(0.8 * fits)), text)[2] is None
    assert dry_run(wide(train__batch_size=round(1.5 * fits)), text)[2] is not None
    train(wide(train__batch_size=round(0.8 * fits), train__steps=1), text, "run")


def test_whoever_knows_better_may_go_on(tmp_path, text, short):
    short(1_000)
    config = changed(train__check_resources=False)
    plan, _, refused = dry_run(config, text)
    assert refused is None
    assert not plan.memory_fits
    assert train(config, text, tmp_path / "run")


def test_a_short_sequence_fits_where_a_long_one_does_not(short):
    short(40_000_000)
    config = wide(model__context=4096, train__seq_len=4096, train__batch_size=1, model__width=64)
    with pytest.raises(SplitbitError, match=r"--seq-len \d+ with --batch-size 1 fits") as refused:
        train(config)
    fits = int(re.search(r"--seq-len (\d+)", str(refused.value))[1])
    assert fits in (2048, 1024, 512, 256)


def test_fewer_layers_fit_where_the_weights_alone_are_too_many(text, short):
    short(40_000_000)
    config = wide(model__layers=40, train__batch_size=1, train__seq_len=16)
    with pytest.raises(SplitbitError, match=r"model\.layers=\d+ with --batch-size 1 fits"):
        train(config, text)


def test_a_smaller_preset_fits_where_no_part_of_the_model_does(text, short):
    short(120_000_000)
    config = changed(model__width=4096, model__hidden=16384, model__heads=32)
    found = r"need .* are free; --preset ([\w-]+) with --batch-size (\d+) and --seq-len (\d+) "
    with pytest.raises(SplitbitError, match=found + "and no model.* settings fits; ") as refused:
        train(config, text)
    preset, batch_size, seq_len = re.search(found, str(refused.value)).groups()
    sizes = {"train__batch_size": int(batch_size), "train__seq_len": int(seq_len)}
    fits = changed(**sizes) | {"preset": preset}
    fits["model"] = {}
    assert dry_run(fits, text)[2] is None


def test_only_what_would_win_over_a_smaller_preset_is_named():
    own = build_config("bench-c4")
    config = own.with_keys(train__seq_len=own.train.seq_len or own.model.context)
    wanted = build_config("nanogpt-laptop")
    assert planning._in_its_way(config, wanted) == ""
    larger = config.with_keys(train__batch_size=500)
    assert planning._in_its_way(larger, wanted) == f" with --batch-size {wanted.train.batch_size}"


def test_the_order_of_many_samples_is_left_room_for(text, short):
    short(100_000_000)
    plan, _, refused = dry_run(wide(train__batch_size=300), text)
    (fits,) = re.findall(r"--batch-size (\d+) fits", str(refused))
    many = Windows(50_000_000 * 2, 32, 1)
    order = planning.ORDER_BYTES * (many.per_epoch - plan.windows.per_epoch)
    more = replace(plan, windows=many, memory=replace(plan.memory, data=plan.memory.data + order))
    with pytest.raises(SplitbitError) as refused:
        planning.refuse(more, Registry(), 300)
    (fewer,) = re.findall(r"--batch-size (\d+) fits", str(refused.value))
    layers = plan.config.model.layers
    one = plan.rehearsal.at(layers, 2).total - plan.rehearsal.at(layers, 1).total
    assert int(fits) - int(fewer) == pytest.approx(planning.SPARE * order / one, abs=2)


def test_shorter_sequences_and_smaller_presets_leave_it_room_too(short):
    config = build_config("nanogpt-laptop").with_keys(
        train__seq_len=16, train__batch_size=1, compute__backend="numpy", compute__precision="fp32"
    )
    short(60_000_000)
    registry = Registry()
    assert planning._fits(config, Windows(1_000, 16, 1), 300, registry)
    assert not planning._fits(config, Windows(10**8, 16, 1), 300, registry)


def test_nothing_fits_at_all(text, short):
    short(1_000)
    with pytest.raises(SplitbitError, match="end other programs"):
        train(changed(), text)


def test_a_full_disk_is_refused_before_anything_is_written(tmp_path, text, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(planning, "_free_disk", lambda folder: 100_000)
    with pytest.raises(SplitbitError, match=r"^runs: the run needs .* free .*, or choose another"):
        train(changed(), text)
    assert not Path("runs").exists()


def test_fewer_checkpoints_that_are_said_to_fit_do(tmp_path, text, monkeypatch):
    config = changed(checkpoint__keep=9, checkpoint__save_every=1, train__steps=20)
    plan, _, _ = dry_run(config, text)
    one = plan.disk.checkpoints // 9
    monkeypatch.setattr(planning, "_free_disk", lambda folder: plan.disk.total - 2 * one - 5)
    with pytest.raises(SplitbitError, match=r"--set checkpoint\.keep=6 fits"):
        train(config, text, tmp_path / "run")
    config["checkpoint"]["keep"] = 6
    assert train(config, text, tmp_path / "run")


def test_a_resumed_run_is_refused_too_and_keeps_what_it_has(tmp_path, text, short):
    train(changed(), text, tmp_path / "run")
    before = (tmp_path / "run/config.toml").read_bytes()
    short(1_000)
    with pytest.raises(SplitbitError, match=r"end other programs; .*check_resources=false"):
        resume(tmp_path / "run", {"train.steps": 10})
    assert (tmp_path / "run/config.toml").read_bytes() == before
    assert resume(tmp_path / "run", {"train.steps": 10, "train.check_resources": False})
