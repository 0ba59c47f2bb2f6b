"""Curves as inline SVG that fits any width: places in per cent, so that no text is ever scaled."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree.ElementTree import Element

import numpy as np

from splitbit_kit.report.curve import Floats
from splitbit_kit.report.markup import node

COLOURS = 6
"""How many the style sheet has, and so how many runs fit on one page."""

DECADES_FOR_LOG = 1
"""A vertical axis that spans more than so many powers of ten is logarithmic, if it may be."""

FULL = 1000  # units of the inner drawing in both directions


@dataclass(frozen=True)
class Layer:
    """One thing drawn in a chart. `low` and `high` make it a band around its curve."""

    name: str
    colour: int
    x: Floats  # (B,), rising
    y: Floats  # (B,)
    style: Literal["line", "dashed", "dots"] = "line"
    band: tuple[Floats, Floats] | None = None  # (B,) each
    told: bool = True  # whether its values are read out under the pointer


@dataclass(frozen=True)
class Axis:
    """From values to places: 0 is the axis's low end, 1 its high end."""

    low: float
    high: float
    log: bool = False

    def at(self, values: Floats) -> Floats:
        """Return the place of each value."""
        low, high = self.low, self.high
        if self.log:
            values, low, high = np.log10(values), math.log10(low), math.log10(high)
        placed: Floats = (values - low) / (high - low)
        return placed

    def ticks(self, most: int = 5) -> list[float]:
        """Return round values within the axis."""
        if self.log:
            return _powers(self.low, self.high, most)
        step = _round_step((self.high - self.low) / most)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [n * step for n in range(first, last + 1)]


def chart(
    title: str, layers: Sequence[Layer], *, from_zero: bool = False, may_be_log: bool = False
) -> Element:
    """Return a figure of layers over steps. Without any values it says so instead."""
    layers = [layer for layer in layers if layer.x.size]
    if not layers:
        return node("figure", _caption(title), node("p", "No values.", class_="none"))
    x, y = axes(layers, from_zero=from_zero, may_be_log=may_be_log)
    inner = node(
        "svg",
        *(path for layer in layers for path in _paths(layer, x, y)),
        viewBox=f"0 0 {FULL} {FULL}",
        preserveAspectRatio="none",
        width="100%",
        height="100%",
    )
    drawing = node(
        "svg",
        node("title", title),
        node("desc", description(layers)),
        *_rules(x, y),
        inner,
        *(dot for layer in layers for dot in _dots(layer, x, y)),
        class_="chart",
        role="img",
        data_from=f"{x.low:g}",
        data_to=f"{x.high:g}",
        data_layers=_told(layers),
    )
    return node("figure", _caption(title, "logarithmic" if y.log else ""), _legend(layers), drawing)


def axes(layers: Sequence[Layer], *, from_zero: bool, may_be_log: bool) -> tuple[Axis, Axis]:
    """Return the axes on which all layers are wholly seen."""
    steps = [bound for layer in layers for bound in (layer.x[0], layer.x[-1])]
    lows = min(float(np.min(layer.band[0] if layer.band else layer.y)) for layer in layers)
    highs = max(float(np.max(layer.band[1] if layer.band else layer.y)) for layer in layers)
    first, last = float(min(steps)), float(max(steps))
    x = Axis(min(first, 0.0), max(last, 1.0))
    if may_be_log and lows > 0 and math.log10(highs) - math.log10(lows) > DECADES_FOR_LOG:
        return x, Axis(lows / 1.2, highs * 1.2, log=True)
    low = min(lows, 0.0) if from_zero else lows
    room = (highs - low) * 0.06 or abs(highs) * 0.1 or 1.0
    return x, Axis(low if from_zero and low == 0 else low - room, highs + room)


def description(layers: Sequence[Layer]) -> str:
    """Return in words what the curves show, for who does not see them."""
    said = []
    for layer in layers:
        if not layer.told:
            continue
        least = int(np.argmin(layer.y))
        said.append(
            f"{layer.name}: {figure(layer.y[0])} at step {steps(layer.x[0])}, "
            f"{figure(layer.y[-1])} at step {steps(layer.x[-1])}, "
            f"lowest {figure(layer.y[least])} at step {steps(layer.x[least])}."
        )
    return " ".join(said)


