"""The folder of a run: what lies where, and which model in it is meant.

runs/bard/
  config.toml      the whole configuration, resolved
  tokenizer.json
  metrics.jsonl    one line a start, step, evaluation, sample and end
  checkpoints/step-000500/   all that is needed to go on, to the bit
  best/model.safetensors     lowest validation loss
  best/model-q8_0.safetensors    the same, packed, if the run has a --quantizer
  final/model.safetensors    after the last step
  trackers/NAME/   what a tracker that was asked for keeps
  report.html      the page that `splitbit-kit report` makes of it
"""

from __future__ import annotations

import json
import shutil
import tomllib
from dataclasses import asdict, dataclass, fields
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from splitbit_kit.api import SplitbitError, UsageError
from splitbit_kit.engine.params import ParameterStore
from splitbit_kit.formats import checkpoint, durable, strict_json
from splitbit_kit.formats.packed import Weights
from splitbit_kit.formats.safetensors import Tensors
from splitbit_kit.models.config import ModelConfig
from splitbit_kit.text.tokenizer import Tokenizer
from splitbit_kit.training.config import Config, from_dict, to_dict

MODEL = "model.safetensors"
MODEL_FORMAT = "splitbit-kit model 1"


@dataclass(frozen=True)
class RunFolder:
    """Where a run's files are."""

    path: Path

    @property
    def config(self) -> Path:
        """The configuration; a folder that has one holds a run."""
        return self.path / "config.toml"

    @property
    def tokenizer(self) -> Path:
        """The tokenizer, as Hugging Face's library reads it."""
        return self.path / "tokenizer.json"

    @property
    def metrics(self) -> Path:
        """The lines of figures."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folders that a run can go on from."""
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        """The folder of the model with the lowest validation loss."""
        return self.path / "best"

    @property
    def final(self) -> Path:
        """The folder of the model after the last step."""
        return self.path / "final"

    @property
    def trackers(self) -> Path:
        """The folders of the trackers that were asked for."""
        return self.path / "trackers"

    @property
    def report(self) -> Path:
        """The page about the run, if one was asked for."""
        return self.path / "report.html"

    def holds_run(self) -> bool:
        """Whether a run was begun here."""
        return self.config.exists()

    def begin(self, config: Config, tokenizer: Tokenizer) -> None:
        """Write what a run needs before its first step. The configuration comes last."""
        durable.make_folder(self.path)
        durable.replace_file(self.tokenizer, [tokenizer.content])
        self.write_config(config)

    def write_config(self, config: Config) -> None:
        """Replace config.toml in one step."""
        durable.replace_file(self.config, [config_toml(config)])

    def read_config(self) -> Config:
        """Return the configuration of the run. Raises SplitbitError if there is none."""
        try:
            return from_dict(tomllib.loads(self.config.read_text("utf-8")))
        except (FileNotFoundError, NotADirectoryError):
            raise SplitbitError(f"{self.path}: holds no run (config.toml is missing)") from None
        except (OSError, ValueError, UsageError) as error:
            raise SplitbitError(f"{self.config}: {error}") from None

    def parts(self) -> list[Path]:
        """Return a run's own files and folders that exist, the configuration last."""
        folders = (self.checkpoints, self.best, self.final, self.trackers)
        files = (self.report, self.metrics, self.tokenizer, self.config)
        return [part for part in (*folders, *files) if part.exists()]

    def clear(self, but: Path | None = None) -> None:
        """Delete a run's own files, and nothing else; `but` is one to leave.

        The configuration goes last: what a killed process left is a run still, and no new one will
        take it for its own.
        """
        for part in self.parts():
            if part == but:
                continue
            with durable.explained(part, "remove it"):
                if part.is_dir() and not part.is_symlink():
                    shutil.rmtree(part)
                else:
                    part.unlink()


def config_toml(config: Config) -> bytes:
    """Return what config.toml holds. Raises UsageError for what UTF-8 cannot say, as file names."""
    try:
        return tomli_w.dumps(to_dict(config)).encode()
    except UnicodeEncodeError as error:
        line = error.object[error.object.rfind("\n", 0, error.start) + 1 :].splitlines()[0]
        name = ascii(line.strip(' ",'))
        raise UsageError(f"{name}: not in UTF-8, as config.toml is; rename it") from None


def new_folder(preset: str, parent: Path = Path("runs")) -> RunFolder:
    """Return runs/PRESET-N, made just now, with the least N from 1 that was not there."""
    durable.make_folder(parent)
    for n in count(1):
        path = parent / f"{preset}-{n}"
        if path.exists():
            continue
        with durable.explained(path, "make the folder"):
            try:
                path.mkdir()
            except FileExistsError:
                continue  # another training was faster
        durable.fsync_folder(parent)
        return RunFolder(path)
    raise AssertionError("count never ends")


@dataclass(frozen=True)
class ModelHeader:
    """What a model file says about itself besides its tensors."""

    config: ModelConfig
    vocabulary: int
    tokenizer_sha256: str
    step: int
    validation_loss: float | None
    seen: NDArray[np.bool_]  # (V,): ids that were in the training text; others are never sampled


