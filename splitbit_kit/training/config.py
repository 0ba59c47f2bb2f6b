"""A run's configuration: tier, preset, TOML file, --set, flags, the later winning; all checked."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from math import inf
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from splitbit_kit.api import PRECISIONS, UsageError
from splitbit_kit.generate import Sampling
from splitbit_kit.models import tiers
from splitbit_kit.models.config import ModelConfig
from splitbit_kit.models.presets import preset
from splitbit_kit.text.corpus import COLUMN
from splitbit_kit.text.tokenizer_file import KINDS


@dataclass(frozen=True)
class TokenizerConfig:
    """How text becomes tokens."""

    kind: str = "bpe"
    vocab_size: int = 0  # the most ids; 0: the kind's own default
    file: str = ""  # a tokenizer.json that decides both; empty: one is learnt from the text

    def __post_init__(self) -> None:
        _one_of("tokenizer.kind", self.kind, KINDS)
        _at_least("tokenizer.vocab_size", self.vocab_size, 0)


@dataclass(frozen=True)
class DataConfig:
    """What is read."""

    paths: list[str] = field(default_factory=list)  # none: the built-in corpus
    encoding: str = ""  # empty: by byte-order mark, UTF-8 otherwise
    validation: str | float = 0.1  # a share of the tokens, the last ones, or a file
    strict: bool = False  # True: a file in a folder that is not text is an error
    column: str = COLUMN  # of .jsonl and .parquet: the field of a row that holds its text

    def __post_init__(self) -> None:
        if not self.column:
            raise UsageError("data.column: empty; the name of a column is expected, such as text")
        if not isinstance(self.validation, str) and not 0 < self.validation < 1:
            raise UsageError(
                f"data.validation: {self.validation} is not a share between 0 and 1, nor a file"
            )


@dataclass(frozen=True)
class TrainConfig:
    """How long and in what portions. Steps win over epochs."""

    steps: int = 0  # 0: what `epochs` says
    epochs: float = 0.0
    batch_size: int = 0  # sequences a micro-batch; 0: the tier's
    seq_len: int = 0  # 0: the model's context
    seed: int = 1
    grad_accum: int = 1  # micro-batches a step
    grad_clip: float = 1.0  # greatest global norm; 0: none
    non_finite: str = "stop"  # or "skip": leave out the step
    eval_every: int = 0  # 0: ten times a run
    check_resources: bool = True  # refuse to begin where memory or disk is too small

    def __post_init__(self) -> None:
        for key, least in (
            ("steps", 0),
            ("epochs", 0),
            ("batch_size", 0),
            ("seq_len", 0),
            ("seed", 0),
            ("grad_accum", 1),
            ("grad_clip", 0),
            ("eval_every", 0),
        ):
            _at_least(f"train.{key}", getattr(self, key), least)
        if self.epochs == inf:
            raise UsageError("train.epochs: inf is not a finite number")
        if self.seed >= 2**63:
            raise UsageError(f"train.seed: {self.seed} is not below 2^63")
        _one_of("train.non_finite", self.non_finite, ("stop", "skip"))


@dataclass(frozen=True)
class OptimizerConfig:
    """Which optimizer; options are checked against what the plugin takes."""

    name: str = "adamw"
    lr: float = 1e-3  # the schedule's peak
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.lr < inf:
            raise UsageError(f"optimizer.lr: {self.lr} is not a number above 0")


@dataclass(frozen=True)
class SchedulerConfig:
    """Which learning-rate schedule; options are checked against what the plugin takes."""

    name: str = "cosine"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckpointConfig:
    """What is kept on disk."""

    save_every: int = 0  # 0: as often as evaluations
    keep: int = 2  # newest ones, besides the best

    def __post_init__(self) -> None:
        _at_least("checkpoint.save_every", self.save_every, 0)
        _at_least("checkpoint.keep", self.keep, 2)


@dataclass(frozen=True)
class QuantizeConfig:
    """Packed copies of the best model, and of checkpoints; they change nothing in the training."""

    format: str = "none"  # a quantizer's name; auto: the tier's
    every: int = 0  # steps between checkpoints that are packed too; 0: none is
    options: dict[str, Any] = field(default_factory=dict)  # of the quantizer

    def __post_init__(self) -> None:
        _at_least("quantize.every", self.every, 0)
        if not self.format:
            raise UsageError("quantize.format: empty; a format's name, auto or none is expected")
        if self.every and self.format == "none":
            raise UsageError(f"quantize.every: {self.every}, but in which format? use --quantizer")


@dataclass(frozen=True)
class SampleConfig:
    """Text written while training."""

    every: int = 0  # steps; 0: as often as evaluations
    prompt: str = ""  # empty: the beginning of a text
    max_tokens: int = 120
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95

    def __post_init__(self) -> None:
        _at_least("sample.every", self.every, 0)
        self.sampling(seed=0)

    def sampling(self, seed: int) -> Sampling:
        """Return how to choose tokens. Raises UsageError if a value is out of range."""
        return Sampling(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=seed,
        )


@dataclass(frozen=True)
class TrackConfig:
    """Who else records the run; metrics.jsonl is always written."""

    names: list[str] = field(default_factory=list)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)  # tracker -> its options

    def __post_init__(self) -> None:
        for name in self.options:
            _one_of("track.options", name, self.names or ["track.names, which is empty"])


@dataclass(frozen=True)
class ComputeConfig:
    """What does the arithmetic."""

    backend: str = "auto"  # or a name, or several, preferred first
    precision: str = "auto"
    threads: int = 0  # 0: the usable physical cores

    def __post_init__(self) -> None:
        _one_of("compute.precision", self.precision, PRECISIONS)
        _at_least("compute.threads", self.threads, 0)


@dataclass(frozen=True)
class Config:
    """Everything that decides a run; `training.run.resolve` replaces every 0 and auto."""

    tier: str = ""  # empty: the machine's
    preset: str = tiers.pick(tiers.DEFAULT).preset
    model: ModelConfig = field(default_factory=ModelConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    quantize: QuantizeConfig = field(default_factory=QuantizeConfig)
    sample: SampleConfig = field(default_factory=SampleConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    track: TrackConfig = field(default_factory=TrackConfig)

    def with_keys(self, **changes: Any) -> Config:
        """Return a copy with `section__key` replaced."""
        sections: dict[str, dict[str, Any]] = {}
        for name, value in changes.items():
            section, key = name.split("__")
            sections.setdefault(section, {})[key] = value
        return replace(
            self, **{s: replace(getattr(self, s), **keys) for s, keys in sections.items()}
        )


SECTIONS: dict[str, type] = {
    name: kind for name, kind in get_type_hints(Config).items() if kind is not str
}
NAMES = ("preset", "tier")
"""What a configuration has besides sections."""

_OPEN = ("optimizer", "scheduler")  # their further keys are the plugin's options
TABLES = ("quantize.options", "track.options")
"""Tables in which --set can name a key."""


def build_config(
    preset_name: str | None = None,
    file: Path | None = None,
    assignments: Iterable[str] = (),
    flags: Mapping[str, Any] | None = None,
    sections: Mapping[str, Any] | None = None,
    *,
    tier: str | None = None,
    machine: str = tiers.DEFAULT,
    lr_scale: Callable[[str], float] = lambda name: 1.0,
) -> Config:
    """Return the configuration from all sources, later ones winning.

    preset_name, tier: what was asked for by name; else the file's; else the preset that the tier
    picks, and the machine's tier. A tier decides only what neither the preset nor another source
    does.

    lr_scale: optimizer -> its usual learning rate as a multiple of adamw's. Where none but preset
    or tier gives a rate, and another optimizer than theirs is named, the rate becomes its own.

    assignments: "section.key=value", the value as in TOML (a word that is no TOML value is taken as
    text); a key in one of `TABLES` adds to the table that the file has. flags: "section.key" ->
    value. sections: what a file could hold, in its place. Raises UsageError naming the first bad
    key.
    """
    layers: list[Mapping[str, Any]] = [sections or {}]
    if file is not None:
        loaded = _read_toml(file)
        in_file = {name: loaded.pop(name, None) for name in NAMES}
        preset_name = preset_name or in_file["preset"]
        tier = tier or in_file["tier"]
        layers.append(loaded)
    picked = tiers.pick(tier := _name("tier", tier or machine))
    preset_name = _name("preset", preset_name or picked.preset)
    layers.append(_nested(map(parse_assignment, assignments), layers))
    layers.append(_nested((flags or {}).items(), layers))
    from_preset = preset(preset_name)
    for section in _OPEN:
        _drop_options_of_another(section, from_preset, layers)
    merged: dict[str, Any] = picked.beside(preset_name)
    for layer in (from_preset, *layers):
        for section, keys in layer.items():
            _mapping(section, keys)
            if "epochs" in keys and "steps" not in keys:
                merged.get(section, {}).pop("steps", None)  # an earlier source's steps
            merged.setdefault(section, {}).update(keys)
    if not any("lr" in layer.get("optimizer", ()) for layer in layers):
        _take_own_rate(merged, from_preset, lr_scale)
    return on_tier(from_dict({"preset": preset_name, **merged}), tier)


def on_tier(config: Config, machine: str) -> Config:
    """Return a configuration whose tier is named: its own, else the machine's.

    The batch size is the tier's where it is 0.
    """
    tier = config.tier or machine
    size = config.train.batch_size or tiers.pick(tier).batch_size
    return replace(config, tier=tier).with_keys(train__batch_size=size)


def from_dict(data: Mapping[str, Any]) -> Config:
    """Return a configuration from nested plain data; sections and keys left out keep defaults."""
    sections = {}
    for section, keys in data.items():
        if section in NAMES:
            continue
        if section not in SECTIONS:
            raise UsageError(f"section {section!r} is not known{_nearest(section, SECTIONS)}")
        _mapping(section, keys)
        sections[section] = _section(section, dict(keys))
    names: dict[str, Any] = {key: _name(key, data[key]) for key in NAMES if key in data}
    return Config(**names, **sections)


def to_dict(config: Config) -> dict[str, Any]:
    """Return a configuration as nested plain data, as config.toml holds it."""
    data = asdict(config)
    for section in _OPEN:
        data[section].update(data[section].pop("options"))
    return data


def parse_assignment(text: str) -> tuple[str, Any]:
    """Return ("section.key", value) from "section.key=value"; the key may lie in `TABLES`."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not (table_of(key) or key.count(".") == 1) or not all(key.split(".")):
        raise UsageError(f"--set {text}: section.key=value is expected, as in train.steps=500")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value.strip()


