import gzip
import json
import os
from pathlib import Path

import pytest

from splitbit_kit.api.errors import SplitbitError, UsageError
from splitbit_kit.text.corpus import (
    BUILTIN,
    ContentHash,
    Refused,
    Skipped,
    TextFile,
    builtin_documents,
    documents,
    scan,
    survey,
)
from splitbit_kit.text.decoding import NotTextError


def texts(corpus):
    return ["".join(document) for document in documents(corpus)]


def names(corpus, folder):
    return [os.path.relpath(file.path, folder) for file in corpus.files]


def fill(folder, **files):
    folder.mkdir(exist_ok=True, parents=True)
    for name, content in files.items():
        path = folder / name.replace("_", ".")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def test_files_and_rows_are_documents(tmp_path):
    fill(
        tmp_path,
        a_txt="one",
        b_jsonl='{"text": "two"}\n{"text": "three"}\n',
        c_txt_gz=gzip.compress(b"four"),
        d_jsonl_gz=gzip.compress(b'{"text": "five"}'),
        e_TXT="six",
    )
    corpus = scan([tmp_path])
    assert texts(corpus) == ["one", "two", "three", "four", "five", "six"]
    assert texts(corpus) == ["one", "two", "three", "four", "five", "six"], "read again"
    assert corpus.skipped == ()
    first, second, third = corpus.files[:3]
    assert (first.encoding, first.size, first.documents, first.characters) == ("utf-8", 3, 1, 3)
    assert (second.documents, second.characters) == (2, 8)
    assert third.size == (tmp_path / "c.txt.gz").stat().st_size


def test_folders_are_walked_in_sorted_order_without_hidden_files(tmp_path):
    fill(tmp_path, b_txt="b", _hidden_txt="no")
    fill(tmp_path / "a", z_txt="az")
    fill(tmp_path / "c" / "d", x_txt="cdx")
    fill(tmp_path / ".git", g_txt="no")
    corpus = scan([tmp_path])
    assert names(corpus, tmp_path) == ["a/z.txt", "b.txt", "c/d/x.txt"]


def test_every_real_file_is_read_once_whatever_links_there_are(tmp_path):
    fill(tmp_path, outside_txt="outside")
    data = fill(tmp_path / "data", a_txt="a")
    elsewhere = fill(tmp_path / "elsewhere", e_txt="e")
    (data / "loop").symlink_to("..")
    (data / "self").symlink_to(".")
    (data / "b.txt").symlink_to("a.txt")
    os.link(data / "a.txt", data / "c.txt")
    (data / "x").symlink_to(elsewhere)
    (data / "y").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(data)
    corpus = scan([data, data / "a.txt", str(data), data / "x"])
    assert names(corpus, data) == ["a.txt", "x/e.txt"]
    why = {os.path.relpath(each.path, data): each.reason for each in corpus.skipped}
    assert why == {
        "b.txt": f"the same as {data / 'a.txt'}",
        "c.txt": f"the same as {data / 'a.txt'}",
        "loop": "a link to a folder that it is in",
        "self": "a link to a folder that it is in",
        "x/back": f"the same as {data}",
        "y": f"the same as {data / 'x'}",
        "a.txt": f"the same as {data / 'a.txt'}",
        "x": f"the same as {data / 'x'}",
    }
    assert all(each.harmless for each in corpus.skipped)
    assert scan([data], strict=True).sha256 == corpus.sha256


def test_members_that_are_not_text_are_skipped_with_a_reason(tmp_path):
    fill(
        tmp_path,
        ok_txt="ok",
        b_txt=b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
        c_txt="no mark here".encode("utf-16-le"),
        d_txt="with mark".encode("utf-16"),
        e_png=b"\x89PNG",
        f_txt_gz=b"not gzip",
    )
    (tmp_path / "g.txt").symlink_to("nowhere")
    os.mkfifo(tmp_path / "h.txt")
    corpus = scan([tmp_path])
    assert texts(corpus) == ["with mark", "ok"]
    assert corpus.files[0].encoding == "utf-16-le"
    reasons = {Path(entry.path).name: entry.reason for entry in corpus.skipped}
    assert list(reasons) == ["b.txt", "c.txt", "e.png", "f.txt.gz", "g.txt", "h.txt"]
    assert "byte 0" in reasons["b.txt"]
    assert "NUL" in reasons["c.txt"]
    assert "unknown kind" in reasons["e.png"]
    assert "gzip" in reasons["f.txt.gz"]
    assert "regular" in reasons["h.txt"]
    with pytest.raises(NotTextError, match=r"b\.txt: byte 0"):
        scan([tmp_path], strict=True)


def test_a_skipped_file_leaves_no_trace_in_the_hash(tmp_path):
    late = b'{"text": "a row"}\n' * 100_000 + b"\xff"  # found bad in the second piece
    clean = scan([fill(tmp_path / "clean", a_txt="a", c_txt="c")])
    mixed = scan([fill(tmp_path / "mixed", a_txt="a", b_jsonl=late, b_txt=late, c_txt="c")])
    assert len(mixed.skipped) == 2
    assert mixed.sha256 == clean.sha256


@pytest.mark.parametrize("content", [b"it\x92s ok", bytes(100)])
def test_a_named_file_that_is_not_text_is_an_error(tmp_path, content):
    fill(tmp_path, b_txt=content)
    with pytest.raises(NotTextError, match=r"b\.txt: "):
        scan([tmp_path / "b.txt"])


