"""Who has which name: what an offer lacks, and what happens when two have one name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from splitbit_kit import _metadata
from splitbit_kit._metadata import EntryPoint
from splitbit_kit.registry.loading import Plugin


@dataclass(frozen=True)
class Claim:
    """A name that a distribution gives to an offer."""

    offer: Any
    entry: EntryPoint
    status: str = "ok"
    reason: str = ""

    @property
    def name(self) -> str:
        """The plain name."""
        return str(self.offer.name)

    @property
    def qualified(self) -> str:
        """The name that no other distribution can have."""
        return f"{self.entry.distribution}:{self.name}"

    @property
    def usable(self) -> bool:
        """Whether the offer can be had, if need be by its qualified name."""
        return self.status in ("ok", "conflict")

    @property
    def usable_name(self) -> str:
        """The shortest name that means this offer and no other."""
        return self.qualified if self.status == "conflict" else self.name


def claims_of(kind: str, plugins: Sequence[Plugin]) -> list[Claim]:
    """Return who offers what of a kind, in the order of loading."""
    claims = [
        Claim(offer, plugin.entry, *_standing(offer))
        for plugin in plugins
        for offered, offer in plugin.offers
        if offered == kind
    ]
    # Probes are all asked, one after another, so that their names need not differ.
    return claims if kind == "probe" else settled(claims)


def _standing(offer: Any) -> tuple[str, str]:
    missing = [name for name in offer.needs if not _metadata.installed(name)]
    if not missing:
        return "ok", ""
    verb = "is" if len(missing) == 1 else "are"
    return "unavailable", (
        f"{', '.join(missing)} {verb} not installed; pip install {' '.join(missing)}"
    )


def settled(claims: Sequence[Claim]) -> list[Claim]:
    """Mark what two distributions claim, and refuse what one distribution claims twice."""
    return [_settled(claim, claims) if claim.status == "ok" else claim for claim in claims]


def _settled(claim: Claim, claims: Sequence[Claim]) -> Claim:
    # Unavailable ones count: what a name means must not depend on what else is installed.
    rivals = [
        each for each in claims if each.name == claim.name and each.status in ("ok", "unavailable")
    ]
    first = next(each for each in rivals if each.qualified == claim.qualified)
    if first is not claim:
        reason = f"plugin {first.entry.name} of {claim.entry.distribution} offers it too"
        return replace(claim, status="failed", reason=reason)
    owners = sorted({each.entry.distribution for each in rivals})
    if len(owners) == 1:
        return claim
    names = " or ".join(f"{owner}:{claim.name}" for owner in owners)
    reason = f"offered by {' and '.join(owners)}; write {names}"
    return replace(claim, status="conflict", reason=reason)