def put(nested: dict[str, Any], key: str, value: Any) -> None:
    """Put a value under a dotted key, with tables on the way. Raises UsageError if one is none."""
    *way, last = key.split(".")
    for part in way:
        nested = nested.setdefault(part, {})
        if not isinstance(nested, dict):
            raise UsageError(f"{key}: {part} is {nested!r}, no table")
    nested[last] = value


def table_of(key: str) -> str | None:
    """Return which of `TABLES` a dotted key lies in, if in any."""
    return next((table for table in TABLES if key.startswith(f"{table}.")), None)


def _section(name: str, keys: dict[str, Any]) -> Any:
    kind = SECTIONS[name]
    known = [f.name for f in fields(kind)]
    if name in _OPEN:
        ours = {k: v for k, v in keys.items() if k in known and k != "options"}
        keys = {**ours, "options": {k: v for k, v in keys.items() if k not in ours}}
    for key in keys:
        if key not in known:
            raise UsageError(f"{name}.{key} is not a key of {name}{_nearest(key, known)}")
    try:
        return msgspec.convert(keys, kind)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$.")
        raise UsageError(f"{name}.{place.rstrip('`')}: {problem[0].lower()}{problem[1:]}") from None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not valid TOML: {error}") from None


def _nested(
    pairs: Iterable[tuple[str, Any]], earlier: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return pairs of a dotted key and a value as sections.

    earlier: the layers below; the table of theirs that a key adds to is the last one's.
    """
    nested: dict[str, Any] = {}
    for key, value in pairs:
        if table := table_of(key):
            section, _, name = table.partition(".")
            held = [layer[section] for layer in earlier if isinstance(layer.get(section), Mapping)]
            tables = [keys[name] for keys in held if name in keys]
            nested.setdefault(section, {}).setdefault(name, deepcopy(tables[-1]) if tables else {})
        put(nested, key, value)
    return nested


def _drop_options_of_another(
    section: str, from_preset: dict[str, Any], layers: Iterable[Mapping[str, Any]]
) -> None:
    """Drop a preset's options where another plugin is named, which need not know them."""
    ours = from_preset.get(section, {})
    for layer in layers:
        keys = layer.get(section)
        if isinstance(keys, Mapping) and keys.get("name", ours.get("name")) != ours.get("name"):
            own = {f.name for f in fields(SECTIONS[section])}
            from_preset[section] = {k: v for k, v in ours.items() if k in own}


def _take_own_rate(
    merged: dict[str, Any], from_preset: Mapping[str, Any], lr_scale: Callable[[str], float]
) -> None:
    """Replace a preset's learning rate, which is for adamw, where another optimizer is named."""
    ours = from_preset.get("optimizer", {}).get("name", OptimizerConfig.name)
    keys = merged.get("optimizer", {})
    name = keys.get("name", ours)
    if name != ours:
        rate = keys.get("lr", OptimizerConfig.lr) * lr_scale(name)
        keys["lr"] = float(f"{rate:.6g}")


def _name(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{key}: {value!r} is not a name")
    return value


def _mapping(section: str, keys: Any) -> None:
    if not isinstance(keys, Mapping):
        raise UsageError(f"{section}: a section is expected, such as [{section}]")


def _nearest(word: str, known: Iterable[str]) -> str:
    near = get_close_matches(word, list(known), 1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"


def _one_of(key: str, value: str, choices: Iterable[str]) -> None:
    if value not in choices:
        raise UsageError(f"{key}: {value!r} is not one of {', '.join(choices)}")


def _at_least(key: str, value: float, least: float) -> None:
    if not value >= least:
        raise UsageError(f"{key}: {value} is below {least}")