def figure(value: float) -> str:
    """Return a value as people read it, to four digits."""
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}" if size < 1e9 else f"{value:.3g}"
    if size >= 1 or value == 0:
        return f"{value:.4g}" if size < 1 or value == round(value) else f"{value:#.4g}"
    return f"{value:.3g}" if size < 1e-3 else f"{value:.4f}".rstrip("0")


def steps(value: float) -> str:
    """Return a step; a bucket's middle may lie between two."""
    return f"{value:,.0f}"


# ---- parts


def _caption(title: str, note: str = "") -> Element:
    parts = [node("span", title, class_="title")]
    if note:
        parts.append(node("span", note, class_="note"))
    return node("figcaption", *parts)


def _legend(layers: Sequence[Layer]) -> Element | None:
    if len(layers) < 2:
        return None
    return node(
        "ul",
        *(
            node(
                "li",
                node("span", class_=f"key {'raw' if layer.band else layer.style}"),
                layer.name,
                class_=f"c{layer.colour}",
            )
            for layer in layers
        ),
        class_="legend",
    )


def _rules(x: Axis, y: Axis) -> list[Element]:
    """Return grid lines and their numbers."""
    made = []
    for value in y.ticks():
        at = _percent(1 - y.at(np.array(value)))
        made.append(node("line", x1="0", x2="100%", y1=at, y2=at, class_="grid"))
        made.append(node("text", _tick(value), x="0", y=at, dx="-8", dy=".33em", class_="y"))
    for value in x.ticks():
        if value == round(value):
            at = _percent(x.at(np.array(value)))
            made.append(node("line", x1=at, x2=at, y1="100%", y2="100%", class_="tick"))
            made.append(node("text", _tick(value), x=at, y="100%", dy="1.5em", class_="x"))
    return made


def _paths(layer: Layer, x: Axis, y: Axis) -> list[Element]:
    across = x.at(layer.x) * FULL
    made = []
    if layer.band:
        low, high = ((1 - y.at(edge)) * FULL for edge in layer.band)
        outline = _line(np.append(across, across[::-1]), np.append(high, low[::-1])) + "Z"
        made.append(node("path", d=outline, class_=f"band c{layer.colour}"))
    elif layer.x.size > 1:
        line = _line(across, (1 - y.at(layer.y)) * FULL)
        made.append(node("path", d=line, class_=f"{layer.style} c{layer.colour}"))
    return made


def _dots(layer: Layer, x: Axis, y: Axis) -> list[Element]:
    """Return the points of a curve of few, or of one that has no line."""
    if layer.band or not (layer.x.size == 1 or (layer.style == "dots" and layer.x.size <= 60)):
        return []
    return [
        node(
            "circle",
            node("title", f"{layer.name} at step {steps(step)}: {figure(value)}"),
            cx=_percent(x.at(step)),
            cy=_percent(1 - y.at(value)),
            r="3.5",
            class_=f"dot c{layer.colour}",
        )
        for step, value in zip(layer.x, layer.y, strict=True)
    ]


def _line(across: Floats, down: Floats) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(across, down, strict=True))


def _told(layers: Sequence[Layer]) -> str:
    """Return what the script reads out, as JSON."""
    return json.dumps(
        [
            {
                "name": layer.name,
                "x": [round(float(v), 1) for v in layer.x],
                "y": [figure(float(v)) for v in layer.y],
            }
            for layer in layers
            if layer.told
        ],
        separators=(",", ":"),
    )


def _percent(place: Floats | float) -> str:
    return f"{float(place) * 100:.2f}%"


def _tick(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}".replace("e-0", "e-")


def _round_step(least: float) -> float:
    """Return the smallest of 1, 2, 2.5, 5 times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= least * (1 - 1e-9))


def _powers(low: float, high: float, most: int) -> list[float]:
    """Return powers of ten, not too many; with twice and five times them where they are few."""
    least, greatest = math.log10(low), math.log10(high)
    if greatest - least <= 2:
        decades = range(math.floor(least), math.ceil(greatest) + 1)
        found = [times * 10.0**n for n in decades for times in (1, 2, 5)]
        return [value for value in found if low <= value <= high]
    first, last = math.ceil(least), math.floor(greatest)
    return [10.0**n for n in range(first, last + 1, -(-(last - first + 1) // most))]
