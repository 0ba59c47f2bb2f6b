"""What stands in tokenizer.json: written whole from a kind and what it learnt, and read back.

The layout is that of Hugging Face's library, which reads it as it is. Ids, for every kind:

    0 to 255            the bytes, by value
    256 to V - 2        bpe: what the merges make, in their order; char: characters by code point
    V - 1               <|endoftext|>

A file is trusted with its merges or characters and nothing else: the rest has to be, field by
field, what we write ourselves, so no expression or template of a stranger's ever runs.
"""

import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from splitbit_kit.api.errors import SplitbitError

KINDS = ("bpe", "byte", "char")
END_OF_TEXT = "<|endoftext|>"
LEAST_VOCAB = 257  # the 256 bytes and end-of-text
LARGEST_FILE = 1 << 26  # bytes; a vocabulary of 128,000 takes about 8 MB


class Vocabulary(NamedTuple):
    """All that makes a tokenizer: its kind, and a bpe's merges or a char one's characters."""

    kind: str
    merges: tuple[tuple[str, str], ...] = ()
    characters: str = ""


def _byte_characters() -> list[str]:
    """Return GPT-2's character for each byte: itself where it prints, else one from U+0100 on."""
    visible = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(b) if b in visible else chr(256 + hidden.index(b)) for b in range(256)]


BYTE_CHARACTERS = _byte_characters()


def names(vocabulary: Vocabulary) -> list[str]:
    """Return the name of every id in tokenizer.json, in order of ids (V,)."""
    if vocabulary.kind == "char":
        fallbacks = [f"<0x{byte:02X}>" for byte in range(256)]
        return [*fallbacks, *vocabulary.characters, END_OF_TEXT]
    # Two merges may make the same string, which then is one id: dict keeps the first place.
    made = dict.fromkeys(left + right for left, right in vocabulary.merges)
    return [*BYTE_CHARACTERS, *made, END_OF_TEXT]


def byte_strings(vocabulary: Vocabulary) -> list[bytes]:
    """Return the bytes that every id stands for, in order of ids (V,); none for end-of-text."""
    if vocabulary.kind == "char":
        rest = [character.encode() for character in vocabulary.characters]
        return [*(bytes([byte]) for byte in range(256)), *rest, b""]
    byte_of = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}
    return [*(bytes(map(byte_of.__getitem__, name)) for name in names(vocabulary)[:-1]), b""]


def document(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the content of tokenizer.json."""
    all_names = names(vocabulary)
    char = vocabulary.kind == "char"
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": vocabulary.kind == "bpe",
    }
    from_bytes = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": len(all_names) - 1,
                "content": END_OF_TEXT,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": None if char else byte_level,
        "post_processor": None,
        "decoder": from_bytes if char else byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": char,
            "ignore_merges": False,
            "vocab": {name: number for number, name in enumerate(all_names)},
            "merges": [list(pair) for pair in vocabulary.merges],
        },
    }


def content(vocabulary: Vocabulary) -> bytes:
    """Return the bytes of tokenizer.json, always the same for the same vocabulary."""
    return json.dumps(document(vocabulary), ensure_ascii=False, separators=(",", ":")).encode()


def read(path: str | os.PathLike[str]) -> Vocabulary:
    """Return the vocabulary in a tokenizer.json. Raises SplitbitError if it is not ours."""
    name = os.fspath(path)
    try:
        found = json.loads(_bytes(name), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise SplitbitError(f"{name}: not a tokenizer.json ({error})") from None
    try:
        vocabulary = _vocabulary(found)
        expected = document(vocabulary)
    except (LookupError, TypeError, ValueError) as error:
        raise SplitbitError(f"{name}: not a tokenizer of splitbit-kit ({error})") from None
    field = _difference(expected, found)
    if field:
        raise SplitbitError(
            f"{name}: {field} is not as splitbit-kit writes it; expected a tokenizer made by it"
        )
    return vocabulary


def _bytes(path: str) -> bytes:
    try:
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode):
            raise SplitbitError(f"{path}: not a regular file; expected a tokenizer.json")
        if status.st_size > LARGEST_FILE:
            raise SplitbitError(
                f"{path}: {status.st_size:,} bytes; a tokenizer.json has at most {LARGEST_FILE:,}"
            )
        with Path(path).open("rb") as file:
            return file.read(LARGEST_FILE)
    except OSError as error:
        raise SplitbitError(f"{path}: {error.strerror}; expected a tokenizer.json") from None


def _without_duplicates(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key[:40]!a} stands twice")
        result[key] = value
    return result


def _vocabulary(found: Any) -> Vocabulary:
    """Return what `found` may decide. Raises LookupError, TypeError or ValueError if it can not."""
    model = found["model"]
    if found["pre_tokenizer"] is None:
        characters = "".join(sorted(name for name in model["vocab"] if len(name) == 1))
        characters.encode()  # lone surrogates are a ValueError
        return Vocabulary("char", characters=characters)
    if not found["pre_tokenizer"]["use_regex"]:
        return Vocabulary("byte")
    merges = tuple((left, right) for left, right in model["merges"])
    known = set(BYTE_CHARACTERS)
    for number, (left, right) in enumerate(merges):
        if left not in known or right not in known:
            raise ValueError(f"merge {number} joins what is not in the vocabulary")
        known.add(left + right)
    if len(set(merges)) < len(merges):
        raise ValueError("a merge stands twice")
    return Vocabulary("bpe", merges)


def _difference(expected: Any, found: Any, field: str = "the file") -> str | None:
    """Return the name of the first field that differs, as in "model.vocab"; None if none does."""
    if isinstance(expected, dict) and isinstance(found, dict) and field != "model.vocab":
        if unknown := [key for key in found if key not in expected]:
            return f"{field}: the key {unknown[0][:40]!a}"
        for key, value in expected.items():
            inner = key if field == "the file" else f"{field}.{key}"
            if key not in found:
                return inner
            if different := _difference(value, found[key], inner):
                return different
        return None
    return None if type(expected) is type(found) and expected == found else field
