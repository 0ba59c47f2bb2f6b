"""The table of tiers: whole, sound, growing, and as the documentation shows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from splitbit_kit.api import TIERS, UsageError, tier_floor
from splitbit_kit.models.decoder import parameter_specs
from splitbit_kit.models.presets import preset
from splitbit_kit.models.tiers import DEFAULT, _all, pick
from splitbit_kit.training.config import build_config
from splitbit_kit.training.summary import picks

PAGE = Path(__file__).parents[2] / "docs/tiers.md"


def test_every_tier_has_a_row_and_nothing_else_has() -> None:
    assert tuple(_all()) == TIERS
    assert DEFAULT in TIERS


@pytest.mark.parametrize("tier", TIERS)
def test_a_tiers_preset_says_all_that_a_tier_picks(tier: str) -> None:
    sections = preset(pick(tier).preset)
    assert sections["model"].keys() >= {"family", "layers", "heads", "width", "context"}
    assert sections["train"].keys() >= {"steps", "batch_size", "seq_len"}
    assert sections["tokenizer"]["vocab_size"] and sections["optimizer"]["lr"]
    assert sections["train"]["seq_len"] == sections["model"]["context"]
    config = build_config(tier=tier)
    assert (config.tier, config.preset) == (tier, pick(tier).preset)
    assert config == build_config(pick(tier).preset, tier=tier)


def numbers(tier: str) -> int:
    config = build_config(tier=tier)
    specs = parameter_specs(config.model, config.tokenizer.vocab_size)
    return sum(spec.shape[0] * (spec.shape[1] if len(spec.shape) > 1 else 1) for spec in specs)


def test_a_higher_tier_has_a_larger_model_and_more_to_do_a_step() -> None:
    sizes = [numbers(tier) for tier in TIERS]
    assert sizes == sorted(set(sizes))
    rows = [picks(tier) for tier in TIERS]
    a_step = [row["batch_size"] * row["grad_accum"] * row["context"] for row in rows]
    assert a_step == sorted(a_step)


@pytest.mark.parametrize("tier", TIERS)
def test_a_presets_name_says_its_size(tier: str) -> None:
    if match := re.fullmatch(r"llama-(\d+)m", pick(tier).preset):
        assert round(numbers(tier) / 1e6) == int(match[1])


@pytest.mark.parametrize("tier", TIERS[1:])
def test_rows_suit_every_quantised_format(tier: str) -> None:
    model = build_config(tier=tier).model
    assert model.width % 256 == 0
    assert model.hidden % 256 == 0


def test_the_light_tier_is_the_preset_that_was_the_default_before_there_were_tiers() -> None:
    row = picks("light")
    assert (row["preset"], row["batch_size"], row["steps"]) == ("tiny-llama", 4, 500)


def test_an_unknown_tier_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match="tier 'lite' is not known; did you mean light"):
        pick("lite")
    with pytest.raises(UsageError, match="there are mobile, minimal, "):
        pick("42")


def table() -> str:
    """Return the page's table."""
    heads = ["tier", "cores", "memory", *picks(DEFAULT)]
    rows = []
    for tier in TIERS:
        cores, memory = tier_floor(tier)
        rows.append([tier, cores, f"{memory // 10**9:,} GB", *picks(tier).values()])
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def test_the_page_shows_the_table() -> None:
    assert table() in PAGE.read_text("utf-8"), f"docs/tiers.md should have:\n{table()}"
