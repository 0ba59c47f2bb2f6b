"""What was chosen for a run, and why, in a line; and what each tier picks, in plain data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from splitbit_kit.api import Hardware
from splitbit_kit.models import tiers
from splitbit_kit.quantities import counted, size
from splitbit_kit.training.config import Config, build_config


def chosen(config: Config, hardware: Hardware) -> str:
    """Return one line: the tier or the preset that was asked for, the machine, what came of it.

    hardware: what the probe says of this machine, which may be of another tier.
    """
    machine = f"{counted(hardware.cores, 'core')}, {size(hardware.memory_bytes)}"
    asked = ""
    if config.tier != hardware.tier:
        asked = ", as asked"
        machine = f"this machine: {hardware.tier}, {machine}"
    if config.preset == tiers.pick(config.tier).preset:
        why = f"tier {config.tier}{asked} ({machine}): preset {config.preset}, "
    else:
        why = f"preset {config.preset}, as asked (tier {config.tier}{asked}; {machine}): "
    return why + in_words(config)


def own_rate(config: Config, lr_scale: Callable[[str], float]) -> str | None:
    """Return one line if the learning rate is the preset's times what the optimizer takes of it.

    lr_scale: optimizer -> its usual learning rate as a multiple of adamw's.
    """
    flags = {"optimizer.name": config.optimizer.name}
    own = build_config(config.preset, flags=flags, tier=config.tier, lr_scale=lr_scale).optimizer
    usual = build_config(config.preset, tier=config.tier).optimizer
    if config.optimizer.lr != own.lr or own.lr == usual.lr:
        return None
    return (
        f"lr {own.lr:g}: {own.lr / usual.lr:g} times the {usual.lr:g} that the preset has for "
        f"{usual.name}, as suits {own.name}; --lr takes another"
    )


def in_words(config: Config) -> str:
    """Return the settings that a tier picks, such as "llama 4 layers x 256, batch 4 x 256, ..."."""
    model, train = config.model, config.train
    batch = f"{train.batch_size} x {train.seq_len or model.context}"
    accumulated = f" x {train.grad_accum} micro-batches" if train.grad_accum > 1 else ""
    long = counted(train.steps, "step") if train.steps else f"{train.epochs:g} epochs"
    return (
        f"{model.family} {counted(model.layers, 'layer')} x {model.width}, "
        f"batch {batch}{accumulated}, {long}, lr {config.optimizer.lr:g}"
    )


def picks(tier: str) -> dict[str, Any]:
    """Return what a bare `train` takes on a tier, and its quantised format. Plain data."""
    config = build_config(tier=tier)
    return {
        "family": config.model.family,
        "preset": config.preset,
        "vocabulary": config.tokenizer.vocab_size,
        "batch_size": config.train.batch_size,
        "context": config.model.context,
        "steps": config.train.steps,
        "lr": config.optimizer.lr,
        "grad_accum": config.train.grad_accum,
        "format": tiers.pick(tier).format,
    }
