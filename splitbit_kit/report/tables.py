"""Tables, and values in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from splitbit_kit.quantities import size
from splitbit_kit.report.chart import figure
from splitbit_kit.report.markup import node
from splitbit_kit.report.record import CURVES, number

HEADS = ("loss", "learning rate", "gradient norm", "tokens per second")
"""What `CURVES` are called."""


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: bool = True,
    strong: Sequence[int] = (),
) -> Element:
    """Return a table whose first column names the row. strong: rows to stress."""
    body = [
        node(
            "tr",
            node("th", row[0], scope="row"),
            *(node("td", text) for text in row[1:]),
            class_="best" if n in strong else None,
        )
        for n, row in enumerate(rows)
    ]
    head = node("tr", *(node("th", text, scope="col") if text else node("td") for text in heads))
    made = node(
        "table",
        node("thead", head),
        node("tbody", *body),
        class_="numbers" if numbers else "words",
    )
    return node("div", made, class_="scroll")


def sheets(
    tables: Iterable[tuple[str, Mapping[str, Any]]], name_of: Callable[[str], str] | None = None
) -> Element:
    """Return a table of facts for each (title, key -> value), side by side where there is room.

    name_of: what a key is called, `words` if None. A table without facts is left out.
    """
    return node(
        "div",
        *(
            node("section", node("h3", title), _facts(values, title, name_of or words))
            for title, values in tables
            if values
        ),
        class_="sheets",
    )


def _facts(values: Mapping[str, Any], title: str, name_of: Callable[[str], str]) -> Element:
    rows = [
        node("tr", node("th", name_of(key), scope="row"), node("td", shown(key, value)))
        for key, value in values.items()
    ]
    return node("table", node("tbody", *rows), class_="facts", aria_label=title)


def sections(config: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the sections of a configuration, the keys that stand in none before them."""
    loose = {key: value for key, value in config.items() if not isinstance(value, Mapping)}
    held = [(name, keys) for name, keys in config.items() if isinstance(keys, Mapping)]
    return [("general", loose), *held] if loose else held


def how_many(shown: int, count: int, what: str) -> list[Element]:
    """Say how many are shown, if not all."""
    return [node("p", f"{shown} of {count:,} {what}.", class_="note")] if shown < count else []


# ---- values in words


def number_or_dash(value: Any) -> str:
    """Return a number of a metrics line for a table."""
    found = number(value)
    return "–" if found is None else figure(found)


def shown(key: str, value: Any, depth: int = 3) -> str:
    """Return a value of the configuration or of the machine as text.

    depth: how many levels of lists and mappings are looked into.
    """
    if isinstance(value, Mapping | list) and not depth:
        return "…"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key.endswith("_bytes") and (nbytes := number(value)) is not None:
        return size(nbytes)
    if isinstance(value, Mapping):
        return (
            ", ".join(f"{words(str(k))} {shown(str(k), v, depth - 1)}" for k, v in value.items())
            or "none"
        )
    if isinstance(value, list):
        return ", ".join(shown("", item, depth - 1) for item in value) or "none"
    return str(value) if value not in ("", None) else "none"


def words(key: str) -> str:
    """Return what a key is called."""
    known = dict(zip(CURVES, HEADS, strict=True))
    return known.get(key) or key.removesuffix("_bytes").replace("_", " ")
