"""The verb `report`."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from splitbit_kit.cli.options import CONTEXT, json_option, option
from splitbit_kit.cli.output import emit, people

JSON_KEYS = {
    "report": "the file that was written",
    "size_bytes": "its size",
    "runs": "the run folders, in the order of the page",
    "states": "of each: finished, interrupted, failed, or unfinished (going on, or killed)",
}


@click.command("report", context_settings=CONTEXT)
@click.argument(
    "runs",
    metavar="RUN...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
    panel="Runs",
    help="Run folders; several are drawn into the same charts.",
)
@option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    default_text="report.html in the run folder; with several runs it must be given",
    panel="Output",
    help="The file to write. An older report is replaced.",
)
@option(
    "--overwrite",
    is_flag=True,
    default_text="off",
    panel="Output",
    help="Replace FILE even if it is not a report.",
)
@json_option
def command(runs: tuple[Path, ...], output: Path | None, overwrite: bool, as_json: bool) -> None:
    """Write a page about a run: curves, samples over time, configuration, machine.

    The page is one HTML file that needs nothing else, no network either; it can be mailed, kept
    beside the model, or printed. It holds the configuration with the paths of the texts. A run that
    still goes on is shown as far as it is.

    \b
    Examples:
      splitbit-kit report runs/bard -o bard.html
      splitbit-kit report runs/bard runs/bard-wide -o both.html
    """
    from splitbit_kit.quantities import size
    from splitbit_kit.report.write import write

    done = write(runs, output, overwrite=overwrite)
    said = f"report: {done.path} ({size(done.size_bytes)}); open it in a browser"
    print(said, file=people(as_json))
    if as_json:
        values = {
            "report": str(done.path),
            "size_bytes": done.size_bytes,
            "runs": [str(record.folder) for record in done.records],
            "states": [record.state for record in done.records],
        }
        emit(JSON_KEYS, values)
