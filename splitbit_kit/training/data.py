"""Text to ids, split into what is learnt and what is only measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitbit_kit.api import SplitbitError
from splitbit_kit.text.batches import require_tokens
from splitbit_kit.text.corpus import BUILTIN, Corpus, documents, scan
from splitbit_kit.text.tokenizer import Tokenizer
from splitbit_kit.text.tokens import seen_ids, split, token_file
from splitbit_kit.training.config import DataConfig, TokenizerConfig

Ids = NDArray[np.integer[Any]]


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
) -> Data:
    """Return the tokens of a run, from the cache where they are there.

    A tokenizer is trained where only its configuration is given. Raises SplitbitError if a split is
    too short for one window of seq_len tokens and its target.
    """
    corpus = _scan(data, data.paths or [BUILTIN], notify)
    if isinstance(tokenizer, TokenizerConfig):
        size = tokenizer.vocab_size or None
        tokenizer = Tokenizer.train(tokenizer.kind, documents(corpus), size)
    tokens = token_file(corpus, tokenizer)
    sha256 = tokens.sha256
    if tokens.notice:
        notify(tokens.notice)
    if isinstance(data.validation, str):
        held_out = token_file(_scan(data, [data.validation], notify), tokenizer)
        training, validation = tokens.ids, held_out.ids
        sha256 += held_out.sha256
    else:
        training, validation = split(tokens.ids, data.validation)
    require_tokens(seq_len, training=len(training), validation=len(validation))
    return Data(tokenizer, training, validation, sha256, seen_ids(training, tokenizer.vocab_size))


def encode_file(path: str, tokenizer: Tokenizer, encoding: str = "") -> Ids:
    """Return the ids of a text, file or folder, for evaluation."""
    return token_file(scan([path], encoding or None), tokenizer).ids


def _scan(data: DataConfig, paths: list[str], notify: Callable[[str], None]) -> Corpus:
    corpus = scan(paths, data.encoding or None, data.strict)
    for file in corpus.files:
        if file.encoding.lower().replace("_", "-") not in ("utf-8", "ascii", BUILTIN):
            notify(f"{file.path}: read as {file.encoding}")
    for skipped in corpus.skipped[:5]:
        notify(f"{skipped.path}: skipped ({skipped.reason})")
    if len(corpus.skipped) > 5:
        notify(f"{len(corpus.skipped)} files skipped in all")
    if not sum(file.characters for file in corpus.files):
        raise SplitbitError(f"{', '.join(paths)}: the text is empty; more text is needed")
    return corpus
