"""The verb `probe`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from splitbit_kit.cli.options import CONTEXT, json_option
from splitbit_kit.cli.output import emit, people, show, table
from splitbit_kit.cli.settings import Settings

if TYPE_CHECKING:
    from splitbit_kit.api import Hardware

JSON_KEYS = {
    "threads": "logical processors that this process may run on",
    "cores": "physical cores among them: the threads that training computes with",
    "memory_bytes": "main memory, used or not",
    "tier": "the machine's tier",
    "sources": "for every fact, where it came from, in words",
    "instruction_sets": "the processor's extensions that matter for arithmetic, by LLVM's names",
    "blas": "library, version and threads of NumPy's matrix products; empty if not known",
    "disk_free_bytes": "what may still be written in this folder; null if not known",
    "picks": "what a bare train takes on this tier: family, preset, vocabulary (the most tokens), "
    "batch_size, context, steps, lr, grad_accum and format (what --quantizer auto means)",
}


@click.command("probe", context_settings=CONTEXT)
@json_option
@click.pass_context
def command(context: click.RichContext, /, as_json: bool) -> None:
    """Show what this machine offers, where each number came from, its tier and what that picks.

    Every number is the least of what the system, the affinity mask and a container's limits allow.
    The tier decides what train takes where nobody says otherwise; docs/tiers.md shows all eight.

    \b
    Examples:
      splitbit-kit probe
      splitbit-kit probe --json
    """
    from splitbit_kit.training.summary import picks

    settings: Settings = context.obj
    hardware = settings.registry(show).probe()
    picked = picks(hardware.tier)
    table(("fact", "value", "source"), rows(hardware), as_json)
    print(f"\ntrain takes on tier {hardware.tier}, unless told otherwise:\n", file=people(as_json))
    table(("setting", "value"), [(key, str(value)) for key, value in picked.items()], as_json)
    if as_json:
        found = {key: getattr(hardware, key) for key in JSON_KEYS if key != "picks"}
        emit(JSON_KEYS, {**found, "picks": picked})


def rows(hardware: Hardware) -> list[tuple[str, str, str]]:
    """Return the facts for people: name, value, source."""
    from splitbit_kit.quantities import size

    free = hardware.disk_free_bytes
    values = {
        "threads": str(hardware.threads),
        "cores": str(hardware.cores),
        "memory_bytes": size(hardware.memory_bytes),
        "instruction_sets": " ".join(hardware.instruction_sets),
        "blas": hardware.blas,
        "disk_free_bytes": "" if free is None else size(free),
        "tier": hardware.tier,
    }
    names = {"memory_bytes": "memory", "instruction_sets": "instructions", "blas": "BLAS"}
    names["disk_free_bytes"] = "free disk"
    return [
        (names.get(key, key), value or "?", hardware.sources.get(key, "not said"))
        for key, value in values.items()
    ]
