import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from splitbit_kit.api.errors import SplitbitError, UsageError
from splitbit_kit.text import tokens
from splitbit_kit.text.corpus import scan
from splitbit_kit.text.tokenizer import Tokenizer
from splitbit_kit.text.tokens import cache_folder, seen_ids, split, token_file

BYTE = Tokenizer.train("byte", [])
END = BYTE.end_of_text


@pytest.fixture
def corpus(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.txt").write_text("ab")
    (data / "b.txt").write_text("", "utf-8")
    (data / "c.jsonl").write_text('{"text": "c"}\n{"text": ""}\n{"text": "d"}\n', "utf-8")
    return scan([data])


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def test_end_of_text_follows_each_document_that_is_not_empty(corpus, cache):
    file = token_file(corpus, BYTE, cache)
    assert file.ids.tolist() == [97, 98, END, 99, END, 100, END]
    assert file.count == 7
    assert file.notice is None
    assert isinstance(file.ids, np.memmap)
    assert file.ids.dtype == np.uint16
    with pytest.raises(ValueError, match="read-only"):
        file.ids[0] = 1


def test_the_second_time_nothing_is_read_again(corpus, cache, monkeypatch):
    first = token_file(corpus, BYTE, cache)
    monkeypatch.setattr(tokens, "documents", None)
    again = token_file(corpus, BYTE, cache)
    assert again.path == first.path
    assert again.sha256 == first.sha256
    assert again.ids.tolist() == first.ids.tolist()
    assert list(cache.iterdir()) == [first.path], "and nothing else is left there"


def test_text_and_tokenizer_make_the_key(corpus, cache, tmp_path):
    (tmp_path / "other.txt").write_text("ab")
    other = scan([tmp_path / "other.txt"])
    char = Tokenizer.train("char", ["ab"])
    files = [token_file(c, t, cache) for c in (corpus, other) for t in (BYTE, char)]
    assert len({file.sha256 for file in files}) == 4
    assert len({file.path for file in files}) == 4


def test_a_large_vocabulary_takes_four_bytes(tmp_path, cache):
    many = "".join(map(chr, range(0x10000, 0x10000 + 65_280)))
    (tmp_path / "a.txt").write_text(many, encoding="utf-8")
    small, large = (Tokenizer.train("char", [many], size) for size in (65_536, 65_537))
    corpus = scan([tmp_path / "a.txt"])
    assert (small.vocab_size, large.vocab_size) == (65_536, 65_537)
    assert token_file(corpus, small, cache).ids.dtype == np.uint16
    file = token_file(corpus, large, cache)
    assert file.ids.dtype == np.uint32
    assert file.ids[-1] == 65_536
    assert large.decode(file.ids) == many


def test_no_tokens_are_no_tokens(tmp_path, cache):
    (tmp_path / "a.txt").write_text("", "utf-8")
    for _ in range(2):
        file = token_file(scan([tmp_path / "a.txt"]), BYTE, cache)
        assert file.count == 0


def damage_bit(data):
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    "damage",
    [
        damage_bit,
        lambda data: data[:-2],
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data + b"\0\0",
        lambda data: b"",
        lambda data: data[:100],
        lambda data: bytes(len(data)),
        lambda data: data.replace(b'"count": 7', b'"count": 8'),
        lambda data: data.replace(b'"sha256": "', b'"sha255": "'),
        lambda data: b"[]".ljust(tokens.HEADER_BYTES) + data[tokens.HEADER_BYTES :],
    ],
)
def test_a_damaged_file_is_made_anew(corpus, cache, damage):
    good = token_file(corpus, BYTE, cache)
    data = good.path.read_bytes()
    assert damage(data) != data
    good.path.write_bytes(damage(data))
    again = token_file(corpus, BYTE, cache)
    assert "made anew" in again.notice
    assert again.path.read_bytes() == data
    assert token_file(corpus, BYTE, cache).notice is None