def model_tensors(params: ParameterStore, header: ModelHeader) -> Tensors:
    """Return what model.safetensors holds. The values are views: save before they change."""
    metadata = {
        "format": MODEL_FORMAT,
        "model": json.dumps(asdict(header.config), sort_keys=True),
        "vocabulary": str(header.vocabulary),
        "tokenizer_sha256": header.tokenizer_sha256,
        "step": str(header.step),
        "validation_loss": json.dumps(header.validation_loss),
        "unseen_ids": json.dumps(_ranges(~header.seen)),
    }
    return Tensors({param.name: param.array for param in params}, metadata)


def read_header(model: Tensors | Weights, origin: str) -> ModelHeader:
    """Return what a model file says about itself. Raises SplitbitError naming the bad field."""
    metadata, arrays = model.metadata, model.arrays

    def text(name: str) -> str:
        if name not in metadata:
            raise SplitbitError(
                f"{origin}: metadata {name} is missing; was it written by splitbit-kit?"
            )
        return metadata[name]

    def field(name: str) -> Any:
        return strict_json.parse(text(name).encode(), f"{origin}: metadata {name}")

    def expect(name: str, sound: bool, what: str) -> None:
        if not sound:
            raise SplitbitError(f"{origin}: metadata {name}: {what} is expected")

    expect("format", text("format") == MODEL_FORMAT, MODEL_FORMAT)
    vocabulary, shape, step = field("vocabulary"), field("model"), field("step")
    rows = next(iter(arrays["tok.weight"].shape), -1) if "tok.weight" in arrays else -1
    expect("vocabulary", vocabulary == rows, f"{rows}, the rows of tensor tok.weight,")
    names = {f.name for f in fields(ModelConfig)}
    expect("model", isinstance(shape, dict) and set(shape) == names, f"{', '.join(names)}")
    few = type(shape["layers"]) is int and shape["layers"] <= len(arrays)
    expect("model", few, f"at most {len(arrays)} layers, one a tensor,")
    expect("step", type(step) is int and step >= 0, "a count")
    loss, unseen = field("validation_loss"), field("unseen_ids")
    expect("validation_loss", loss is None or isinstance(loss, float), "a number or null")
    expect("unseen_ids", _are_ranges(unseen, vocabulary), "a list of [start, stop) within it")
    seen = np.ones(vocabulary, np.bool_)
    for start, stop in unseen:
        seen[start:stop] = False
    try:
        config = from_dict({"model": shape}).model
    except UsageError as error:
        raise SplitbitError(f"{origin}: metadata {error}") from None
    return ModelHeader(config, vocabulary, text("tokenizer_sha256"), step, loss, seen)


def _are_ranges(value: Any, size: int) -> bool:
    return isinstance(value, list) and all(
        isinstance(pair, list)
        and len(pair) == 2
        and all(type(end) is int for end in pair)
        and 0 <= pair[0] < pair[1] <= size
        for pair in value
    )


@dataclass(frozen=True)
class ModelFiles:
    """A model on disk, and in words which one it is."""

    model: Path
    tokenizer: Path
    label: str
    passed_over: tuple[str, ...] = ()  # a line on each newer checkpoint that is damaged


def find_model(path: Path) -> ModelFiles:
    """Return the files of the model that a path means.

    A run folder means its best model if an evaluation has chosen one, else the final one, else the
    newest valid checkpoint; best/, final/, a step folder and a model file in one of these can be
    named too, or a model that stands somewhere else with its tokenizer.json beside it.
    """
    if not path.exists():
        raise UsageError(
            f"{path}: no such file or folder; a run folder is expected, such as runs/bard"
        )
    run = RunFolder(path)
    if run.holds_run():
        for folder in (run.best, run.final):
            if (folder / MODEL).exists():
                return ModelFiles(folder / MODEL, run.tokenizer, f"{folder.name} model of {path}")
        found, damaged = checkpoint.newest_valid(run.checkpoints)
        if found is None:
            raise SplitbitError(f"{path}: the run has no model yet (no valid checkpoint)")
        label = f"checkpoint {found.path.name} of {path}"
        return ModelFiles(found.path / MODEL, run.tokenizer, label, tuple(damaged))
    file = path if path.is_file() else path / MODEL
    folder = file.resolve().parent
    owners = [RunFolder(owner) for owner in (folder.parent, folder.parent.parent, folder)]
    for owner in owners if file.exists() else ():
        if owner.holds_run() or (owner.path == folder and owner.tokenizer.exists()):
            if folder.parent == owner.checkpoints:
                checkpoint.load(folder)  # raises where it is not what was saved
            return ModelFiles(file, owner.tokenizer, f"model {path}")
    if file.exists():
        raise SplitbitError(
            f"{file}: no tokenizer.json beside it, and no run around it; put its run's there"
        )
    raise SplitbitError(
        f"{path}: not a model; expected a run folder, best, final or a checkpoint inside one, "
        "or a model file there"
    )


def _ranges(mask: NDArray[np.bool_]) -> list[list[int]]:
    """Return the runs of True as [start, stop) pairs."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.astype(np.int8), [0]))))
    return [[int(a), int(b)] for a, b in edges.reshape(-1, 2)]
