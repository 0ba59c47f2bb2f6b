"""Text in chunks that can be split into words one by one, and an even sample of them.

GPT-2's splitting expression starts a new word at every white space that follows something else,
and never looks back. So text cut just there splits into the same words as the text whole.
"""

import re
from collections.abc import Iterable, Iterator

LONGEST_CHUNK = 4096  # characters; a run without any place to cut is cut here nevertheless

# Up to the last "not space" before a space. Python counts U+001C to U+001F as space, GPT-2 does
# not: before the cut no character that either calls space, after it one that both do.
_UP_TO_LAST_CUT = re.compile(r".*\S(?=[^\S\x1c-\x1f])", re.DOTALL)


def chunks(pieces: Iterable[str], longest: int = LONGEST_CHUNK) -> Iterator[str]:
    """Yield the text of one document in chunks of 1 to `longest` characters, however it was pieced.

    Every cut is one that GPT-2's splitting makes anyway, unless `longest` characters offer none:
    then the cut falls after exactly so many, which bounds time and memory on endless lines.
    """
    text = ""
    for piece in pieces:
        text += piece
        start = 0
        while len(text) - start > longest:
            cut = _UP_TO_LAST_CUT.match(text[start : start + longest])
            end = start + (cut.end() if cut else longest)
            yield text[start:end]
            start = end
        text = text[start:]
    if text:
        yield text


def sample(chunks: Iterable[str], most_bytes: int) -> list[str]:
    """Return every k-th chunk, k the least power of two that keeps the sample within `most_bytes`.

    Spread evenly over the whole, the same each time, and found in one pass in bounded memory.
    """
    kept: list[str] = []
    size = 0
    stride = 1
    for number, chunk in enumerate(chunks):
        if number % stride:
            continue
        kept.append(chunk)
        size += len(chunk.encode())
        while size > most_bytes and len(kept) > 1:
            kept = kept[::2]
            stride *= 2
            size = sum(len(chunk.encode()) for chunk in kept)
    return kept
