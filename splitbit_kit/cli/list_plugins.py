"""The verb `list-plugins`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import rich_click as click

from splitbit_kit.cli.options import CONTEXT, json_option, option
from splitbit_kit.cli.output import emit, people, show, table
from splitbit_kit.cli.settings import Settings

if TYPE_CHECKING:
    from splitbit_kit.registry import Registry, Row

JSON_KEYS = {
    "plugins": "one object a row, with the keys kind, name, status, reason, plugin, distribution, "
    "version, summary, location and detail (what it printed, and the traceback if it failed)",
    "ops": "with --ops one object a site, with the keys preset, use (train or inference), op, site "
    "and origin (a backend); otherwise null",
}


@click.command("list-plugins", context_settings=CONTEXT)
@option(
    "--kind",
    metavar="KIND",
    panel="What to show",
    default_text="all kinds",
    help="Only this kind, such as backend, optimizer or quantizer.",
)
@option(
    "--ops",
    "with_ops",
    is_flag=True,
    panel="What to show",
    default_text="off",
    help="Also show which backend each op of a model comes from.",
)
@option(
    "--preset",
    metavar="NAME",
    panel="What to show",
    default_text="a model of each family",
    help="With --ops: the model that is meant.",
)
@option(
    "--backend",
    default="auto",
    metavar="NAMES",
    panel="What to show",
    default_text="auto",
    help="With --ops: backends with commas between, the preferred first.",
)
@json_option
@click.pass_context
def command(
    context: click.RichContext,
    /,
    kind: str | None,
    with_ops: bool,
    preset: str | None,
    backend: str,
    as_json: bool,
) -> None:
    """Show what is installed: our own plugins and others', what they offer, and what is wrong.

    A status is ok, unavailable (something it needs is not installed), disabled, incompatible (with
    this version), duplicate (found twice, the first is used), conflict (two claim one name; write
    DISTRIBUTION:NAME) or failed.

    \b
    Examples:
      splitbit-kit list-plugins
      splitbit-kit list-plugins --kind quantizer
      splitbit-kit list-plugins --ops --backend numpy
    """
    settings: Settings = context.obj
    registry = settings.registry(show)
    rows = registry.listing(kind)
    sites = ops(registry, preset, backend) if with_ops else None
    heads = ("kind", "name", "status", "distribution", "version", "summary")
    table(heads, [cells(row) for row in rows], as_json)
    if sites is not None:
        print(file=people(as_json))
        table(("model", "use", "op", "from"), list(dict.fromkeys(map(site_cells, sites))), as_json)
    if as_json:
        emit(JSON_KEYS, {"plugins": [asdict(row) for row in rows], "ops": sites})


def cells(row: Row) -> tuple[str, ...]:
    """Return a row of the listing; what is wrong takes the place of the summary."""
    what = row.summary if row.status == "ok" else ""
    about = "; ".join(part for part in (row.reason, what) if part)
    return row.kind, row.name, row.status, row.distribution, row.version, about


def site_cells(site: Mapping[str, str]) -> tuple[str, ...]:
    """Return a row of the table of ops."""
    return site["preset"], site["use"], site["op"], site["origin"]


def ops(registry: Registry, preset: str | None, backend: str) -> list[dict[str, str]]:
    """Return where each op comes from, site by site, in the order a model meets them.

    Raises SplitbitError if a site is served by nobody, or a backend cannot run.
    """
    from splitbit_kit.compute import choose
    from splitbit_kit.engine.params import ParameterStore
    from splitbit_kit.models.decoder import Decoder, parameter_specs
    from splitbit_kit.text.tokenizer_file import LEAST_VOCAB
    from splitbit_kit.training.config import build_config
    from splitbit_kit.training.learner import plan

    compute = choose(registry, backend, notify=show)
    rows = []
    for name in [preset] if preset else one_preset_a_family():
        # layers are alike and a vocabulary's size is no matter: the least of both will do
        model = replace(build_config(name).model, layers=1)
        specs = parameter_specs(model, LEAST_VOCAB)
        decoder = Decoder(model, ParameterStore(specs, compute.dtype))
        for use in ("train", "inference"):
            table = compute.table(train=use == "train")
            plan(decoder, table)
            rows += [
                {
                    "preset": name,
                    "use": use,
                    "op": resolved.site.op,
                    "site": str(resolved.site),
                    "origin": resolved.origin,
                }
                for resolved in table.resolved
                if resolved.op is not None
            ]
    return rows


def one_preset_a_family() -> list[str]:
    """Return the first preset of each family of models."""
    from splitbit_kit.models.presets import preset, preset_names

    found: dict[str, str] = {}
    for name in preset_names():
        found.setdefault(preset(name)["model"]["family"], name)
    return list(found.values())
