"""The verb `data check`."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import rich_click as click

from splitbit_kit.cli.options import CONTEXT, json_option, option, text_options, texts_argument
from splitbit_kit.cli.output import emit, one_line, people, table

if TYPE_CHECKING:
    from splitbit_kit.text.corpus import Refused, TextFile
    from splitbit_kit.text.files import Skipped

JSON_KEYS = {
    "files": "one object a file that would be read, with the keys path, encoding, marked (whether "
    "its byte order mark says so), size (bytes on the disk), documents, characters, nuls, returns "
    "(CR characters) and sha256 (of its text)",
    "skipped": "one object each, with the keys path, reason and harmless (true for another name of "
    "what is read anyway)",
    "errors": "one object for each thing that would stop a training, with the keys path and error",
    "documents": "how many there are in all",
    "characters": "how many there are in all",
    "size": "bytes of all files on the disk",
    "sha256": "of the whole text; the same text in other files or encodings has the same",
}


@click.command("check", context_settings=CONTEXT)
@texts_argument
@text_options
@option(
    "--strict",
    is_flag=True,
    default_text="off",
    panel="Text",
    help="Exit with 1 if something is skipped, other than a second name of the same file.",
)
@json_option
def command(
    texts: tuple[str, ...],
    encoding: str | None,
    text_column: str | None,
    strict: bool,
    as_json: bool,
) -> None:
    """Show what a training would read of texts, in which encoding, and what it would skip and why.

    Every file is read to its end, as a training reads it, so that a bad byte anywhere in it is
    found. Hidden members of folders are passed over. What would stop a training is an error: the
    exit code is not 0.

    \b
    Examples:
      splitbit-kit data check texts/
      splitbit-kit data check old.txt --encoding cp1252
      splitbit-kit data check texts/ --strict --json
    """
    from splitbit_kit.api import SplitbitError
    from splitbit_kit.cli.console import training_view
    from splitbit_kit.text.corpus import COLUMN, ContentHash, Refused, TextFile, survey
    from splitbit_kit.text.files import BUILTIN

    files: list[TextFile] = []
    skipped: list[Skipped] = []
    refused: list[Refused] = []
    content = ContentHash()
    view = training_view(sys.stderr)
    try:
        for entry in survey(
            texts or (BUILTIN,),
            encoding,
            column=text_column or COLUMN,
            content=content,
            progress=view.progress,
        ):
            match entry:
                case TextFile():
                    files.append(entry)
                case Refused():
                    refused.append(entry)
                case _:
                    skipped.append(entry)
    finally:
        view.close()
    if files and not any(file.characters for file in files):
        named = ", ".join(texts)
        refused.append(Refused(named, SplitbitError(f"{named}: the text is empty; use more text")))
    show_found(files, skipped, refused, as_json)
    if as_json:
        emit(
            JSON_KEYS,
            {
                "files": [asdict(file) for file in files],
                "skipped": [asdict(each) for each in skipped],
                "errors": [{"path": e.path, "error": str(e.error)} for e in refused],
                **totals(files),
                "sha256": content.hexdigest(),
            },
        )
    raise_if_bad(refused, [each for each in skipped if strict and not each.harmless])


def show_found(
    files: list[TextFile], skipped: list[Skipped], refused: list[Refused], as_json: bool
) -> None:
    """Write what was found, for people."""
    from splitbit_kit.quantities import counted

    stream = people(as_json)
    if files:
        heads = ("file", "encoding", "documents", "characters", "bytes", "remarks")
        table(heads, rows(files), as_json)
    for title, lines in (
        ("skipped:", [f"{each.path}: {each.reason}" for each in skipped]),
        ("errors:", [str(each.error) for each in refused] if len(refused) > 1 else []),
    ):
        if lines:
            shown = map(one_line, lines)
            print(f"\n{title}" if files else title, *shown, sep="\n  ", file=stream)
    if files:
        found = totals(files)
        print(
            f"\n{counted(len(files), 'file')}, {counted(found['documents'], 'document')}, "
            f"{counted(found['characters'], 'character')}, {found['size']:,} bytes; "
            f"{len(skipped):,} skipped",
            file=stream,
        )


def rows(files: list[TextFile]) -> list[tuple[str, ...]]:
    """Return a row of the table for each file."""
    first: dict[str, str] = {}  # hash of a text -> the file that has it
    return [
        (
            file.path,
            file.encoding,
            f"{file.documents:,}",
            f"{file.characters:,}",
            f"{file.size:,}",
            "; ".join(remarks(file, first.setdefault(file.sha256, file.path))),
        )
        for file in files
    ]


def remarks(file: TextFile, twin: str) -> list[str]:
    """Return what one may want to know of a file; twin: the first file of the same text."""
    from splitbit_kit.quantities import counted

    found = []
    if file.marked:
        found.append("has a byte order mark")
    if file.returns:
        found.append(f"{counted(file.returns, 'carriage return')}, kept")
    if file.nuls:
        found.append(f"{counted(file.nuls, 'NUL')}, kept")
    if not file.characters:
        found.append("empty")
    elif twin != file.path:
        found.append(f"the same text as {twin}")
    return found


def totals(files: list[TextFile]) -> dict[str, Any]:
    """Return the sums over all files."""
    sums: Counter[str] = Counter(documents=0, characters=0, size=0)
    for file in files:
        sums.update(documents=file.documents, characters=file.characters, size=file.size)
    return dict(sums)


def raise_if_bad(refused: list[Refused], skipped: list[Skipped]) -> None:
    """Raise what makes the check fail, in one line that names the first of it."""
    from splitbit_kit.api import SplitbitError
    from splitbit_kit.quantities import counted

    if len(refused) == 1:
        raise refused[0].error
    if refused:
        first = refused[0].error
        raise SplitbitError(f"{len(refused)} things would stop a training; the first: {first}")
    if skipped:
        first_of = f"{skipped[0].path}: {skipped[0].reason}"
        raise SplitbitError(f"--strict: {counted(len(skipped), 'file')} skipped; {first_of}")
