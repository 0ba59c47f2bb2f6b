"""Text to ids, split into what is learnt and what is only measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitbit_kit.api import SplitbitError
from splitbit_kit.text.batches import require_tokens
from splitbit_kit.text.corpus import Corpus, documents, scan
from splitbit_kit.text.files import BUILTIN
from splitbit_kit.text.progress import Progress, unheard
from splitbit_kit.text.tokenizer import Tokenizer
from splitbit_kit.text.tokens import TokenFile, seen_ids, split, token_file
from splitbit_kit.training.config import DataConfig, TokenizerConfig

Ids = NDArray[np.integer[Any]]

_TOLD = 5  # files of a kind that are named one by one


@dataclass(frozen=True)
class Data:
    """The tokens of a run."""

    tokenizer: Tokenizer
    training: Ids
    validation: Ids
    sha256: str  # of texts and tokenizer: a run refuses to go on with others
    seen: NDArray[np.bool_]  # (V,): the ids that occur in `training`


def prepare(
    data: DataConfig,
    tokenizer: TokenizerConfig | Tokenizer,
    seq_len: int,
    notify: Callable[[str], None] = lambda line: None,
    progress: Progress = unheard,
) -> Data:
    """Return the tokens of a run, from the cache where they are there.

    A tokenizer is read or trained where only its configuration is given. Raises SplitbitError if a
    split is too short for one window of seq_len tokens and its target.
    """
    held_out = None
    if isinstance(data.validation, str):
        held_out = _scan(data, [data.validation], notify, progress)
    corpus = _scan(data, data.paths or [BUILTIN], notify, progress, held_out)
    if not corpus.characters:
        raise SplitbitError(
            f"{', '.join(data.paths)}: the text is empty: 0 tokens, "
            f"seq_len + 1 = {seq_len + 1:,} needed; use more text"
        )
    if isinstance(tokenizer, TokenizerConfig):
        tokenizer = _tokenizer(tokenizer, corpus, progress)
    tokens = _tokens(corpus, tokenizer, notify, progress)
    sha256 = tokens.sha256
    if held_out:
        apart = _tokens(held_out, tokenizer, notify, progress)
        training, validation = tokens.ids, apart.ids
        sha256 += apart.sha256
    else:
        training, validation = split(tokens.ids, float(data.validation))
    require_tokens(seq_len, training=len(training), validation=len(validation))
    return Data(tokenizer, training, validation, sha256, seen_ids(training, tokenizer.vocab_size))


def encode_file(
    path: str,
    tokenizer: Tokenizer,
    data: DataConfig | None = None,
    notify: Callable[[str], None] = lambda line: None,
    progress: Progress = unheard,
) -> Ids:
    """Return the ids of a text, file or folder, for evaluation; `data` says how it is read."""
    data = data or DataConfig()
    return _tokens(_scan(data, [path], notify, progress), tokenizer, notify, progress).ids


def read(
    data: DataConfig,
    notify: Callable[[str], None] = lambda line: None,
    progress: Progress = unheard,
) -> Corpus:
    """Return the corpus in `data.paths`; say what is not as one would expect."""
    return _scan(data, data.paths or [BUILTIN], notify, progress)


def learn(
    config: TokenizerConfig,
    data: DataConfig,
    notify: Callable[[str], None] = lambda line: None,
    progress: Progress = unheard,
) -> tuple[Tokenizer, Corpus]:
    """Return a tokenizer as training would learn it, and what it was learnt from.

    Raises SplitbitError if that is empty.
    """
    corpus = read(data, notify, progress)
    if not corpus.characters:
        raise SplitbitError(f"{', '.join(data.paths)}: the text is empty; use more text")
    return _tokenizer(config, corpus, progress), corpus


def _tokenizer(config: TokenizerConfig, corpus: Corpus, progress: Progress) -> Tokenizer:
    if config.file:
        return Tokenizer.load(config.file)
    what = "learning the vocabulary"
    # all is read before the first merge is learnt, which is about a tenth of the work on large text
    text = documents(corpus, lambda share: progress(what, 0.9 * share))
    tokenizer = Tokenizer.train(config.kind, text, config.vocab_size or None)
    progress(what, 1.0)
    return tokenizer


def _scan(
    data: DataConfig,
    paths: list[str],
    notify: Callable[[str], None],
    progress: Progress,
    held_out: Corpus | None = None,
) -> Corpus:
    """Return the corpus in paths; say what is not as one would expect, the first few of each."""
    corpus = scan(paths, data.encoding or None, data.strict, held_out, data.column, progress)
    odd = [file for file in corpus.files if file.marked or file.encoding not in ("utf-8", "ascii")]
    for file in odd[:_TOLD]:
        by_mark = ", by its byte order mark" if file.marked else ""
        notify(f"{file.path}: read as {file.encoding}{by_mark}")
    if len(odd) > _TOLD:
        notify(f"{len(odd)} files read as other than plain utf-8 in all")
    for skipped in corpus.skipped[:_TOLD]:
        notify(f"{skipped.path}: skipped ({skipped.reason})")
    if len(corpus.skipped) > _TOLD:
        notify(f"{len(corpus.skipped)} files skipped in all")
    return corpus


def _tokens(
    corpus: Corpus, tokenizer: Tokenizer, notify: Callable[[str], None], progress: Progress
) -> TokenFile:
    tokens = token_file(corpus, tokenizer, progress=progress)
    if tokens.notice:
        notify(tokens.notice)
    return tokens
