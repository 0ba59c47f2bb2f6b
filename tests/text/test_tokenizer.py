import hashlib
import os
import random
import subprocess
import sys
from pydoc_data.topics import topics

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from splitbit_kit.api.errors import SplitbitError, UsageError
from splitbit_kit.text import tokenizer as tokenizer_module
from splitbit_kit.text.chunks import LONGEST_CHUNK
from splitbit_kit.text.tokenizer import Tokenizer
from splitbit_kit.text.tokenizer_file import KINDS

CORPUS = "\n".join(topics[name] for name in sorted(topics))[:60_000]
TRAINED = {kind: Tokenizer.train(kind, [CORPUS], 600) for kind in KINDS}
AWKWARD = [
    "",
    " ",
    "abc\0def",
    "a\r\nb\rc\n",
    "zero\u200bwidth",
    "  leading and trailing  ",
    "日本語 🎉 é e\u0301 \U0010ffff \ufffd \ufeff",
    "<|endoftext|>",
    "<0x41><0x0A>",
    "'s 'LL don't ½²",
    "\x1c\x1d\x85\xa0\u2028\u3000",
]
any_text = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(AWKWARD)


@pytest.fixture(params=KINDS)
def tokenizer(request):
    return TRAINED[request.param]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(text=any_text)
def test_any_text_comes_back(kind, text):
    tokenizer = TRAINED[kind]
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32
    assert tokenizer.decode(ids) == text
    assert tokenizer.end_of_text not in ids
    assert tokenizer.byte_lengths[ids].sum() == len(text.encode())


@pytest.mark.parametrize("text", AWKWARD)
def test_awkward_text_comes_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_whole_corpus_comes_back_and_gets_shorter():
    assert all(TRAINED[kind].decode(TRAINED[kind].encode(CORPUS)) == CORPUS for kind in KINDS)
    assert len(TRAINED["bpe"].encode(CORPUS)) < 0.6 * len(TRAINED["byte"].encode(CORPUS))


def test_lone_surrogates_are_refused(tokenizer):
    for text in ("\ud800", "a\udfffb"):
        with pytest.raises(SplitbitError, match=r"lone surrogate \(U\+D"):
            tokenizer.encode(text)
        with pytest.raises(SplitbitError, match="lone surrogate"):
            Tokenizer.train(tokenizer.kind if tokenizer.kind != "byte" else "bpe", [text])


def test_end_of_text_is_an_id_and_its_literal_is_text(tokenizer):
    literal = "a<|endoftext|>b"
    ids = tokenizer.encode(literal)
    assert tokenizer.end_of_text == tokenizer.vocab_size - 1
    assert tokenizer.end_of_text not in ids
    assert tokenizer.decode([*ids, tokenizer.end_of_text, *tokenizer.encode("c")]) == literal + "c"
    assert tokenizer.byte_lengths[tokenizer.end_of_text] == 0


def test_training_on_the_literal_does_not_make_it_a_token():
    tokenizer = Tokenizer.train("bpe", ["<|endoftext|>" * 500, "<|endoftext|> " * 500], 400)
    assert tokenizer.end_of_text not in tokenizer.encode("<|endoftext|>")


def test_ids_of_bytes_are_their_values(tokenizer):
    for byte in range(256):
        assert tokenizer.byte_lengths[byte] == 1
    assert tokenizer.decode([0xE2, 0x82, 0xAC]) == "€"
    assert tokenizer.decode([0xE2, 0x82]) == "\ufffd"


def test_ids_outside_the_vocabulary_are_refused(tokenizer):
    for number in (-1, tokenizer.vocab_size):
        with pytest.raises(SplitbitError, match=f"id {number} is not in the vocabulary"):
            tokenizer.decode([number])
        with pytest.raises(SplitbitError, match=f"id {number} is not in the vocabulary"):
            tokenizer.stream().feed(number)


