"""The sections of the page, each made from a record; one that has nothing to tell is left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from splitbit_kit.quantities import counted, duration
from splitbit_kit.report.chart import figure, steps
from splitbit_kit.report.curve import Points
from splitbit_kit.report.markup import node
from splitbit_kit.report.record import CURVES, Record, Row, facts, number, text
from splitbit_kit.report.tables import (
    HEADS,
    how_many,
    number_or_dash,
    sections,
    sheets,
    shown,
    table,
    words,
)

LONGEST_SAMPLE = 4000
"""Characters of a sample that are shown."""

ROLLED = (14, 700)
"""A sample of more lines or characters gets a window of its own."""

ROWS = 20
"""of the table of training figures"""

# ---- what kind of run it is


def headline(record: Record, tag: str) -> Element:
    """Return the run's name, its state, and in one sentence what it is."""
    state = node("span", record.state, class_=f"state {record.state}")
    return node(
        "header",
        node("div", node(tag, record.name), state, class_="head"),
        node("p", lead(record), class_="lead"),
        class_="run" if tag == "h2" else None,
    )


def lead(record: Record) -> str:
    """Return what was trained on what."""
    c, start = record.config, record.start or {}
    model, train, data = c["model"], c["train"], c["data"]
    paths = data["paths"]
    corpus = "the built-in corpus" if not paths else ", ".join(map(str, paths[:3]))
    corpus += f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    parameters, tokens = number(start.get("parameters")), number(start.get("tokens"))
    size = f"{parameters:,.0f} parameters, " if parameters else ""
    amount = f" ({tokens:,.0f} training tokens)" if tokens else ""
    return (
        f"{c['preset']}: {size}{model['family']}, {counted(model['layers'], 'layer')}, width "
        f"{model['width']}. Trained on {corpus}{amount}, "
        f"{counted(train['steps'], 'step')} planned, "
        f"{counted(train['batch_size'] * train['grad_accum'], 'sequence')} of "
        f"{counted(train['seq_len'], 'token')} each."
    )


def notices(record: Record) -> list[Element]:
    """Return what a reader must know before believing the figures."""
    said = []
    if record.state == "failed" and record.end:
        said.append(
            node("p", f"The run failed: {text(record.end.get('reason'))}", class_="notice failed")
        )
    if record.state == "unfinished":
        newest = (
            f"; newest figures of {record.written:%Y-%m-%d %H:%M} UTC" if record.written else ""
        )
        line = f"No end is recorded: the run is still going on, or it was killed{newest}."
        said.append(node("p", line, class_="notice"))
    for name, curve in (*record.curves.items(), ("validation loss", record.validation)):
        if curve.lost_count:
            at = ", ".join(steps(step) for step in curve.lost)
            more = " and later" if curve.lost_count > len(curve.lost) else ""
            line = (
                f"The {words(name)} was not finite in {curve.lost_count:,} "
                f"step{'s' if curve.lost_count > 1 else ''} (step {at}{more}); not drawn."
            )
            said.append(node("p", line, class_="notice failed"))
    if record.damaged:
        line = (
            f"Lines of metrics.jsonl that could not be read, and are left out: {record.damaged:,}."
        )
        said.append(node("p", line, class_="notice"))
    return said


# ---- its figures


def tiles(record: Record) -> Element:
    """Return the closing statistics, or what is known so far of a run without an end."""
    return node(
        "dl",
        *(
            node(
                "div",
                node("dt", what),
                node("dd", value, node("small", note) if note else None),
            )
            for what, value, note in _statistics(record)
        ),
        class_="tiles",
    )


def _statistics(record: Record) -> list[tuple[str, str, str]]:
    """Return name, value and note of each."""
    s: Mapping[str, Any] = record.end or {}
    best, made = record.best, record.step
    planned = record.config["train"]["steps"]
    found: list[tuple[str, str, str]] = []
    if best is not None:
        found.append(
            ("Best validation loss", figure(float(best["loss"])), f"step {best['step']:,}")
        )
        for name, what in (("perplexity", "Perplexity"), ("bits_per_byte", "Bits per byte")):
            value = number(best.get(name))
            if value is not None and math.isfinite(value):
                found.append((what, figure(value), "of the best model"))
    final = number(s.get("final_loss"))
    if final is not None:
        measured = record.evaluations.rows()
        note = f"step {measured[-1]['step']:,}" if measured else ""
        found.append(("Final validation loss", figure(final), note))
    found.append(("Steps", f"{made:,}", f"of {planned:,}" if made != planned else "all"))
    if (epochs := number(s.get("epochs"))) is not None:
        found.append(("Epochs", f"{epochs:.2f}", "passes over the text"))
    seconds = number(s.get("total_time_s"))
    if seconds is not None:
        found.append(("Time", duration(seconds), "evaluations and samples included"))
    elif record.seconds:
        found.append(("Time", duration(record.seconds), "in training steps"))
    if (rate := number(s.get("tokens_per_second"))) is not None:
        found.append(("Tokens per second", figure(rate), "over the whole time"))
    return found


def copies(record: Record) -> list[Element]:
    """Return the quantised copies of the best model, and what they lost."""
    if not record.copies:
        return []
    heads = ["format", "file", "size", "validation loss", "above the float model's"]
    rows = [_copy(name, row) for name, row in record.copies.items()]
    return [node("h2", "Quantised copies"), table(heads, rows)]