def test_an_encoding_may_be_given(tmp_path):
    fill(tmp_path, b_txt=b"it\x92s ok")
    corpus = scan([tmp_path / "b.txt"], encoding="windows-1252")
    assert texts(corpus) == ["it’s ok"]
    assert corpus.files[0].encoding == "cp1252"
    with pytest.raises(UsageError, match="encoding 'nope'"):
        scan([tmp_path], encoding="nope")


def test_bad_paths_are_usage_errors(tmp_path):
    fill(tmp_path, a_md="markdown")
    with pytest.raises(UsageError, match=r"gone: no such file"):
        scan([tmp_path / "gone"])
    with pytest.raises(UsageError, match=r"a\.md: unknown kind"):
        scan([tmp_path / "a.md"])
    with pytest.raises(SplitbitError, match=r"no text found.*1 skipped.*a\.md: unknown kind"):
        scan([tmp_path])
    with pytest.raises(SplitbitError, match="no path was given"):
        scan([])


def test_a_bad_row_is_an_error_even_in_a_folder(tmp_path):
    fill(tmp_path, a_jsonl='{"text": "a"}\n{"text": 1}\n')
    with pytest.raises(SplitbitError, match=r"a\.jsonl, line 2: ") as caught:
        scan([tmp_path])
    assert not isinstance(caught.value, NotTextError)


def test_an_unreadable_file_is_a_clear_error(tmp_path, monkeypatch):
    fill(tmp_path, a_txt="a")

    def refuse(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr("pathlib.Path.open", refuse)
    with pytest.raises(SplitbitError, match=r"a\.txt: Permission denied"):
        scan([tmp_path])


def test_the_builtin_corpus_is_pythons_help(tmp_path, monkeypatch):
    corpus = scan([BUILTIN])
    assert corpus.files[0].characters > 300_000
    assert texts(corpus) == ["".join(document) for document in builtin_documents()]
    assert corpus.files[0].documents > 50
    # A folder of that name is meant by ./builtin, and may stand beside it.
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / BUILTIN, a_txt="mine")
    assert texts(scan(["./builtin"])) == ["mine"]
    assert len(scan(["./builtin", BUILTIN]).files) == 2


def test_the_hash_is_of_documents_not_of_files_and_encodings(tmp_path):
    one = scan([fill(tmp_path / "one", a_txt="ab€", b_txt="c")])
    rows = "\n".join(json.dumps({"text": text}) for text in ("ab€", "c"))
    two = scan([fill(tmp_path / "two", rows_jsonl=rows.encode("utf-16"))])
    assert one.sha256 == two.sha256
    for number, others in enumerate((["ab", "€c"], ["c", "ab€"], ["ab€c"], ["ab€", "c", ""])):
        files = {f"{place}_txt": text for place, text in enumerate(others)}
        assert scan([fill(tmp_path / str(number), **files)]).sha256 != one.sha256


def test_the_hash_does_not_depend_on_pieces():
    def digest(*pieced):
        content = ContentHash()
        for pieces in pieced:
            assert "".join(content.through(pieces)) == "".join(pieces)
        return content.hexdigest()

    assert digest(["ab", "c"], ["d"]) == digest(["a", "", "bc"], ["d"]) == digest("abc", "d")
    assert digest("abc", "d") != digest("abcd") != digest("abcd", "")


def test_a_survey_goes_on_where_a_scan_stops(tmp_path):
    fill(tmp_path, a_txt="a", b_txt=b"\xff", c_jsonl='{"text": 1}', d_txt="d\r\n\0")
    entries = list(survey([tmp_path, tmp_path / "gone", tmp_path / "e.md", tmp_path / "b.txt"]))
    kinds = [type(entry) for entry in entries]
    assert kinds == [Refused, Refused, TextFile, Skipped, Refused, TextFile, Skipped]
    assert [Path(entry.path).name for entry in entries[:2]] == ["gone", "e.md"], (
        "before any reading"
    )
    assert (entries[5].returns, entries[5].nuls) == (1, 1)
    for entry in entries:
        if isinstance(entry, Refused):
            with pytest.raises(type(entry.error)):
                raise entry.error


def test_a_survey_of_nothing_says_so():
    (entry,) = survey([])
    assert isinstance(entry, Refused)
    assert "no path was given" in str(entry.error)


def test_a_files_own_hash_is_of_its_documents(tmp_path):
    fill(tmp_path, a_txt="same", b_jsonl='{"text": "same"}', c_txt="other", d_txt="same" * 2)
    a, b, c, d = scan([tmp_path]).files
    assert a.sha256 == b.sha256
    assert len({a.sha256, c.sha256, d.sha256}) == 3


def test_how_far_the_reading_is_is_told_over_all_files(tmp_path, monkeypatch):
    monkeypatch.setattr("splitbit_kit.text.decoding.READ_BYTES", 10)
    fill(tmp_path, a_txt="a" * 100, b_txt_gz=gzip.compress(b"b" * 100), c_png="skipped")
    heard = []
    corpus = scan([tmp_path], progress=lambda what, share: heard.append((what, share)))
    shares = [share for _, share in heard]
    assert {what for what, _ in heard} == {"reading text"}
    assert shares == sorted(shares)
    assert len(shares) > 20
    size = 100 + corpus.files[1].size + len("skipped")
    assert shares[10] == pytest.approx(100 / size)
    taken = []
    for document in documents(corpus, taken.append):
        list(document)
    assert taken == [n / 20 for n in range(1, 21)]
