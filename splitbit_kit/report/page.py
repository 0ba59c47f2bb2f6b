"""The page: one self-contained HTML document about one run, or about several side by side."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from xml.etree.ElementTree import Element

from splitbit_kit import _metadata
from splitbit_kit.report.chart import Layer, chart
from splitbit_kit.report.comparison import comparison, differences
from splitbit_kit.report.curve import Curve
from splitbit_kit.report.markup import document, node
from splitbit_kit.report.parts import (
    configuration,
    copies,
    evaluations,
    headline,
    history,
    machine,
    notices,
    samples,
    tiles,
    training_figures,
)
from splitbit_kit.report.record import Record

GENERATOR = "splitbit-kit report"
"""What the page names itself as made by; it tells our pages from other files."""


def page(records: Sequence[Record], made: datetime | None = None) -> bytes:
    """Return the document. made: when, now if None. Needs one record at least."""
    made = made or datetime.now(UTC)
    alone = len(records) == 1
    title = records[0].name if alone else f"{len(records)} runs: " + ", ".join(_names(records))
    body = _one(records[0]) if alone else _several(records)
    return document(
        node(
            "html",
            _head(title),
            node("body", node("main", *body), _footer(made), node("script", _asset("page.js"))),
            lang="en",
        )
    )


def _head(title: str) -> Element:
    style, script = _asset("page.css"), _asset("page.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return node(
        "head",
        node("meta", charset="utf-8"),
        node("meta", name="generator", content=GENERATOR),
        node("meta", http_equiv="Content-Security-Policy", content=policy),
        node("meta", name="viewport", content="width=device-width, initial-scale=1"),
        node("meta", name="color-scheme", content="light dark"),
        node("meta", name="referrer", content="no-referrer"),
        node("title", f"{title} – splitbit-kit"),
        node("link", rel="icon", href="data:,"),  # otherwise a browser asks the server for one
        node("style", style),
    )


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def _footer(made: datetime) -> Element:
    when = node("time", f"{made:%Y-%m-%d %H:%M} UTC", datetime=made.isoformat(timespec="seconds"))
    version = _metadata.version("splitbit-kit") or "of unknown version"
    return node("footer", f"Made by splitbit-kit {version}, ", when, ".")


# ---- one run, several runs


def _one(record: Record) -> list[Element]:
    return [
        headline(record, "h1"),
        *notices(record),
        tiles(record),
        node("h2", "Curves"),
        _charts([record]),
        *_details(record),
    ]


def _several(records: Sequence[Record]) -> list[Element]:
    names = _names(records)
    parts = [
        node("h1", f"{len(records)} runs"),
        comparison(records, names),
        node("h2", "Curves"),
        _charts(records),
        node("h2", "What differs in their configurations"),
        differences(records, names),
    ]
    for record in records:
        more = node("summary", "Samples, evaluations, machine, configuration")
        parts += [headline(record, "h2"), *notices(record), tiles(record)]
        parts.append(node("details", more, *_details(record)))
    return parts


def _details(record: Record) -> list[Element]:
    return [
        *copies(record),
        *samples(record),
        *evaluations(record),
        *training_figures(record),
        *machine(record),
        *history(record),
        *configuration(record),
    ]


def _names(records: Sequence[Record]) -> list[str]:
    """Return the folders' names, or their paths where two are named alike."""
    names = [record.name for record in records]
    if len(set(names)) == len(names):
        return names
    return [str(record.folder) for record in records]


def _charts(records: Sequence[Record]) -> Element:
    one = len(records) == 1
    names = [""] if one else _names(records)
    loss: list[Layer] = []
    for n, (name, record) in enumerate(zip(names, records, strict=True)):
        loss += _smoothed(record.curves["loss"], name, "training", n, band=one)
        loss += _validation(record.validation, name, 1 if one else n)
    return node(
        "div",
        chart("Loss, nats per token", loss),
        chart("Learning rate", _layers(records, names, "lr"), from_zero=True),
        chart("Gradient norm", _layers(records, names, "grad_norm"), may_be_log=True),
        chart("Tokens per second", _layers(records, names, "tokens_per_second"), from_zero=True),
        class_="charts",
    )


def _layers(records: Sequence[Record], names: Sequence[str], curve: str) -> list[Layer]:
    band = len(records) == 1
    layers: list[Layer] = []
    for n, (name, record) in enumerate(zip(names, records, strict=True)):
        found = record.curves[curve]
        if curve == "lr":  # it has no noise to smooth
            x, y = found.points()[:2]
            layers.append(Layer(name or "learning rate", n, x, y))
        else:
            layers += _smoothed(found, name, "", n, band=band)
    return layers


def _smoothed(curve: Curve, run: str, what: str, colour: int, *, band: bool) -> list[Layer]:
    """Return a curve smoothed and, below it, every value or the range of each few."""
    p = curve.points()
    if not p.step.size:
        return []
    raw = "each step" if curve.exact else "lowest to highest"
    below = [Layer(raw, colour, p.step, p.mean, band=(p.low, p.high), told=curve.exact)]
    name = f"{run}, {what}" if run and what == "training" else run or f"{what} smoothed".strip()
    return [*(below if band else []), Layer(name, colour, p.step, p.smooth)]


def _validation(curve: Curve, run: str, colour: int) -> list[Layer]:
    p = curve.points()
    name = f"{run}, validation" if run else "validation"
    return [Layer(name, colour, p.step, p.mean, "dots" if not run else "dashed")]
