"""What was chosen, in a line; and the same choice from Python as on the command line."""

from __future__ import annotations

import pytest
from tiny_run import TINY

import splitbit_kit
from splitbit_kit.api import TIERS, Hardware
from splitbit_kit.models.tiers import pick
from splitbit_kit.registry import Registry
from splitbit_kit.training.config import build_config
from splitbit_kit.training.run import Surroundings, train
from splitbit_kit.training.run_folder import RunFolder
from splitbit_kit.training.summary import chosen, in_words, own_rate, picks

MACHINE = Hardware(2, 2, 25_276_502_016, "light")


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        (
            {},
            "tier light (2 cores, 25.3 GB): preset tiny-llama, llama 4 layers x 256, "
            "batch 4 x 256, 500 steps, lr 0.003",
        ),
        (
            {"tier": "mobile", "flags": {"train.epochs": 1.5, "train.grad_accum": 2}},
            "tier mobile, as asked (this machine: light, 2 cores, 25.3 GB): preset llama-1m, "
            "llama 4 layers x 128, batch 4 x 128 x 2 micro-batches, 1.5 epochs, lr 0.004",
        ),
        (
            {"preset_name": "nanogpt-laptop", "flags": {"train.steps": 1, "model.layers": 1}},
            "preset nanogpt-laptop, as asked (tier light; 2 cores, 25.3 GB): "
            "gpt2 1 layer x 128, batch 12 x 64, 1 step, lr 0.004",
        ),
        (
            {"preset_name": "tiny-llama", "tier": "full"},
            "preset tiny-llama, as asked (tier full, as asked; this machine: light, 2 cores, "
            "25.3 GB): llama 4 layers x 256, batch 4 x 256, 500 steps, lr 0.003",
        ),
    ],
)
def test_the_line_says_what_and_why(asked, line):
    assert chosen(build_config(**asked, machine="light"), MACHINE) == line


def test_a_rate_taken_from_the_preset_for_another_optimizer_is_said():
    def line(**flags):
        flags = {key.replace("__", "."): value for key, value in flags.items()}
        return own_rate(build_config(flags=flags, lr_scale=scale), scale)

    scale = {"adamw": 1.0, "lion": 0.1, "muon": 1.0}.__getitem__
    assert line(optimizer__name="lion") == (
        "lr 0.0003: 0.1 times the 0.003 that the preset has for adamw, as suits lion; "
        "--lr takes another"
    )
    assert line() is None
    assert line(optimizer__name="muon") is None  # it is adamw's
    assert line(optimizer__name="lion", optimizer__lr=1e-3) is None


def test_the_rate_is_the_optimizers_from_python_too(text, tmp_path):
    told = []
    config = {**TINY, "optimizer": {"name": "lion"}}
    train(config, text, tmp_path / "run", around=Surroundings(notify=told.append))
    assert RunFolder(tmp_path / "run").read_config().optimizer.lr == 3e-4
    assert any(line.startswith("lr 0.0003: 0.1 times the 0.003") for line in told)


@pytest.mark.parametrize("tier", TIERS)
def test_the_picks_of_a_tier_are_what_a_bare_run_has(tier):
    config, row = build_config(machine=tier), picks(tier)
    assert in_words(config) == (
        f"{row['family']} {config.model.layers} layers x {config.model.width}, "
        f"batch {row['batch_size']} x {row['context']}, {row['steps']:,} steps, lr {row['lr']:g}"
    )
    assert (row["preset"], row["format"]) == (config.preset, pick(tier).format)


@pytest.mark.parametrize(
    ("names", "tier", "preset"),
    [
        ({}, "standard", "llama-6m"),
        ({"tier": "minimal"}, "minimal", "llama-2m"),
        ({"preset": "nanogpt-laptop"}, "standard", "nanogpt-laptop"),
    ],
)
def test_python_chooses_as_the_command_line_does(tmp_path, text, monkeypatch, names, tier, preset):
    machine = Hardware(4, 4, 9 * 10**9, "standard")
    monkeypatch.setattr(Registry, "probe", lambda self: machine)
    sections = {key: value for key, value in TINY.items() if key not in ("preset", "tier")}
    lines: list[str] = []
    run = splitbit_kit.train(
        {**names, **sections}, text, tmp_path / "run", around=Surroundings(notify=lines.append)
    )
    config = RunFolder(run.folder).read_config()
    assert (config.tier, config.preset) == (tier, preset)
    assert chosen(config, machine) in lines
