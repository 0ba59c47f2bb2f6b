"""Extra verbs of the command line: entry points only, known without being imported."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from splitbit_kit import _metadata
from splitbit_kit._metadata import EntryPoint
from splitbit_kit.registry.claims import Claim, settled
from splitbit_kit.registry.contract import Offer
from splitbit_kit.registry.selection import DISTRIBUTION, PluginOptions


def commands(
    options: PluginOptions | None = None,
    *,
    verbs: Collection[str] = (),
    path: Sequence[str] | None = None,
) -> dict[str, EntryPoint]:
    """Return the commands of other distributions, by usable name, without importing anything.

    verbs: our own commands; another's of the same name is there as `distribution:name`. Raises
    UsageError for an option that means no plugin.
    """
    options = options or PluginOptions()
    entries = _metadata.entry_points(path)
    options.check(entries)
    claims = command_claims(options, entries, verbs)
    return {claim.usable_name: claim.entry for claim in claims if claim.usable}


def command_claims(
    options: PluginOptions, entries: Sequence[EntryPoint], verbs: Collection[str]
) -> list[Claim]:
    """Return who has which command. One that is called like a verb of ours is in conflict."""
    claims = settled(
        [
            Claim(_offer(entry), entry, *options.standing(entry))
            for entry in entries
            if entry.group == _metadata.COMMANDS
        ]
    )
    return [
        replace(
            claim,
            status="conflict",
            reason=f"{DISTRIBUTION} has a command of this name; write {claim.qualified}",
        )
        if claim.usable and claim.name in verbs
        else claim
        for claim in claims
    ]


def _offer(entry: EntryPoint) -> Offer:
    return Offer(entry.name, f"from {entry.distribution} {entry.version}", entry.load)
