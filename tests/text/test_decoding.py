import codecs
import gzip
import os

import pytest

from splitbit_kit.api.errors import SplitbitError, UsageError
from splitbit_kit.text import decoding
from splitbit_kit.text.decoding import NotTextError


def text_of(path, encoding=None):
    path = str(path)
    return "".join(decoding.pieces(path, decoding.detect(path, encoding).name))


@pytest.fixture(params=[1, 2, 3, 5, 1 << 20])
def read_bytes(request, monkeypatch):
    """Pieces so small that every character of several bytes is cut somewhere."""
    monkeypatch.setattr(decoding, "READ_BYTES", request.param)


SAMPLE = "a\r\nä€\u200b𝔘\u2028 end\n"


@pytest.mark.usefixtures("read_bytes")
@pytest.mark.parametrize(
    ("mark", "encoding"),
    [
        (b"", "utf-8"),
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (codecs.BOM_UTF32_LE, "utf-32-le"),
        (codecs.BOM_UTF32_BE, "utf-32-be"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_the_mark_decides_and_line_ends_stay(tmp_path, mark, encoding, zipped):
    data = mark + SAMPLE.encode(encoding)
    path = tmp_path / ("a.txt.gz" if zipped else "a.txt")
    path.write_bytes(gzip.compress(data) if zipped else data)
    assert decoding.detect(str(path)) == (encoding, bool(mark))
    assert text_of(path) == SAMPLE


@pytest.mark.usefixtures("read_bytes")
def test_an_encoding_given_holds_where_there_is_no_mark(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"it\x92s ok")
    assert text_of(path, "cp1252") == "it’s ok"
    path.write_bytes("日本".encode("shift_jis"))
    assert text_of(path, "shift_jis") == "日本"
    path.write_bytes(codecs.BOM_UTF8 + b"it")
    assert decoding.detect(str(path), "cp1252") == ("utf-8", True)
    path.write_bytes("plain".encode("utf-16-le"))
    assert text_of(path, "utf-16-le") == "plain"


@pytest.mark.usefixtures("read_bytes")
@pytest.mark.parametrize(
    ("data", "offset"),
    [(b"it\x92s ok", 2), ("€€".encode() + b"\xe2\x82", 6), (b"ab\xe2\x82c", 2), (b"\xff", 0)],
)
def test_bad_bytes_are_named_by_file_and_offset(tmp_path, data, offset):
    path = tmp_path / "bad.txt"
    path.write_bytes(data)
    with pytest.raises(NotTextError, match=rf"bad\.txt: byte {offset} .*--encoding cp1252"):
        text_of(path)


@pytest.mark.usefixtures("read_bytes")
@pytest.mark.parametrize(
    ("encoding", "data", "offset"),
    [("shift_jis", b"\x93\xfa\x93", 2), ("gb18030", b"ab\xff", 2), ("cp1252", b"abc\x81", 3)],
)
def test_bad_bytes_of_an_encoding_given_are_named_too(tmp_path, encoding, data, offset):
    path = tmp_path / "bad.txt"
    path.write_bytes(data)
    with pytest.raises(NotTextError, match=f"byte {offset} is not valid {encoding}.*utf-8"):
        text_of(path, encoding)


def test_lone_surrogates_from_an_odd_codec_are_refused(tmp_path):
    path = tmp_path / "bad.txt"
    path.write_bytes(b"ab\\ud800")
    with pytest.raises(NotTextError, match="byte 2 is not valid unicode-escape"):
        text_of(path, decoding.checked_encoding("unicode_escape"))


def test_bad_bytes_of_utf_16_are_named_too(tmp_path):
    path = tmp_path / "bad.txt"
    path.write_bytes(codecs.BOM_UTF16_LE + "ab".encode("utf-16-le") + b"\x00\xdc")
    with pytest.raises(NotTextError, match="byte 6 is not valid utf-16-le"):
        text_of(path)


def test_a_few_nuls_are_text_and_many_are_not(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"abc\x00def")
    assert text_of(path) == "abc\0def"
    path.write_bytes("plain words".encode("utf-16-le"))
    with pytest.raises(NotTextError, match=r"50% of it is NUL.*utf-16-le"):
        text_of(path)


def test_encodings_are_checked_by_name():
    assert decoding.checked_encoding("CP1252") == "cp1252"
    for name in ("no-such", "base64", "rot13", "", "a\0b", "undefined"):
        with pytest.raises(UsageError, match="encoding"):
            decoding.checked_encoding(name)


def test_pieces_stay_small_on_a_line_without_end(tmp_path):
    path = tmp_path / "long.txt.gz"
    path.write_bytes(gzip.compress(b"x" * (3 << 20)))
    sizes = [len(piece) for piece in decoding.pieces(str(path), "utf-8")]
    assert sum(sizes) == 3 << 20
    assert max(sizes) <= decoding.READ_BYTES


def test_damaged_gzip_is_named(tmp_path):
    whole = gzip.compress(os.urandom(1000).hex().encode())
    path = tmp_path / "a.txt.gz"
    for data in (whole[: len(whole) // 2], whole[:-1], b"plain text", whole[:-8] + bytes(8)):
        path.write_bytes(data)
        with pytest.raises(NotTextError, match=r"a\.txt\.gz: damaged gzip"):
            text_of(path)


def test_what_is_not_a_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    for path in (tmp_path / "pipe.txt", tmp_path):
        with pytest.raises(NotTextError, match="not a regular file"):
            decoding.detect(str(path))
    with pytest.raises(SplitbitError, match=r"gone\.txt: no such file"):
        decoding.detect(str(tmp_path / "gone.txt"))


def rows(text, size=3):
    return list(decoding.rows("f.jsonl", (text[i : i + size] for i in range(0, len(text), size))))


def test_rows_are_the_texts_however_the_file_is_pieced():
    text = '{"text": "a\\nb"}\r\n\n  \n{"id": 1, "text": "\u2028"}\n{"text": ""}'
    for size in range(1, len(text) + 1):
        assert rows(text, size) == ["a\nb", "\u2028", ""]
    assert rows("") == []


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "expected"),
        ('"text"', "expected a JSON object"),
        ("[1]", "expected a JSON object"),
        ('{"txt": ""}', 'field "text"'),
        ('{"text": 1}', 'field "text"'),
        ('{"text": null}', 'field "text"'),
        ('{"text": "\\ud800"}', "lone surrogate"),
        ('{"text": ' + "9" * 5000 + "}", "expected"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(row, why):
    with pytest.raises(SplitbitError, match=rf"^f\.jsonl, line 3: .*{why}") as caught:
        rows('{"text": "fine"}\n\n' + row, 1 << 20)
    assert "\n" not in str(caught.value)


def test_a_row_too_long_is_refused_while_it_is_read(monkeypatch):
    monkeypatch.setattr(decoding, "LONGEST_ROW", 100)
    taken = []
    endless = (taken.append(1) or "x" * 30 for _ in range(1000))
    with pytest.raises(SplitbitError, match="row of more than 100 characters"):
        list(decoding.rows("f.jsonl", endless))
    assert len(taken) == 4