@pytest.mark.parametrize("text", [CORPUS[:5000], *AWKWARD])
def test_the_library_reads_our_file_and_agrees(tokenizer, tmp_path, text):
    tokenizer.save(tmp_path / "tokenizer.json")
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert library.get_vocab_size() == tokenizer.vocab_size
    assert library.token_to_id("<|endoftext|>") == tokenizer.end_of_text
    library.encode_special_tokens = True
    ids = library.encode(text, add_special_tokens=False).ids
    assert ids == tokenizer.encode(text).tolist()
    assert library.decode(ids, skip_special_tokens=False) == text


def test_pieces_join_to_the_whole(tokenizer):
    draw = random.Random(5)
    text = CORPUS[:9000] + "x" * 10_000 + "日本語" * 3000 + " " * 5000 + CORPUS[9000:30_000]
    whole = tokenizer.encode(text).tolist()
    for longest in (1, 7, 3000, 20_000):
        pieces, at = [], 0
        while at < len(text):
            size = draw.randint(1, longest)
            pieces.append(text[at : at + size])
            at += size
        assert [i for ids in tokenizer.encode_pieces(pieces) for i in ids.tolist()] == whole


def test_cutting_long_text_changes_nothing():
    # 60,000 characters with white space, against the library on the text as one.
    tokenizer = TRAINED["bpe"]
    library = tokenizers.Tokenizer.from_str(tokenizer.content.decode())
    assert tokenizer.encode(CORPUS).tolist() == library.encode(CORPUS).ids
    assert len(CORPUS) > 10 * LONGEST_CHUNK


def test_a_word_without_end_is_learnt_from_in_parts(monkeypatch):
    """To GPT-2's splitting a run of Chinese letters is one word; each merge walks through it."""
    lengths = []
    learn = tokenizer_module._learn_merges

    def noted(texts, size):
        lengths.extend(map(len, texts))
        return learn(texts, size)

    monkeypatch.setattr(tokenizer_module, "_learn_merges", noted)
    run = "".join(random.Random(0).choices([chr(0x4E00 + n) for n in range(40)], k=20_000))
    tokenizer = Tokenizer.train("bpe", [run], 1500)
    assert sum(lengths) == len(run)
    assert max(lengths) == 256
    assert tokenizer.vocab_size == 1500
    ids = tokenizer.encode(run)
    assert tokenizer.decode(ids) == run
    assert len(ids) < len(run)


def test_runs_without_white_space_take_bounded_time():
    run = "".join(random.Random(0).choices("acgt", k=300_000))
    tokenizer = Tokenizer.train("bpe", [run], 400)
    assert tokenizer.decode(tokenizer.encode(run)) == run
    pieces = tokenizer.encode_pieces(["ab" * 50_000] * 20)
    assert max(len(ids) for ids in pieces) <= 64 * LONGEST_CHUNK


@pytest.mark.parametrize("errors", ["ignore", "replace"])
def test_a_stream_gives_whole_characters_only(tokenizer, errors):
    text = "né 日本 🎉\r\n\0 end"
    stream = tokenizer.stream(errors)
    parts = [stream.feed(number) for number in tokenizer.encode(text)]
    assert "".join(parts) + stream.flush() == text
    assert all("\ufffd" not in part for part in parts)


def test_a_stream_handles_what_is_no_text(tokenizer):
    broken = [0x61, 0xE2, 0x82, 0x62, 0x80, tokenizer.end_of_text, 0xF0, 0x9F]
    stream = tokenizer.stream()
    assert "".join(map(stream.feed, broken)) + stream.flush() == "ab"
    stream = tokenizer.stream("replace")
    assert "".join(map(stream.feed, broken)) + stream.flush() == tokenizer.decode(broken)


