"""Finds plugins, loads each in isolation, and hands out what they offer.

Nothing a plugin does while it loads stops the others: it is caught, and listed with its reason.
The modules, in the order in which a plugin passes through them:

    selection.py  may it load? -p, --no-plugins, SPLITBIT_PLUGINS, found twice
    loading.py    it is imported and asked what it offers, whatever it does meanwhile
    isolation.py  where its output goes, and the user's Ctrl-C
    contract.py   what it can implement and offer, and what is asked of it
    claims.py     who has which name
    commands.py   extra verbs: entry points only, known without being imported
    registry.py   the whole: names, offers, listing, events, probes
    listing.py    a line for each offer and plugin
    options.py    the options of an offer, and whether values fit
    hardware.py   what is said of the machine without any probe
    wording.py    how errors are put
"""

from splitbit_kit.registry.commands import commands
from splitbit_kit.registry.contract import EVENT_HOOKS, HOOKS, KINDS, OFFER_TYPES
from splitbit_kit.registry.listing import STATUSES, Row
from splitbit_kit.registry.loading import Plugin
from splitbit_kit.registry.options import Option, check_options, options_of
from splitbit_kit.registry.registry import Registry
from splitbit_kit.registry.selection import PluginOptions
from splitbit_kit.registry.wording import say

__all__ = [
    "EVENT_HOOKS",
    "HOOKS",
    "KINDS",
    "OFFER_TYPES",
    "STATUSES",
    "Option",
    "Plugin",
    "PluginOptions",
    "Registry",
    "Row",
    "check_options",
    "commands",
    "options_of",
    "say",
]
