"""The listing: one line for each offer, and for each plugin of which there is something to say."""

from __future__ import annotations

from dataclasses import dataclass

from splitbit_kit.registry.claims import Claim
from splitbit_kit.registry.loading import Plugin

STATUSES = (
    "ok",
    "unavailable",  # an offer needs a distribution that is not installed
    "disabled",
    "incompatible",  # written for another version of the API
    "duplicate",  # the distribution was found before, further up the path
    "conflict",  # two distributions, one name: usable as distribution:name
    "failed",
)


@dataclass(frozen=True)
class Row:
    """One line. The kind is one of `KINDS`, or "plugin" for a plugin as a whole."""

    kind: str
    name: str
    status: str
    reason: str
    plugin: str
    distribution: str
    version: str
    summary: str
    location: str
    detail: str = ""


def plugin_row(plugin: Plugin) -> Row:
    """Return the line of a plugin as a whole."""
    offers = ", ".join(f"{kind} {offer.name}" for kind, offer in plugin.offers)
    summary = f"offers {offers}" if offers else ""
    return _row("plugin", plugin.entry.name, plugin, summary, plugin.detail)


def offer_row(kind: str, claim: Claim) -> Row:
    """Return the line of an offer."""
    return _row(kind, claim.name, claim, claim.offer.summary)


def _row(kind: str, name: str, of: Plugin | Claim, summary: str, detail: str = "") -> Row:
    return Row(
        kind,
        name,
        of.status,
        of.reason,
        plugin=of.entry.name,
        distribution=of.entry.distribution,
        version=of.entry.version,
        summary=summary,
        location=of.entry.location,
        detail=detail,
    )