def test_sizes():
    assert TRAINED["bpe"].vocab_size == 600
    assert TRAINED["byte"].vocab_size == 257
    assert TRAINED["char"].vocab_size == 257 + len(set(CORPUS))
    assert Tokenizer.train("bpe", ["ab " * 40], 30_000).vocab_size < 270, "merges run out"
    assert Tokenizer.train("bpe", ["abcdefgh"], 300).vocab_size == 257, "no pair occurs twice"
    assert Tokenizer.train("bpe", [""], 300).vocab_size == 257
    assert Tokenizer.train("bpe", [CORPUS], 257).vocab_size == 257
    assert Tokenizer.train("char", []).vocab_size == 257


@pytest.mark.parametrize("size", [-1, 0, 100, 256])
def test_too_small_a_vocabulary_names_the_least(size):
    for kind in KINDS:
        with pytest.raises(UsageError, match="the least possible is 257"):
            Tokenizer.train(kind, ["春眠不覺曉，處處聞啼鳥" * 20], size)
    with pytest.raises(UsageError, match=r"kind 'word'.*bpe, byte, char"):
        Tokenizer.train("word", [])


def test_few_characters_are_the_frequent_ones_with_ties_by_code_point():
    tokenizer = Tokenizer.train("char", ["dd", "ccc", "bbé"], 259)
    assert [tokenizer.decode([i]) for i in (256, 257)] == ["b", "c"]
    assert tokenizer.encode("cbdé").tolist() == [257, 256, 0x64, 0xC3, 0xA9]


def test_documents_may_come_in_pieces():
    pieces = [CORPUS[i : i + 777] for i in range(0, len(CORPUS), 777)]
    for kind in KINDS:
        assert Tokenizer.train(kind, [iter(pieces)], 600).sha256 == TRAINED[kind].sha256


def test_the_sample_bounds_what_is_learnt_from():
    documents = ["common words here " * 50] * 20 + ["rare zebras " * 50] * 20
    small = Tokenizer.train("bpe", documents, 400, sample_bytes=8000)
    for word in ("common", " zebras"):
        assert len(small.encode(word)) < len(word), f"{word}: both halves are in the sample"


def test_ties_do_not_depend_on_the_order_of_documents():
    # All pairs of a run are as frequent as those of another; the lower ids win, not the first seen.
    runs = ["aaa", "bbb", "dddd", "cccc", "ab cd", "dc ba", "bbbaaaddddcccc", "aaabbbccccdddd"]
    draw = random.Random(1)
    orders = [runs, runs[::-1], *(draw.sample(runs, len(runs)) for _ in range(10))]
    assert len({Tokenizer.train("bpe", order, 300).sha256 for order in orders}) == 1


SCRIPT = """
import sys
from splitbit_kit.text.tokenizer import Tokenizer
from pydoc_data.topics import topics
texts = [topics[name] for name in sorted(topics)][:25] + ["bbbaaaddddcccc", "aaabbbccccdddd"]
print(*(Tokenizer.train(kind, texts, 700).sha256 for kind in ("bpe", "char")))
"""


def test_the_same_merges_under_any_hash_seed_and_thread_count():
    outputs = set()
    for seed, threads, parallel in (("0", "1", "false"), ("1", "2", "true"), ("77", "4", "true")):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "RAYON_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": parallel,
        }
        run = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, check=True
        )
        outputs.add(run.stdout)
    assert len(outputs) == 1


def test_saved_and_loaded_it_is_the_same(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    again = Tokenizer.load(path)
    assert again.kind == tokenizer.kind
    assert again.sha256 == tokenizer.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert again.encode(CORPUS).tolist() == tokenizer.encode(CORPUS).tolist()
    assert (again.byte_lengths == tokenizer.byte_lengths).all()


def test_different_tokenizers_have_different_hashes():
    others = [Tokenizer.train("bpe", [CORPUS], 601), Tokenizer.train("char", ["abc"])]
    hashes = {tokenizer.sha256 for tokenizer in [*TRAINED.values(), *others]}
    assert len(hashes) == 5
