"""Does memory stay bounded on text far larger than it? python bench/large_text.py [--sizes 50 500]

For each kind of file and each size it makes a file, and in a process of its own takes the way of
every training: the text is checked (`data check` is that), a vocabulary learnt (`tokenizer train`),
the ids written to a memory-mapped file. It prints the highest resident memory after each of the
three, and the processor time of each, as a Markdown table. The files are deleted again.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from pydoc_data.topics import topics

from splitbit_kit.text.corpus import documents, scan
from splitbit_kit.text.tokenizer import Tokenizer
from splitbit_kit.text.tokens import seen_ids, token_file

KINDS = ("lines", "one line", "jsonl", "parquet")
MEGABYTE = 10**6


def main() -> None:
    """Measure what the command line asks for."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--sizes", type=int, nargs="+", default=[50, 500, 5000], metavar="MB")
    options.add_argument("--kinds", nargs="+", default=["lines"], choices=KINDS)
    options.add_argument("--folder", type=Path, help="where there is room; a temporary one if none")
    options.add_argument("--measure", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.measure:
        print(json.dumps(measured(Path(given.measure))))
        return
    print("| file | MB | checked | vocabulary learnt | tokenised | ids |")
    print("| --- | --- | --- | --- | --- | --- |")
    for kind in given.kinds:
        for size in given.sizes:
            with tempfile.TemporaryDirectory(dir=given.folder) as folder:
                path = made(Path(folder), kind, size * MEGABYTE)
                command = [sys.executable, __file__, "--measure", str(path)]
                done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
                steps, count = json.loads(done.stdout)
                cells = [f"{peak} MB, {seconds:.1f} s" for peak, seconds in steps]
                print("|", " | ".join([kind, f"{size:,}", *cells, f"{count:,}"]), "|", flush=True)


def made(folder: Path, kind: str, size: int) -> Path:
    """Return a new file of about `size` bytes of text; the same each time."""
    path = folder / {"jsonl": "text.jsonl", "parquet": "text.parquet"}.get(kind, "text.txt")
    if kind == "parquet":
        import pyarrow
        from pyarrow.parquet import ParquetWriter

        schema = pyarrow.schema([("text", pyarrow.string())])
        with ParquetWriter(path, schema) as writer:
            for block in blocks(size):
                writer.write(pyarrow.table([block.splitlines()], schema))
        return path
    with path.open("w", encoding="utf-8", newline="") as file:
        for block in blocks(size):
            if kind == "one line":
                block = "".join(block.split())
            elif kind == "jsonl":
                block = "".join(json.dumps({"text": line}) + "\n" for line in block.splitlines())
            file.write(block)
    return path


def blocks(size: int) -> Iterator[str]:
    """Yield text in blocks: lines of Python's help in random order, each with a word of its own."""
    draw = random.Random(0)
    lines = [line for topic in topics.values() for line in topic.splitlines() if line.strip()]
    while size > 0:
        block = "".join(
            f"{line} {draw.getrandbits(40):x}\n" for line in draw.choices(lines, k=20_000)
        )
        size -= len(block.encode())
        yield block


def measured(path: Path) -> tuple[list[tuple[int, float]], int]:
    """Return (highest resident memory so far in MB, processor seconds) of each step, and the ids"""
    steps = []
    begun = time.process_time()

    def done() -> None:
        nonlocal begun
        steps.append((peak() // MEGABYTE, time.process_time() - begun))
        print(f"step {len(steps)} of 3 of {path.name}: {steps[-1]}", file=sys.stderr, flush=True)
        begun = time.process_time()

    corpus = scan([path])
    done()
    tokenizer = Tokenizer.train("bpe", documents(corpus))
    done()
    tokens = token_file(corpus, tokenizer, path.parent / "tokens")
    seen_ids(tokens.ids, tokenizer.vocab_size)
    done()
    return steps, tokens.count


def peak() -> int:
    """Return the highest resident memory of this process so far, in bytes."""
    with suppress(OSError):  # Linux; what getrusage says there begins with the parent's
        status = Path("/proc/self/status").read_text("ascii")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


if __name__ == "__main__":
    main()
