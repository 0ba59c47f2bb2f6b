"""Text to ids and back, exactly: byte-level BPE, plain bytes, or characters with byte fallback.

Every id stands for a string of bytes (end-of-text for none), so decoding joins them. Any text
comes back as it was, lone surrogates excepted, which UTF-8 can not hold. The characters
<|endoftext|> in a text are ordinary ones; the id is only ever put in by us, between documents.
"""

import codecs
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from splitbit_kit.api.errors import SplitbitError, UsageError
from splitbit_kit.text import tokenizer_file
from splitbit_kit.text.chunks import chunks, sample
from splitbit_kit.text.tokenizer_file import KINDS, LEAST_VOCAB, Vocabulary

DEFAULT_VOCAB = 4096
SAMPLE_BYTES = 1 << 24
_LONGEST_LEARNT = 256  # characters of a word: each merge walks through every word that it is in
_BATCH = 64  # chunks handed to the library at once, which shares them among its threads

Ids = NDArray[np.int32]


class Tokenizer:
    """A trained tokenizer. Make one by `train` or `load`; it never changes afterwards."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        content = tokenizer_file.content(vocabulary)
        self.content = content  # of tokenizer.json
        self._bytes = tokenizer_file.byte_strings(vocabulary)
        self._characters = {c: (256 + i,) for i, c in enumerate(vocabulary.characters)}
        self._library = tokenizers.Tokenizer.from_str(content.decode())
        self._library.encode_special_tokens = True  # that is: as the ordinary text they are
        self.kind = vocabulary.kind
        self.vocab_size = len(self._bytes)
        self.end_of_text = self.vocab_size - 1
        self.byte_lengths: Ids = np.array([len(b) for b in self._bytes], np.int32)  # (V,)
        self.sha256 = hashlib.sha256(content).hexdigest()  # of the file that `save` writes

    @classmethod
    def train(
        cls,
        kind: str,
        documents: Iterable[str | Iterable[str]],
        vocab_size: int | None = None,
        sample_bytes: int = SAMPLE_BYTES,
    ) -> "Tokenizer":
        """Return a tokenizer learnt from documents (strings, or iterators of pieces of one).

        `vocab_size` is the most ids wanted, 257 at least (bpe: 4096 if not given; char: all
        characters); the true size may be less. "byte" learns nothing. "char" takes the most
        frequent characters of the whole text, "bpe" counts pairs in an even sample of
        `sample_bytes` bytes of UTF-8. Ties go to the lower code point or ids: the result depends on
        how often things stand in the text, not on hash seeds, on threads, or on which document of
        the sample came first.

        Raises UsageError for an unknown kind or too small a size.
        """
        if kind not in KINDS:
            raise UsageError(
                f"tokenizer kind {kind!r} is not known; choose from {', '.join(KINDS)}"
            )
        if vocab_size is not None and vocab_size < LEAST_VOCAB:
            raise UsageError(
                f"a vocabulary of {vocab_size} is too small for a {kind} tokenizer; the least "
                f"possible is {LEAST_VOCAB} (256 bytes and end-of-text)"
            )
        texts = (_encodable([d] if isinstance(d, str) else d) for d in documents)
        if kind == "bpe":
            cut = chain.from_iterable(chunks(text, _LONGEST_LEARNT) for text in texts)
            merges = _learn_merges(sample(cut, sample_bytes), vocab_size or DEFAULT_VOCAB)
            return cls(Vocabulary(kind, merges=merges))
        if kind == "char":
            found = _frequent_characters(chain.from_iterable(texts))
            most = None if vocab_size is None else vocab_size - LEAST_VOCAB
            return cls(Vocabulary(kind, characters="".join(sorted(found[:most]))))
        return cls(Vocabulary(kind))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """Return the tokenizer in a tokenizer.json. Raises SplitbitError if we did not write it."""
        return cls(tokenizer_file.read(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write tokenizer.json, which Hugging Face's library reads too."""
        Path(path).write_bytes(self.content)

    def encode(self, text: str) -> Ids:
        """Return the ids (N,) of a text. Raises SplitbitError at a lone surrogate."""
        return np.concatenate([np.empty(0, np.int32), *self.encode_pieces([text])])

    def encode_pieces(self, pieces: Iterable[str]) -> Iterator[Ids]:
        """Yield the ids of one document that comes in pieces; joined, those of the whole text.

        Memory is bounded, whatever the length of the document, its lines and its words.
        """
        pieces = _encodable(pieces)
        if self.kind == "bpe":
            cut = chunks(pieces)
            while batch := list(islice(cut, _BATCH)):
                encoded = self._library.encode_batch_fast(batch, add_special_tokens=False)
                yield np.array([i for one in encoded for i in one.ids], np.int32)
        elif self.kind == "char":
            known = self._characters
            for piece in pieces:
                # The id of a byte is its value, so the bytes of an unknown character are its ids.
                ids = [i for c in piece for i in known.get(c) or c.encode()]
                yield np.array(ids, np.int32)
        else:
            for piece in pieces:
                yield np.frombuffer(piece.encode(), np.uint8).astype(np.int32)

    def decode(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> str:
        """Return the text of ids (N,); end-of-text is nothing, bytes that are not UTF-8 are U+FFFD.

        Raises SplitbitError at an id that is not in the vocabulary.
        """
        return b"".join(map(self._bytes_of, np.asarray(ids).tolist())).decode("utf-8", "replace")

    def stream(self, errors: str = "ignore") -> "TextStream":
        """Return a decoder for ids that come one by one."""
        return TextStream(self, errors)

    def _bytes_of(self, number: int) -> bytes:
        if not 0 <= number < self.vocab_size:
            raise SplitbitError(
                f"id {number} is not in the vocabulary; expected 0 to {self.vocab_size - 1}"
            )
        return self._bytes[number]


class TextStream:
    """Text from ids as they come: a character appears when its last byte is there, never in halves.

    Bytes that are no UTF-8, as a half-trained model makes them, are left out (errors "ignore") or
    become U+FFFD (errors "replace").
    """

    def __init__(self, tokenizer: Tokenizer, errors: str = "ignore") -> None:
        self._bytes_of = tokenizer._bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)

    def feed(self, number: int) -> str:
        """Return the characters that this id completes, often none."""
        return self._decoder.decode(self._bytes_of(number))

    def flush(self) -> str:
        """Return what is left of an unfinished character at the end: nothing, or U+FFFD."""
        return self._decoder.decode(b"", final=True)


def _learn_merges(texts: list[str], vocab_size: int) -> tuple[tuple[str, str], ...]:
    """Return the merges in order. A pair seen once is not merged: it would compress nothing."""
    library = tokenizers.Tokenizer(BPE())
    library.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = BpeTrainer(
        vocab_size=vocab_size - 1,  # end-of-text is put last, by us
        initial_alphabet=ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer)
    return tuple((left, right) for left, right in json.loads(library.to_str())["model"]["merges"])


def _frequent_characters(pieces: Iterable[str]) -> list[str]:
    """Return the characters, the most frequent first; ties by code point."""
    counts: Counter[str] = Counter()
    for piece in pieces:
        counts.update(piece)
    return sorted(counts, key=lambda character: (-counts[character], character))


def _encodable(pieces: Iterable[str]) -> Iterator[str]:
    """Yield the pieces as they are. Raises SplitbitError at a lone surrogate."""
    for piece in pieces:
        try:
            piece.encode()
        except UnicodeEncodeError as error:
            raise SplitbitError(
                f"a lone surrogate (U+{ord(piece[error.start]):04X}) is not text; "
                "remove it, or decode the source with its right encoding"
            ) from None
        yield piece
