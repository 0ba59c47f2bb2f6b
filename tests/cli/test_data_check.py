"""The verb `data check`: what it says of texts, and that a training sees the same."""

from __future__ import annotations

import codecs
import gzip
import json
import os
import sys
from pathlib import Path

import pytest
from commandline import TEXT, TINY, Run

from splitbit_kit.cli.data.check import JSON_KEYS
from splitbit_kit.text.corpus import scan


@pytest.fixture
def texts(place: Path) -> Path:
    """Return a folder with one file of every kind that somebody stumbled over."""
    folder = place / "texts"
    folder.mkdir()
    for name, content in {
        "a.txt": b"plain\n",
        "b.txt": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
        "bom.txt": codecs.BOM_UTF8 + "één".encode(),
        "cp1252.txt": b"it\x92s ok",
        "crlf.txt": b"one\r\ntwo\r\n",
        "empty.txt": b"",
        "late.txt": b"x" * (3 << 20) + b"\xff",
        "nul.txt": b"abc\x00def",
        "nuls.txt": b"\0\0\1\0" * 99,
        "picture.png": b"\x89PNG",
        "rows.jsonl": b'{"text": "one"}\n\n{"text": "two"}\n',
        "twin.txt.gz": gzip.compress(b"plain\n"),
        "utf16.txt": "wide".encode("utf-16"),
    }.items():
        (folder / name).write_bytes(content)
    (folder / "loop").symlink_to("..")
    (folder / "second.txt").symlink_to("a.txt")
    (folder / "broken.txt").symlink_to("nowhere")
    return folder


def test_every_file_is_named_with_its_encoding_or_the_reason_against_it(
    run: Run, texts: Path
) -> None:
    found = run("data", "check", texts, "--json")
    assert (found.code, list(found.last)) == (0, list(JSON_KEYS))
    files = {Path(file["path"]).name: file for file in found.last["files"]}
    assert list(files) == [
        *("a.txt", "bom.txt", "crlf.txt", "empty.txt", "nul.txt", "rows.jsonl"),
        *("twin.txt.gz", "utf16.txt"),
    ]
    assert files["bom.txt"]["marked"] and files["bom.txt"]["characters"] == 3
    assert files["utf16.txt"]["encoding"] in ("utf-16-le", "utf-16-be")
    assert (files["crlf.txt"]["returns"], files["nul.txt"]["nuls"]) == (2, 1)
    assert files["rows.jsonl"]["documents"] == 2
    assert files["twin.txt.gz"]["sha256"] == files["a.txt"]["sha256"]
    skipped = {Path(each["path"]).name: each for each in found.last["skipped"]}
    for name, reason in {
        "b.txt": "byte 0 is not valid utf-8",
        "broken.txt": "a link to nothing",
        "cp1252.txt": "byte 2 is not valid utf-8; .*--encoding cp1252",
        "late.txt": f"byte {3 << 20} is not valid",
        "nuls.txt": "binary: 75% of it is NUL",
        "picture.png": "unknown kind of file",
    }.items():
        assert not skipped[name]["harmless"]
        assert_matches(reason, skipped[name]["reason"])
    assert skipped["loop"]["harmless"] and "a folder that it is in" in skipped["loop"]["reason"]
    assert skipped["second.txt"]["reason"] == f"the same as {texts / 'a.txt'}"
    assert len(skipped) == 8
    assert found.last["errors"] == []


def assert_matches(pattern: str, text: str) -> None:
    with pytest.raises(AssertionError, match=pattern):
        raise AssertionError(text)


def test_what_people_read_has_the_same(run: Run, texts: Path) -> None:
    shown = run("data", "check", texts).out
    for part in (
        "bom.txt      utf-8",
        "has a byte order mark",
        "2 carriage returns, kept",
        "1 NUL, kept",
        "empty",
        f"the same text as {texts / 'a.txt'}",
        "skipped:",
        f"  {texts / 'picture.png'}: unknown kind of file",
        "8 files, 9 documents",
        "8 skipped",
    ):
        assert part in shown, part


def test_a_training_reads_what_the_check_says(run: Run, texts: Path) -> None:
    found = run("data", "check", texts, "--json").last
    corpus = scan([texts])
    assert found["sha256"] == corpus.sha256
    assert [file["path"] for file in found["files"]] == [file.path for file in corpus.files]
    assert found["characters"] == corpus.characters
    assert [each["path"] for each in found["skipped"]] == [each.path for each in corpus.skipped]


def test_strict_fails_where_text_is_lost_and_only_there(run: Run, texts: Path) -> None:
    failed = run("data", "check", texts, "--strict")
    assert failed.code == 1
    assert "--strict: 6 files skipped; " in failed.error and "b.txt: byte 0" in failed.error
    for name in ("b.txt", "broken.txt", "cp1252.txt", "late.txt", "nuls.txt", "picture.png"):
        (texts / name).unlink()
    assert run("data", "check", texts, "--strict").code == 0
    assert run("train", texts, "text.txt", *TINY, "--strict", "--steps", "1").code == 0