def test_ids_beyond_the_vocabulary_are_damage_whatever_the_checksum(corpus, cache, monkeypatch):
    def wrong(self, pieces):
        yield np.array([999 for piece in pieces for _ in piece], np.int32)

    monkeypatch.setattr(Tokenizer, "encode_pieces", wrong)
    with pytest.raises(SplitbitError, match="not in the vocabulary"):
        token_file(corpus, BYTE, cache)


def test_a_folder_that_can_not_be_written_is_done_without(corpus, tmp_path):
    (tmp_path / "file").write_text("in the way", "utf-8")
    file = token_file(corpus, BYTE, tmp_path / "file" / "cache")
    assert file.path is None
    assert "temporary file" in file.notice
    assert file.ids.tolist() == [97, 98, END, 99, END, 100, END]
    assert not file.ids.flags.writeable


def test_no_room_anywhere_is_a_clear_error(corpus, cache, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(SplitbitError, match=r"No space left.*SPLITBIT_CACHE"):
        token_file(corpus, BYTE, cache)
    assert list(cache.iterdir()) == []


def test_text_that_changes_after_the_scan_is_refused(corpus, cache):
    with Path(corpus.files[0].path).open("a", encoding="utf-8") as file:
        file.write("more")
    with pytest.raises(SplitbitError, match="the text changed"):
        token_file(corpus, BYTE, cache)
    assert list(cache.iterdir()) == []


def test_the_environment_names_the_cache(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("SPLITBIT_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    assert token_file(corpus, BYTE).path.parent == tmp_path / "mine" / "tokens"
    monkeypatch.delenv("SPLITBIT_CACHE")
    assert "splitbit-kit" in str(cache_folder())


SCRIPT = """
import sys
from splitbit_kit.text.corpus import scan
from splitbit_kit.text.tokenizer import Tokenizer
from splitbit_kit.text.tokens import token_file
file = token_file(scan(["builtin"]), Tokenizer.train("byte", []))
print(file.count, file.sha256, file.path is not None, file.notice)
"""


def test_two_processes_at_once_both_succeed(tmp_path):
    environment = {**os.environ, "SPLITBIT_CACHE": str(tmp_path)}
    runs = [
        subprocess.Popen([sys.executable, "-c", SCRIPT], env=environment, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    outputs = {run.communicate()[0] for run in runs}
    assert [run.returncode for run in runs] == [0, 0]
    assert len(outputs) == 1
    assert b"True None" in outputs.pop()
    assert len(list((tmp_path / "tokens").iterdir())) == 1


def test_the_validation_split_is_the_last_share():
    ids = np.arange(1001)
    train, validation = split(ids)
    assert train.tolist() == list(range(900))
    assert validation.tolist() == list(range(900, 1001))
    assert [len(part) for part in split(ids, 0)] == [1001, 0]
    for share in (-0.1, 1, 1.5, float("nan")):
        with pytest.raises(UsageError, match="validation share"):
            split(ids, share)


def test_seen_ids_are_those_that_occur(monkeypatch):
    monkeypatch.setattr(tokens, "_CHUNK", 2)
    assert seen_ids(np.array([3, 1, 3, 0, 3], np.uint16), 5).tolist() == [1, 1, 0, 1, 0]
    assert not seen_ids(np.array([], np.uint16), 5).any()


def test_pages_that_were_let_go_come_again(corpus, cache):
    ids = token_file(corpus, BYTE, cache).ids
    assert seen_ids(ids, BYTE.vocab_size).sum() == 5
    assert seen_ids(ids[3:], BYTE.vocab_size).sum() == 3
    assert ids.tolist() == [97, 98, END, 99, END, 100, END]


def test_how_far_the_tokenising_is_is_told(corpus, cache):
    heard = []
    token_file(corpus, BYTE, cache, lambda what, share: heard.append((what, share)))
    assert heard == [
        ("tokenising", 0.5),
        ("tokenising", 0.75),
        ("tokenising", 0.75),
        ("tokenising", 1.0),
    ]
    heard.clear()
    token_file(corpus, BYTE, cache, lambda what, share: heard.append((what, share)))
    assert heard == [], "from the cache"