def _copy(name: str, row: Row) -> list[str]:
    loss, whole = number(row.get("quantized_loss")), number(row.get("best_loss"))
    above = "–"
    if loss is not None and whole is not None and math.isfinite(loss - whole):
        above = f"{loss - whole:+.4f}"
    return [
        name,
        PurePath(text(row.get("quantized_model"))).name or "–",
        shown("size_bytes", row.get("quantized_bytes")),
        number_or_dash(row.get("quantized_loss")),
        above,
    ]


def evaluations(record: Record) -> list[Element]:
    """Return the evaluations, the best one among them."""
    rows = record.evaluations.rows()
    if not rows:
        return []
    if record.best is not None and all(row is not record.best for row in rows):
        rows = sorted([*rows, record.best], key=lambda row: int(row["step"]))
    names = ("loss", "perplexity", "bits_per_byte")
    cells = [
        [
            f"{row['step']:,}",
            *(number_or_dash(row.get(name)) for name in names),
            "best" if row is record.best else "",
        ]
        for row in rows
    ]
    heads = ["step", "validation loss", "perplexity", "bits per byte", ""]
    best = [n for n, row in enumerate(rows) if row is record.best]
    return [
        node("h2", "Evaluations"),
        *how_many(len(rows), record.evaluations.count, "evaluations"),
        table(heads, cells, strong=best),
    ]


def training_figures(record: Record) -> list[Element]:
    """Return some rows of what the curves show, for who does not see them."""
    found = {name: record.curves[name].points() for name in CURVES if len(record.curves[name])}
    if "loss" not in found:
        return []
    count = found["loss"].step.size
    places = np.unique(np.linspace(0, count - 1, min(ROWS, count)).round().astype(int))
    at = found["loss"].step[places]
    rows = [
        [steps(step), *(_near(found[name], step) if name in found else "–" for name in CURVES)]
        for step in at
    ]
    return [
        node(
            "details",
            node("summary", "The training curves in figures"),
            table(["step", *HEADS], rows),
        )
    ]


def _near(points: Points, step: float) -> str:
    return figure(float(points.mean[np.abs(points.step - step).argmin()]))


# ---- its texts


def samples(record: Record) -> list[Element]:
    """Return the texts that the model wrote on its way."""
    rows = record.samples.rows()
    if not rows:
        return []
    return [
        node("h2", "Samples over time"),
        *how_many(len(rows), record.samples.count, "samples"),
        node("div", *(_sample(row) for row in rows), class_="samples"),
    ]


def _sample(row: Row) -> Element:
    prompt, whole = text(row.get("prompt"))[:LONGEST_SAMPLE], text(row.get("text"))
    written, rest = whole[:LONGEST_SAMPLE], whole[LONGEST_SAMPLE:]
    title = f"After step {row['step']:,}"
    long = written.count("\n") > ROLLED[0] or len(written) > ROLLED[1]
    return node(
        "article",
        node("h3", title),
        node(
            "pre",
            node("b", prompt) if prompt else None,
            written or ("" if prompt else "(nothing)"),
            dir="auto",
            class_="long" if long else None,
            tabindex="0" if long else None,  # so that keys can scroll it
            role="region" if long else None,
            aria_label=title if long else None,
        ),
        node("p", f"and {len(rest):,} more characters", class_="note") if rest else None,
    )


# ---- where and how it was made


def machine(record: Record) -> list[Element]:
    """Return the machine of the newest start, what served the ops, and the versions."""
    if record.start is None:
        line = "This run did not record the machine that it was made on."
        return [node("h2", "Machine"), node("p", line)]
    found = [
        ("Machine", _in_order(facts(record.start, "machine"))),
        ("Compute", record.config["compute"]),
        ("Versions", facts(record.start, "versions")),
        ("Ops by backend", _by_origin(facts(record.start, "origins"))),
    ]
    return [
        node("h2", "Machine"),
        node("p", "As the run itself recorded it at its newest start.", class_="lead"),
        sheets(found),
    ]


def _in_order(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of a machine: what it is first, then what it has; nothing empty."""
    first = ("processor", "architecture", "system", "tier", "cores", "threads", "memory_bytes")
    names = [*first, *(name for name in found if name not in first)]
    return {n: found[n] for n in names if n in found and found[n] not in ("", None, [], {})}


def _by_origin(origins: Mapping[str, Any]) -> dict[str, str]:
    groups: dict[str, list[str]] = {}
    for op, origin in origins.items():
        groups.setdefault(text(origin), []).append(op)
    return {origin: ", ".join(ops) for origin, ops in groups.items()}


def history(record: Record) -> list[Element]:
    """Return the starts and ends of a run that has several."""
    rows = record.history.rows()
    if record.history.count < 3:
        return []
    cells = []
    for row in rows:
        began = row.get("kind") == "run"
        what = ("resumed" if row["step"] else "begun") if began else text(row.get("reason"))
        where = text(facts(row, "machine").get("processor"))
        when = text(row.get("time")).replace("T", " ").replace("+00:00", " UTC")
        cells.append([what, f"{row['step']:,}", when, where])
    return [
        node("h2", "History"),
        *how_many(len(rows), record.history.count, "starts and ends"),
        table(["", "step", "time", "processor"], cells, numbers=False),
    ]


def configuration(record: Record) -> list[Element]:
    """Return all of config.toml."""
    return [node("h2", "Configuration"), sheets(sections(record.config), str)]