def test_all_that_would_stop_a_training_is_an_error_at_once(run: Run, texts: Path) -> None:
    (texts / "rows.jsonl").write_text('{"text": "one"}\n{"txt": "two"}\n', "utf-8")
    failed = run("data", "check", "nosuch", texts, texts / "b.txt", "--json")
    assert failed.code == 1
    assert "2 things would stop a training" in failed.error
    errors = [each["error"] for each in failed.last["errors"]]
    assert "nosuch: no such file or folder" in errors[0]
    assert (
        'rows.jsonl, line 2: expected a JSON object with a string in the field "text"' in errors[1]
    )
    assert "a.txt" in failed.out, "the others are shown all the same"


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["nosuch"], 2, "nosuch: no such file or folder"),
        (["text.txt", "--encoding", "klingon"], 2, "encoding 'klingon' is not known"),
        (["picture.png"], 2, "unknown kind of file; expected .txt, .jsonl, .gz of either, or"),
        (["bad.txt"], 1, "bad.txt: byte 2 is not valid utf-8"),
        (["empty"], 1, "empty: no text found"),
        (["nothing.txt"], 1, "nothing.txt: the text is empty"),
        (["pictures"], 1, "no text found"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_bad_input_is_one_line(
    run: Run, place: Path, argv: list[str], code: int, said: str
) -> None:
    (place / "picture.png").write_bytes(b"\x89PNG")
    (place / "bad.txt").write_bytes(b"it\x92s ok")
    (place / "empty").mkdir()
    (place / "nothing.txt").touch()
    (place / "pictures").mkdir()
    (place / "pictures" / "a.png").write_bytes(b"\x89PNG")
    failed = run("data", "check", *argv)
    assert failed.code == code
    assert said in failed.error


def test_an_encoding_may_be_given(run: Run, place: Path) -> None:
    (place / "old.txt").write_bytes(b"it\x92s ok")
    (file,) = run("data", "check", "old.txt", "--encoding", "CP1252", "--json").last["files"]
    assert (file["encoding"], file["characters"], file["marked"]) == ("cp1252", 7, False)


def test_another_field_of_the_rows_may_be_named(run: Run, place: Path) -> None:
    (place / "rows.jsonl").write_text(json.dumps({"body": "one"}) + "\n", "utf-8")
    assert run("data", "check", "rows.jsonl").code == 1
    found = run("data", "check", "rows.jsonl", "--text-column", "body", "--json").last
    assert (found["documents"], found["characters"]) == (1, 3)


def test_training_and_evaluation_take_the_field_that_is_named(run: Run, place: Path) -> None:
    (place / "rows.jsonl").write_text(json.dumps({"body": TEXT}) + "\n", "utf-8")
    argv = [*TINY, "--steps", "1", "--text-column", "body", "--out", "r"]
    assert run("train", "rows.jsonl", *argv).code == 0
    assert run("train", "--resume", "r", "--steps", "2").code == 0, "the run knows the field"
    wrong = run("eval", "r", "rows.jsonl", "--backend", "numpy")
    assert 'line 1: expected a JSON object with a string in the field "text"' in wrong.error
    done = run("eval", "r", "rows.jsonl", "--backend", "numpy", "--text-column", "body", "--json")
    assert done.last["tokens"] == len(TEXT.encode()), "end-of-text is predicted too"


def test_without_a_path_the_built_in_corpus_is_checked(run: Run) -> None:
    found = run("data", "check", "--json").last
    assert found["files"][0]["path"] == "builtin"
    assert found["characters"] > 300_000


@pytest.mark.skipif(sys.platform == "win32" or not os.geteuid(), reason="root reads everything")
def test_a_file_that_may_not_be_read_is_an_error(run: Run, texts: Path) -> None:
    (texts / "a.txt").chmod(0)
    failed = run("data", "check", texts)
    assert failed.code == 1
    assert "a.txt: Permission denied" in failed.error


def test_names_with_control_characters_do_not_move_the_cursor(run: Run, place: Path) -> None:
    (place / "od\x1b[2Jd.txt").write_text(TEXT, "utf-8")
    (place / "od\x1b[2Jd.png").write_bytes(b"x")
    shown = run("data", "check", ".")
    assert "\x1b" not in shown.out + shown.err


@pytest.mark.skipif(os.name == "nt", reason="no such names there")
def test_a_name_of_two_lines_is_shown_in_one(run: Run, place: Path) -> None:
    (place / "two\nlines.txt").write_text(TEXT, "utf-8")
    (place / "two\nlines.png").write_bytes(b"x")
    lines = run("data", "check", ".").out.splitlines()
    assert sum("two\N{REPLACEMENT CHARACTER}lines" in line for line in lines) == 2
    assert not any(line.startswith("lines") for line in lines)
