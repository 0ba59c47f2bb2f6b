"""A trained model, ready to use: `load` it, then let it write, score or measure text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitbit_kit.api import SplitbitError, UsageError
from splitbit_kit.compute import Compute, choose
from splitbit_kit.engine.optable import OpTable
from splitbit_kit.engine.tape import Tape
from splitbit_kit.evaluate import Evaluation, evaluate
from splitbit_kit.formats import packed, safetensors
from splitbit_kit.formats.untrusted import shown
from splitbit_kit.generate import Sampling, generate, one_sequence
from splitbit_kit.models.config import ModelConfig
from splitbit_kit.models.decoder import Decoder, parameter_specs
from splitbit_kit.registry import Registry
from splitbit_kit.text.batches import EVALUATED_TOKENS, require_tokens
from splitbit_kit.text.tokenizer import Tokenizer
from splitbit_kit.training.config import ComputeConfig
from splitbit_kit.training.data import encode_file
from splitbit_kit.training.run_folder import ModelFiles, ModelHeader, find_model, read_header
from splitbit_kit.weights import frozen_decoder

Array = np.ndarray[Any, np.dtype[Any]]
Ids = Sequence[int] | NDArray[np.integer[Any]]
Notify = Callable[[str], None]

_AT_ONCE = 2048  # tokens of an evaluation, if that is more than one window: scores take N * V


@dataclass(frozen=True)
class Model:
    """A decoder with its tokenizer and the backends that compute it. Made by `load`."""

    decoder: Decoder
    tokenizer: Tokenizer
    header: ModelHeader
    label: str  # which model it is, in words
    compute: Compute
    table: OpTable  # for inference
    notify: Notify

    @property
    def config(self) -> ModelConfig:
        """The shape of the model."""
        return self.decoder.config

    @property
    def parameters(self) -> int:
        """How many numbers the model consists of; a tied head counts once."""
        specs = parameter_specs(self.config, self.header.vocabulary)
        return sum(prod(spec.shape) for spec in specs)

    def generate(self, prompt: str = "", **sampling: Any) -> str:
        """Return the text that follows the prompt. Keywords are those of `Sampling`."""
        return "".join(self.stream(prompt, **sampling))

    def stream(self, prompt: str = "", **sampling: Any) -> Iterator[str]:
        """Return an iterator over the text that follows the prompt, in pieces of whole characters.

        Raises UsageError at once for a setting that makes no sense.
        """
        return generate(
            self.decoder,
            self.compute,
            self.tokenizer,
            prompt,
            Sampling(**sampling),
            seen=self.header.seen,
            table=self.table,
            notify=self.notify,
        )

    def logits(self, text: str | Ids) -> Array:  # ids (N,) -> (N, V)
        """Return the scores of the next token after each one of a text, or of ids.

        Raises UsageError for no tokens, more than the context, or an id outside the vocabulary.
        """
        ids = self._ids(text)
        if not 1 <= len(ids) <= self.config.context:
            raise UsageError(
                f"logits: {len(ids)} tokens; 1 to {self.config.context}, the model's context, "
                "are expected"
            )
        return self.decoder.logits(Tape(self.table, self.compute.context()), one_sequence(ids))

    def evaluate(self, text: str | Path | Ids, seq_len: int | None = None) -> Evaluation:
        """Return how well the model predicts a text, or ids, or what a file or folder holds.

        A string is the text itself, a `Path` the file or folder. It is read in windows of seq_len
        tokens side by side; None: as long as the context and the text allow. Of a long text the
        first 262,144 tokens are measured, and `notify` is told. Raises SplitbitError if the text is
        too short for one window, and UsageError if seq_len exceeds the context.
        """
        ids = self._ids(text)
        context = self.config.context
        if seq_len is None:
            seq_len = max(1, min(context, len(ids) - 1))
        if seq_len > context:
            raise UsageError(f"seq_len {seq_len}: the model's context is {context}")
        require_tokens(seq_len, evaluation=len(ids))
        if len(ids) - 1 > EVALUATED_TOKENS:
            self.notify(f"the first {EVALUATED_TOKENS:,} of {len(ids):,} tokens are measured")
        return evaluate(
            self.decoder,
            self.compute,
            self.table,
            ids,
            self.tokenizer.byte_lengths,
            seq_len=seq_len,
            rows=max(1, _AT_ONCE // seq_len),
            limit=EVALUATED_TOKENS,
        )

    def _ids(self, text: str | Path | Ids) -> NDArray[np.integer[Any]]:
        if isinstance(text, Path):
            return encode_file(str(text), self.tokenizer, notify=self.notify)
        if isinstance(text, str):
            return self.tokenizer.encode(text)
        ids = np.asarray(text)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise UsageError(
                f"ids: a row of whole numbers is expected, not {ids.dtype} {ids.shape}"
            )
        most = self.tokenizer.vocab_size - 1
        wrong = ids[(ids < 0) | (ids > most)]
        if wrong.size:
            raise UsageError(f"ids: {wrong[0]} is not in the vocabulary; expected 0 to {most}")
        return ids.astype(np.int32)


def load(
    path: str | Path,
    backend: str = "auto",
    precision: str = "auto",
    threads: int = 0,
    registry: Registry | None = None,
    notify: Notify = lambda line: None,
) -> Model:
    """Return the model that a path means: a run folder, a folder of a model in it, or a model file.

    The weights are mapped from the file where their dtype is the backend's: loading takes no time,
    and processes that use one model share its memory. Packed weights stay packed. backend,
    precision and threads are as in `splitbit_kit.compute.choose`. notify is told what was decided
    on the way. Raises SplitbitError naming the file and what is wrong with it.
    """
    files = find_model(Path(path))
    for line in files.passed_over:
        notify(f"passed over: {line}")
    model = packed.decode(safetensors.read(files.model), str(files.model))
    header = read_header(model, str(files.model))
    tokenizer = _tokenizer(files, header)
    chosen = ComputeConfig(backend, precision, threads)  # checked as a training's are
    registry = registry or Registry()
    compute = choose(registry, chosen.backend, chosen.precision, chosen.threads, notify)
    decoder = frozen_decoder(
        model, header.config, header.vocabulary, compute.dtype, registry, str(files.model)
    )
    table = compute.table(train=False)
    return Model(decoder, tokenizer, header, files.label, compute, table, notify)


def _tokenizer(files: ModelFiles, header: ModelHeader) -> Tokenizer:
    """Return the tokenizer that the model was trained with."""
    tokenizer = Tokenizer.load(files.tokenizer)
    if tokenizer.sha256 != header.tokenizer_sha256:
        raise SplitbitError(
            f"{files.tokenizer}: not the tokenizer that {files.model} was trained with "
            f"(SHA-256 {tokenizer.sha256[:12]}, {shown(header.tokenizer_sha256[:12])} is "
            "expected); put back the one of the same run"
        )
    if tokenizer.vocab_size > header.vocabulary:
        raise SplitbitError(
            f"{files.model}: metadata vocabulary: {header.vocabulary}, but the tokenizer has "
            f"{tokenizer.vocab_size} ids"
        )
    return tokenizer
