"""The verbs `tokenizer train`, `encode` and `decode`, and a training with what they made."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from commandline import TEXT, TINY, Run, process

from splitbit_kit.cli.tokenizer import decode, encode, train
from splitbit_kit.text.tokenizer import Tokenizer

ODD = "né 日本 🎉\r\n\0 <|endoftext|> end"


@pytest.fixture
def tok(run: Run) -> Path:
    """Return a tokenizer.json learnt from the small text."""
    assert run("tokenizer", "train", "text.txt", "--vocab-size", "300", "-o", "tok.json").code == 0
    return Path("tok.json")


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> object:
    """Return a function that puts bytes on standard input."""

    def put(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8"))

    return put


# ---- train


def test_what_is_learnt_is_what_a_training_would_learn(run: Run, tok: Path) -> None:
    expected = Tokenizer.train("bpe", [TEXT], 300)
    assert tok.read_bytes() == expected.content
    library = tokenizers.Tokenizer.from_file(str(tok))
    assert library.encode(TEXT).ids == expected.encode(TEXT).tolist()
    done = run("tokenizer", "train", "text.txt", "--kind", "char", "-o", "c.json", "--json")
    assert list(done.last) == list(train.JSON_KEYS)
    assert (done.last["kind"], done.last["documents"]) == ("char", 1)
    assert done.last["vocab_size"] == 257 + len(set(TEXT))
    assert done.last["sha256"] == Tokenizer.load("c.json").sha256


def test_merges_that_run_out_are_told(run: Run, place: Path) -> None:
    (place / "small.txt").write_text("春眠不覺曉 " * 60, "utf-8")
    done = run("tokenizer", "train", "small.txt", "--vocab-size", "30000", "-o", "t.json")
    size = Tokenizer.load("t.json").vocab_size
    assert size < 400
    assert f"vocabulary {size} of the 30,000 wanted" in done.out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--vocab-size", "100", "-o", "t.json"], "100 is too small .* least possible is 257"),
        (["--vocab-size", "-1", "-o", "t.json"], "tokenizer.vocab_size: -1 is below 0"),
        (["--kind", "word", "-o", "t.json"], "'word' is not one of bpe, byte, char"),
        (["-o", "gone/t.json"], "gone: no such folder"),
        (["-o", "folder"], "folder: a folder; name a file"),
        (["-o", "text.txt"], "text.txt: is there already; --overwrite replaces it"),
        ([], "Missing option '-o' / '--output'"),
        (["nosuch", "-o", "t.json"], "nosuch: no such file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_requests_write_nothing(run: Run, place: Path, argv: list[str], said: str) -> None:
    (place / "folder").mkdir()
    (place / "chinese.txt").write_text("春眠不覺曉，處處聞啼鳥。" * 40, "utf-8")
    before = sorted(place.iterdir())
    failed = run("tokenizer", "train", "chinese.txt", *argv)
    assert failed.code == 2
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(failed.error)
    assert sorted(place.iterdir()) == before
    assert (place / "text.txt").read_text("utf-8") == TEXT


def test_of_an_empty_text_nothing_is_learnt(run: Run, place: Path) -> None:
    (place / "empty.txt").touch()
    failed = run("tokenizer", "train", "empty.txt", "-o", "t.json")
    assert "empty.txt: the text is empty" in failed.error
    assert not (place / "t.json").exists()


def test_a_file_is_replaced_only_when_asked(run: Run, tok: Path) -> None:
    before = tok.read_bytes()
    assert run("tokenizer", "train", "text.txt", "--kind", "byte", "-o", tok).code == 2
    assert tok.read_bytes() == before
    assert (
        run("tokenizer", "train", "text.txt", "--kind", "byte", "-o", tok, "--overwrite").code == 0
    )
    assert Tokenizer.load(tok).kind == "byte"


# ---- encode and decode


@pytest.mark.parametrize("text", ["To be, or not to be", ODD, "", "-", " "])
def test_a_text_comes_back_from_its_ids(run: Run, tok: Path, text: str) -> None:
    done = run("tokenizer", "encode", tok, "--", text)
    assert done.code == 0, done.err
    ids = [int(word) for word in done.out.split()]
    assert ids == Tokenizer.load(tok).encode(text).tolist()
    shown = run("tokenizer", "encode", tok, "--json", "--", text).last
    assert list(shown) == list(encode.JSON_KEYS)
    assert (shown["ids"], shown["tokens"]) == (ids, len(ids))
    assert shown["bytes"] == len(text.encode())
    back = run("tokenizer", "decode", tok, "--json", *ids or ["[]"]).last
    assert list(back) == list(decode.JSON_KEYS)
    assert (back["text"], back["tokens"]) == (text, len(ids))


def test_standard_input_comes_back_to_the_byte_through_both(tok: Path, place: Path) -> None:
    text = (ODD + "\n" + TEXT).encode() * 3
    run = [sys.executable, "-m", "splitbit_kit", "tokenizer"]
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252"}  # which must not matter
    ids = subprocess.run([*run, "encode", tok], input=text, capture_output=True, env=environment)
    assert (ids.returncode, ids.stderr) == (0, b"")
    back = subprocess.run(
        [*run, "decode", tok], input=ids.stdout, capture_output=True, env=environment
    )
    assert (back.returncode, back.stderr) == (0, b"")
    assert back.stdout == text


def test_a_character_that_the_text_lacks_is_its_bytes(run: Run, place: Path) -> None:
    assert run("tokenizer", "train", "text.txt", "--kind", "char", "-o", "c.json").code == 0
    assert "é" not in TEXT
    assert run("tokenizer", "encode", "c.json", "é").out == "195 169\n"
    assert run("tokenizer", "decode", "c.json", "195", "169").out == "é"


def test_a_run_folder_stands_for_its_tokenizer(run: Run, trained: Path) -> None:
    assert run("tokenizer", "encode", trained, "ab").out == "97 98\n"


def test_files_are_encoded_as_a_training_does(run: Run, tok: Path, place: Path) -> None:
    folder = place / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("one", "utf-16")
    (folder / "b.txt").write_text("", "utf-8")
    (folder / "c.jsonl").write_text('{"text": "two"}\n{"text": "three"}\n', "utf-8")
    (folder / "d.png").write_bytes(b"x")
    done = run("tokenizer", "encode", tok, "--file", folder)
    assert "d.png: skipped (unknown kind of file" in done.err
    tokenizer = Tokenizer.load(tok)
    end = [tokenizer.end_of_text]
    words = ("one", "two", "three")
    expected = [i for word in words for i in (*tokenizer.encode(word).tolist(), *end)]
    assert [int(word) for word in done.out.split()] == expected
    assert run("tokenizer", "decode", tok, *done.out.split()).out == "onetwothree"


def test_ids_may_have_anything_between_that_a_list_has(run: Run, tok: Path) -> None:
    for argv in (["97", "98"], ["97,98"], ["[97, 98]"], ["[97,", "98]", ","]):
        assert run("tokenizer", "decode", tok, *argv).out == "ab", argv


@pytest.mark.parametrize("word", ["x", "-1", "300", "1.5", "٣", "9" * 30, "1e3", "0x1"])
def test_what_is_no_id_is_named(run: Run, tok: Path, word: str) -> None:
    failed = run("tokenizer", "decode", tok, "--", "97", word)
    assert failed.code == 2
    assert failed.error.endswith("is not an id; whole numbers from 0 to 299 are expected")


def test_pieces_of_standard_input_may_end_within_a_number(tok: Path) -> None:
    pieces = ["9", "7 9", "8", "\n", "1", "0", "0"]
    assert list(decode.numbers(pieces, 300)) == [97, 98, 100]
    with pytest.raises(Exception, match="is not an id"):
        list(decode.numbers(iter("9" * 1000), 300))


@pytest.mark.parametrize("block", [1, 2, 1 << 20])
def test_bad_bytes_on_standard_input_are_named(
    run: Run, tok: Path, pipe: object, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splitbit_kit.cli.tokenizer.shared._BLOCK", block)
    pipe("é€".encode())
    assert run("tokenizer", "encode", tok, "--json").last["bytes"] == 5
    pipe(b"ab\xe2\x82c")
    failed = run("tokenizer", "encode", tok)
    assert failed.code == 2
    assert failed.error == "error: standard input: byte 2 is not valid utf-8"


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["encode", "gone.json", "x"], 1, "gone.json: No such file"),
        (["encode", "text.txt", "x"], 1, "text.txt: not a tokenizer.json"),
        (["encode", ".", "x"], 1, "tokenizer.json: No such file"),
        (["encode", "tok.json", "x", "--file", "text.txt"], 2, "--file: the text stands as an arg"),
        (["encode", "tok.json", "--file", "gone"], 2, "gone: no such file or folder"),
        (["encode", "tok.json", "--file", "bad.txt"], 1, "bad.txt: byte 0 is not valid utf-8"),
        (["encode", "tok.json", "a\udc80b"], 1, "a lone surrogate"),
        (["decode", "gone.json", "1"], 1, "gone.json: No such file"),
        (["encode"], 2, "Missing argument 'TOKENIZER'"),
        (["enkode"], 2, "No such command 'enkode'"),
    ],
    ids=lambda value: " ".join(map(ascii, value)) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line(
    run: Run, tok: Path, place: Path, argv: list[str], code: int, said: str
) -> None:
    (place / "bad.txt").write_bytes(b"\xff")
    failed = run("tokenizer", *argv)
    assert failed.code == code
    assert said in failed.error


def test_a_terminal_is_not_waited_for(run: Run, tok: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stdin in (Terminal(), None):
        monkeypatch.setattr(sys, "stdin", stdin)
        failed = run("tokenizer", "encode", tok)
        assert failed.code == 2
        assert "text: there is none; write it as an argument, or pipe it in" in failed.error


def test_no_file_is_opened_in_the_encoding_of_the_system(place: Path) -> None:
    (place / "odd.txt").write_bytes(("zero\u200bwidth, caf\u00e9, \u5929\u5730\r\n" * 40).encode())
    python = [*(sys.executable, "-X", "warn_default_encoding", "-X", "utf8=0")]
    for argv in (
        ("data", "check", "odd.txt"),
        ("tokenizer", "train", "odd.txt", "--kind", "char", "-o", "t.json"),
        ("tokenizer", "encode", "t.json", "--file", "odd.txt"),
    ):
        done = subprocess.run(
            [*python, "-W", "error::EncodingWarning", "-m", "splitbit_kit", *argv],
            capture_output=True,
            env={**os.environ, "LC_ALL": "C"},
        )
        assert done.returncode == 0, done.stderr.decode()
    assert set("\u200b\u5929\u5730") <= set((place / "t.json").read_text("utf-8"))


def test_a_reader_that_goes_away_early_is_no_error(tok: Path, place: Path) -> None:
    (place / "long.txt").write_text(TEXT * 40, "utf-8")
    command = [sys.executable, "-m", "splitbit_kit", "tokenizer", "encode", str(tok)]
    done = subprocess.Popen(
        [*command, "--file", "long.txt"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert done.stdout is not None and done.stderr is not None
    done.stdout.read(1)
    done.stdout.close()
    assert done.stderr.read() == b""
    done.stderr.close()
    assert done.wait(60) == 141


# ---- a training with it


def test_a_training_uses_it_and_a_resume_the_runs_own_copy(run: Run, tok: Path) -> None:
    done = run("train", "text.txt", *TINY, "--tokenizer", tok, "--out", "r")
    assert done.code == 0, done.err
    assert "vocabulary 300 (bpe)" in done.out
    assert Path("r/tokenizer.json").read_bytes() == tok.read_bytes()
    written = Path("r/config.toml").read_text("utf-8")
    assert str(tok.resolve()) in written.replace("\\\\", "\\")
    assert 'kind = "bpe"' in written and "vocab_size = 300" in written
    again = run("train", "--tokenizer", tok, "--resume", "r", "--steps", "5")
    assert again.code == 0, again.err
    tok.unlink()
    again = run("train", "--resume", "r", "--steps", "6", "--json")
    assert again.code == 0, again.err
    assert again.last["total_steps"] == 6


def test_from_a_key_it_is_found_wherever_the_run_goes_on(run: Run, tok: Path) -> None:
    done = run("train", "text.txt", *TINY, "--set", f"tokenizer.file={tok}", "--out", "r")
    assert done.code == 0, done.err
    assert str(tok.resolve()) in Path("r/config.toml").read_text("utf-8").replace("\\\\", "\\")


def test_a_bad_tokenizer_stops_a_training_before_it_begins(run: Run, place: Path) -> None:
    for name, said in (("gone.json", "No such file"), ("text.txt", "not a tokenizer.json")):
        failed = run("train", "text.txt", *TINY, "--tokenizer", name, "--out", "r")
        assert failed.code == 1
        assert f"{name}: {said}" in failed.error
        assert not (place / "r").exists()


def test_help_of_the_group_names_its_verbs() -> None:
    shown = process("tokenizer", "--help")
    assert shown.returncode == 0
    assert all(f"  {verb} " in shown.stdout for verb in ("train", "encode", "decode"))
    assert process("tokenizer").returncode == 2
