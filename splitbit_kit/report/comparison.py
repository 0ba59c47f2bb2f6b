"""The sections of the page that hold several runs against each other."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from splitbit_kit.quantities import duration
from splitbit_kit.report.chart import figure
from splitbit_kit.report.markup import node
from splitbit_kit.report.record import Record, number
from splitbit_kit.report.tables import number_or_dash, sections, shown, table


def comparison(records: Sequence[Record], names: Sequence[str]) -> Element:
    """Return a table with a column for each run."""
    columns = []
    for record in records:
        s = record.end or {}
        best = "–" if record.best is None else figure(float(record.best["loss"]))
        seconds = number(s.get("total_time_s"))
        columns.append(
            [
                record.state,
                f"{record.step:,}",
                best,
                number_or_dash(s.get("final_loss")),
                "–" if seconds is None else duration(seconds),
                number_or_dash(s.get("tokens_per_second")),
            ]
        )
    heads = ["state", "steps", "best loss", "final loss", "time", "tokens per second"]
    return table(["", *names], zip(heads, *columns, strict=True))


def differences(records: Sequence[Record], names: Sequence[str]) -> Element:
    """Return the keys in which the runs' configurations differ."""
    flat = [
        {
            f"{section}.{key}" if section != "general" else key: value
            for section, keys in sections(record.config)
            for key, value in keys.items()
        }
        for record in records
    ]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    rows = []
    for key in keys:
        values = [shown(key, one[key]) if key in one else "–" for one in flat]
        if len(set(values)) > 1:
            rows.append([key, *values])
    if not rows:
        return node("p", "Nothing: they are the same.")
    return table(["", *names], rows, numbers=False)
