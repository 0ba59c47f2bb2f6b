import json
import os

import pytest

from splitbit_kit.api.errors import SplitbitError
from splitbit_kit.text import tokenizer_file
from splitbit_kit.text.tokenizer_file import Vocabulary

VOCABULARIES = [
    Vocabulary("bpe", (("a", "b"), ("ab", "c"), ("b", "c"), ("a", "bc"))),
    Vocabulary("bpe"),
    Vocabulary("byte"),
    Vocabulary("char", characters="\0 <aé日🎉"),
    Vocabulary("char"),
]


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_what_is_written_is_read(vocabulary, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tokenizer_file.content(vocabulary))
    assert tokenizer_file.read(path) == vocabulary
    path.write_text(json.dumps(json.loads(path.read_bytes()), indent=2, sort_keys=True))
    assert tokenizer_file.read(path) == vocabulary, "however it is laid out"


def test_names_and_bytes_agree():
    vocabulary = VOCABULARIES[0]
    assert tokenizer_file.names(vocabulary)[256:] == ["ab", "abc", "bc", "<|endoftext|>"]
    assert tokenizer_file.byte_strings(vocabulary)[256:] == [b"ab", b"abc", b"bc", b""]
    assert tokenizer_file.byte_strings(vocabulary)[:256] == [bytes([b]) for b in range(256)]
    assert tokenizer_file.BYTE_CHARACTERS[ord(" ")] == "Ġ"


def changed(vocabulary, *path, value):
    content = tokenizer_file.document(vocabulary)
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return content


CHANGES = [
    (("normalizer",), {"type": "NFC"}, "normalizer"),
    (("normalizer",), {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}, "normal"),
    (("pre_tokenizer",), {"type": "Split", "pattern": {"Regex": "(a+)+$"}}, "not a tokenizer"),
    (("pre_tokenizer",), [], "not a tokenizer"),
    (("pre_tokenizer", "add_prefix_space"), True, "pre_tokenizer.add_prefix_space"),
    (("pre_tokenizer", "use_regex"), 1, "pre_tokenizer.use_regex"),
    (("post_processor",), {"type": "TemplateProcessing"}, "post_processor"),
    (("decoder",), None, "decoder"),
    (("added_tokens",), [], "added_tokens"),
    (("added_tokens", 0, "content"), "x", "added_tokens"),
    (("added_tokens", 0, "id"), 2**64, "added_tokens"),
    (("truncation",), {"max_length": 1}, "truncation"),
    (("version",), "2.0", "version"),
    (("chat_template",), "{{ 1 }}", "the key 'chat_template'"),
    (("x\ny" * 100,), 1, "the key"),
    (("model", "type"), "Unigram", "model.type"),
    (("model", "dropout"), 0.5, "model.dropout"),
    (("model", "vocab"), {}, "model.vocab"),
    (("model", "vocab"), [], "model.vocab"),
    (("model", "vocab", "a"), 3, "model.vocab"),
    (("model", "vocab", "ab"), -1, "model.vocab"),
    (("model", "vocab", "extra"), 999, "model.vocab"),
    (("model", "merges"), [["a", "zz"]], "merge 0 joins"),
    (("model", "merges"), [["a", "b"], ["a", "b"]], "stands twice"),
    (("model", "merges"), [["a", 1]], "merge 0 joins"),
    (("model", "merges"), [[["a"], "b"]], "not a tokenizer"),
    (("model", "merges"), ["a b"], "not a tokenizer"),
    (("model", "merges"), ["ab"], "added_tokens"),
    (("model", "merges"), None, "not a tokenizer"),
    (("model",), None, "not a tokenizer"),
]


@pytest.mark.parametrize(("path", "value", "why"), CHANGES)
def test_what_we_do_not_write_is_refused_by_name(tmp_path, path, value, why):
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(changed(VOCABULARIES[0], *path, value=value)), "utf-8")
    with pytest.raises(SplitbitError, match=why) as caught:
        tokenizer_file.read(file)
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert "\n" not in message
    assert len(message) < len(str(file)) + 200


def test_lone_surrogates_in_a_character_vocabulary_are_refused(tmp_path):
    file = tmp_path / "tokenizer.json"
    text = tokenizer_file.content(Vocabulary("char", characters="é")).decode()
    file.write_text(text.replace("é", "\\ud800"), "utf-8")
    with pytest.raises(SplitbitError, match="not a tokenizer"):
        tokenizer_file.read(file)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"3",
        b"\xff\xfe{}",
        b"[" * 200_000,
        b'{"a": 1, "a": 2}',
        b"9" * 6000,
        b"version https://git-lfs.github.com/spec/v1\n",
    ],
)
def test_what_is_no_tokenizer_is_refused_in_one_line(tmp_path, content):
    file = tmp_path / "tokenizer.json"
    file.write_bytes(content)
    with pytest.raises(SplitbitError, match=r"tokenizer\.json: not a tokenizer") as caught:
        tokenizer_file.read(file)
    assert "\n" not in str(caught.value)


def test_a_key_that_stands_twice_is_refused(tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_bytes(tokenizer_file.content(VOCABULARIES[0])[:-1] + b',"version":"1.0"}')
    with pytest.raises(SplitbitError, match="the key 'version' stands twice"):
        tokenizer_file.read(file)


def test_a_file_cut_short_anywhere_is_refused(tmp_path):
    file = tmp_path / "tokenizer.json"
    content = tokenizer_file.content(VOCABULARIES[0])
    for length in range(0, len(content), 37):
        file.write_bytes(content[:length])
        with pytest.raises(SplitbitError):
            tokenizer_file.read(file)


def test_only_a_regular_file_of_a_sane_size_is_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(SplitbitError, match="not a regular file"):
        tokenizer_file.read(tmp_path / "pipe")
    with pytest.raises(SplitbitError, match="not a regular file"):
        tokenizer_file.read(tmp_path)
    with pytest.raises(SplitbitError, match="1,099,511,627,776 bytes"):
        tokenizer_file.read(tmp_path / "sparse")
    with pytest.raises(SplitbitError, match="No such file"):
        tokenizer_file.read(tmp_path / "gone")
