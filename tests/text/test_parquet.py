import os
import subprocess
import sys
import tracemalloc

import pytest

from splitbit_kit.api.errors import SplitbitError, UsageError
from splitbit_kit.text import parquet
from splitbit_kit.text.corpus import documents, scan
from splitbit_kit.text.decoding import NotTextError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

TEXTS = ["one", "", "é日🎉\r\n\0", "x" * 5000]


def write(path, columns, **options):
    pq.write_table(pa.table(columns), path, **options)
    return path


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_rows_are_documents(tmp_path, kind, compression):
    column = pa.array(TEXTS * 50, pa.string() if pa.types.is_dictionary(kind) else kind).cast(kind)
    columns = {"text": column, "id": range(200)}
    path = write(tmp_path / "a.parquet", columns, compression=compression, row_group_size=70)
    corpus = scan([path])
    assert ["".join(document) for document in documents(corpus)] == TEXTS * 50
    (file,) = corpus.files
    assert (file.encoding, file.documents, file.size) == ("utf-8", 200, path.stat().st_size)


def test_the_text_is_what_counts_not_the_kind_of_file(tmp_path):
    write(tmp_path / "a.parquet", {"text": ["one", "two"]})
    (tmp_path / "b.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n', "utf-8")
    one, two = (scan([tmp_path / name]) for name in ("a.parquet", "b.jsonl"))
    assert one.sha256 == two.sha256
    assert scan([tmp_path]).files[0].sha256 == scan([tmp_path]).files[1].sha256


def test_another_column_may_be_named(tmp_path):
    path = write(tmp_path / "a.parquet", {"body": ["one"], "text": [1]})
    assert ["".join(d) for d in documents(scan([path], column="body"))] == ["one"]


@pytest.mark.parametrize(
    ("columns", "column", "said"),
    [
        ({"body": ["one"]}, "text", r"there is no column 'text'; it has body \(--text-column NAME"),
        ({"text": [1]}, "text", "column 'text' holds int64; text is expected"),
        ({"text": [["one"]]}, "text", "column 'text' holds list"),
        ({"text": ["one", None]}, "text", "a.parquet, row 2: no text in column 'text'"),
    ],
)
def test_a_column_that_will_not_do_is_an_error_in_a_folder_too(tmp_path, columns, column, said):
    write(tmp_path / "a.parquet", columns)
    (tmp_path / "b.txt").write_text("fine", "utf-8")
    with pytest.raises(SplitbitError, match=said) as caught:
        scan([tmp_path], column=column)
    assert not isinstance(caught.value, NotTextError | UsageError)


def test_two_columns_of_a_name_are_refused(tmp_path):
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["text", "text"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(SplitbitError, match="several columns 'text'"):
        scan([tmp_path / "a.parquet"])


def test_bytes_that_are_not_utf_8_are_named_by_row(tmp_path):
    write(tmp_path / "a.parquet", {"text": pa.array([b"fine", b"it\x92s"], pa.binary())})
    with pytest.raises(NotTextError, match="row 2: byte 2 of its text is not valid utf-8"):
        scan([tmp_path / "a.parquet"])


def test_a_damaged_file_is_named_wherever_it_is_cut(tmp_path):
    whole = write(tmp_path / "whole.parquet", {"text": TEXTS * 20}).read_bytes()
    path = tmp_path / "a.parquet"
    for size in (0, 1, 4, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(NotTextError, match=r"a\.parquet: damaged Parquet file \(") as caught:
            scan([path])
        assert "\n" not in str(caught.value)
    path.write_bytes(b"PAR1" + os.urandom(500) + b"\xff\xff\xff\x7fPAR1")
    with pytest.raises(NotTextError, match="damaged"):
        scan([path])


def test_in_a_folder_a_damaged_one_is_skipped(tmp_path):
    write(tmp_path / "a.parquet", {"text": ["one"]})
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    (tmp_path / "c.parquet.gz").write_bytes(b"no such kind")
    corpus = scan([tmp_path])
    assert [file.path for file in corpus.files] == [str(tmp_path / "a.parquet")]
    assert ["damaged" in each.reason for each in corpus.skipped] == [True, False]
    assert "unknown kind" in corpus.skipped[1].reason


def test_an_encoding_does_not_concern_it(tmp_path):
    path = write(tmp_path / "a.parquet", {"text": ["é"]})
    (file,) = scan([path], encoding="cp1252").files
    assert (file.encoding, file.characters) == ("utf-8", 1)


def test_how_far_it_is_is_told(tmp_path):
    path = write(tmp_path / "a.parquet", {"text": ["one"] * 1000}, row_group_size=100)
    shares = []
    assert len(list(parquet.rows(str(path), "text", shares.append))) == 1000
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(shares) >= 10


def test_memory_does_not_grow_with_a_row_group(tmp_path):
    def peak(rows):
        path = write(
            tmp_path / f"{rows}.parquet",
            {"text": [os.urandom(2000).hex() for _ in range(rows)]},
            row_group_size=rows,
            use_dictionary=False,
            data_page_size=1 << 16,
        )
        pool = pa.default_memory_pool()
        before, most = pool.bytes_allocated(), 0
        tracemalloc.start()
        for _ in parquet.rows(str(path), "text"):
            most = max(most, pool.bytes_allocated() - before)
        python = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most + python

    small, large = peak(1000), peak(8000)  # 4 and 32 MB in one row group
    assert large < small + (6 << 20)


def test_without_pyarrow_one_line_says_what_to_type(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    (tmp_path / "b.txt").write_text("fine", "utf-8")
    code = """
import sys
sys.modules["pyarrow"] = None
from splitbit_kit.__main__ import main
sys.exit(main(["data", "check", sys.argv[1]]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, "it is not passed over in silence"
    assert "pip install 'splitbit-kit[parquet]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
