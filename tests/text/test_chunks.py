from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from splitbit_kit.text.chunks import LONGEST_CHUNK, chunks, sample

GPT2 = ByteLevel(add_prefix_space=False, use_regex=True)
AWKWARD = " \n\t\r\x1c\x1f\x85\xa0\u1680\u180e\u200b\u2003\u2028\u3000\ufeffab'stlé日1²,\0"
texts = st.text(st.sampled_from(AWKWARD) | st.characters(exclude_categories=["Cs"]), max_size=60)


def words(text):
    return [word for word, _ in GPT2.pre_tokenize_str(text)]


def pieced(text, cuts):
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    return [text[a:b] for a, b in pairwise(edges)]


@settings(max_examples=200, deadline=None)
@given(texts, st.lists(st.integers(0, 60), max_size=8), st.integers(1, 20))
def test_chunks_do_not_depend_on_pieces(text, cuts, longest):
    cut = list(chunks(pieced(text, cuts), longest))
    assert cut == list(chunks([text], longest))
    assert "".join(cut) == text
    assert all(1 <= len(chunk) <= longest for chunk in cut)


@settings(max_examples=300, deadline=None)
@given(texts)
def test_a_cut_is_where_a_word_begins_anyway(text):
    for longest in (4, 9, 17):
        cut = list(chunks([text], longest))
        if all(len(chunk) < longest for chunk in cut):  # no cut was forced
            assert [w for chunk in cut for w in words(chunk)] == words(text)


def test_every_kind_of_space_cuts_as_gpt2_does():
    for number in range(0x110000):
        c = chr(number)
        if c.isspace() or number < 0x300 or 0x1FF0 < number < 0x2070:
            text = f"ab{c}cd"
            cut = list(chunks([text], 4))
            if len(cut) == 2 and len(cut[0]) == 2:
                assert words(cut[0]) + words(cut[1]) == words(text), hex(number)


def test_a_run_without_a_place_to_cut_is_cut_all_the_same():
    run = "x" * (2 * LONGEST_CHUNK + 5)
    lengths = [len(chunk) for chunk in chunks(["a b", run])]
    assert lengths == [1, LONGEST_CHUNK, LONGEST_CHUNK, 7]
    blank = " " * (LONGEST_CHUNK + 5)
    assert [len(chunk) for chunk in chunks([blank])] == [LONGEST_CHUNK, 5]


def test_a_sample_is_even_and_bounded():
    numbered = [f"{n:04}" for n in range(1000)]
    assert sample(numbered, 4000) == numbered
    assert sample(numbered, 3999) == numbered[::2]
    assert sample(iter(numbered), 700) == numbered[::8]
    assert sample(["é" * 10], 5) == ["é" * 10], "one is always left"
    assert sample([], 5) == []
