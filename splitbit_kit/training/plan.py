"""What a training will take of memory and disk, and what would fit where that is not there."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import inf, prod
from pathlib import Path

import numpy as np
import psutil

from splitbit_kit.api import TIERS, SplitbitError
from splitbit_kit.formats.checkpoint import LEAST_KEPT
from splitbit_kit.models import tiers
from splitbit_kit.models.decoder import parameter_specs
from splitbit_kit.quantities import counted, size
from splitbit_kit.quantize import packed_format, reason_kept
from splitbit_kit.registry import Registry
from splitbit_kit.text.batches import Windows
from splitbit_kit.training.config import Config, build_config
from splitbit_kit.training.data import Data
from splitbit_kit.training.rehearsal import (
    Rehearsal,
    TooLargeError,
    rehearse,
    resident_bytes,
)
from splitbit_kit.training.run_folder import RunFolder

ORDER_BYTES = 24  # a window: its place in the epoch's order, and what sorting takes
LINE_BYTES = 256  # of metrics.jsonl
FEWEST_TOKENS = 16  # a sequence; shorter ones teach nothing worth a suggestion
SPARE = 0.97  # of the free memory is what a suggestion may take: the next measurement differs
OTHERS = "end other programs"
ANYWAY = "--set train.check_resources=false tries it all the same"


@dataclass(frozen=True)
class Memory:
    """Bytes at the peak, part by part."""

    parameters: int
    gradients: int
    moments: int  # the optimizer's state
    activations: int  # what grows with the batch
    backend: int  # its converted weights and scratch memory
    copies: int  # the quantised one, while it is written
    data: int  # the token file, which is mapped, and the order of the samples
    interpreter: int  # Python, libraries, compiled kernels

    @property
    def total(self) -> int:
        """All parts together."""
        total: int = sum(asdict(self).values())
        return total


@dataclass(frozen=True)
class Disk:
    """Bytes in the run folder when it is fullest; those of the token file, in the cache, apart."""

    checkpoints: int
    best: int
    final: int
    copies: int  # quantised ones
    temporary: int  # what is written in full before it takes another's place
    metrics: int
    tokens: int

    @property
    def total(self) -> int:
        """All in the run folder."""
        total: int = sum(asdict(self).values())
        return total - self.tokens


@dataclass(frozen=True)
class Plan:
    """What a training takes. Sizes are in bytes, of a machine as busy as it is now."""

    config: Config  # resolved
    windows: Windows  # the samples
    parameters: int  # how many numbers are trained
    memory: Memory
    memory_available: float  # free, and what this process holds already
    peak: int  # of the memory; above the total where making the tokenizer took more
    disk: Disk
    disk_available: int
    folder: Path  # whose disk that is
    rehearsal: Rehearsal

    @property
    def memory_needed(self) -> int:
        """The bytes that must be free: mapped tokens the system drops when it needs the room."""
        return self.memory.total - self.disk.tokens

    @property
    def memory_fits(self) -> bool:
        """Whether that much memory is there."""
        return self.memory_needed <= self.memory_available

    @property
    def disk_fits(self) -> bool:
        """Whether the room for the run folder is there."""
        return self.disk.total <= self.disk_available


def check(
    config: Config,
    data: Data,
    windows: Windows,
    registry: Registry,
    folder: Path | None,
    begun: bool,
) -> None:
    """Raise SplitbitError, saying what would fit, if memory or disk is short for a training.

    begun: the run is resumed, and so keeps its model and batch.
    """
    bounds = make_plan(config, data, windows, registry, folder, quick=True, begun=begun)
    if not (bounds.memory_fits and bounds.disk_fits):
        plan = make_plan(config, data, windows, registry, folder, begun=begun)
        refuse(plan, registry, data.tokenizer.vocab_size, begun)


def make_plan(
    config: Config,
    data: Data,
    windows: Windows,
    registry: Registry,
    folder: Path | None,
    quick: bool = False,
    begun: bool = False,
) -> Plan:
    """Return what a resolved configuration takes; quick: at most. begun: as for `check`.

    folder: where the run will be; None: a new one below runs/. Raises SplitbitError, saying what
    would fit, if not even the smallest steps can be tried; with check_resources off, they are.
    """
    vocabulary = data.tokenizer.vocab_size
    available = memory_available(registry)
    rehearsal = _rehearsed(config, windows, vocabulary, registry, available, quick, begun)
    memory = _memory(config, rehearsal, data, windows, registry)
    disk = _disk(config, memory, data)
    home = folder or Path("runs")
    return Plan(
        config=config,
        windows=windows,
        parameters=parameter_count(config, vocabulary),
        memory=memory,
        memory_available=available,
        peak=max(memory.total, peak_bytes()),
        disk=disk,
        disk_available=_free_disk(home) + _held(folder),
        folder=home,
        rehearsal=rehearsal,
    )


def refuse(plan: Plan, registry: Registry, vocabulary: int, begun: bool = False) -> None:
    """Raise SplitbitError if a plan asks for more than there is; otherwise as `check`."""
    if not plan.memory_fits:
        fix = OTHERS if begun else _what_fits(plan, registry, vocabulary)
        what = f"the training needs {size(plan.memory_needed)} at its peak"
        raise _memory_error(what, plan.memory_available, fix)
    if not plan.disk_fits:
        has = f"the run needs {size(plan.disk.total)}, {size(plan.disk_available)} are free"
        raise SplitbitError(f"{plan.folder}: {has}; {_what_fits_disk(plan)}; {ANYWAY}")


def parameter_count(config: Config, vocabulary: int) -> int:
    """Return how many numbers are trained."""
    return sum(prod(spec.shape) for spec in parameter_specs(config.model, vocabulary))


# ---- memory


def memory_available(registry: Registry) -> float:
    """Return the memory that is free, with what this process holds; at most what the probe says."""
    free: float = psutil.virtual_memory().available + resident_bytes()
    return min(free, registry.probe().memory_bytes or inf)


def peak_bytes() -> int:
    """Return the most memory that this process has ever held."""
    try:
        # not ru_maxrss where it can be helped: it counts what the parent held when it forked
        for line in Path("/proc/self/status").read_text("ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _rehearsed(
    config: Config,
    windows: Windows,
    vocabulary: int,
    registry: Registry,
    available: float,
    quick: bool,
    begun: bool,
) -> Rehearsal:
    """Return the rehearsal. Raises SplitbitError if the memory is too small even for that."""
    room = available - resident_bytes() if config.train.check_resources else inf
    if _least(config, vocabulary) > room:
        what = f"two layers' weights and gradients alone need {size(_least(config, vocabulary))}"
        fix = OTHERS if begun else _smaller_preset(config, windows, vocabulary, registry)
        raise _memory_error(what, room, fix)
    try:
        return rehearse(config, vocabulary, registry, room, quick)
    except TooLargeError:
        tokens = counted(config.train.seq_len, "token")
        what = f"two sequences of {tokens} in two layers need more than that"
        fix = OTHERS if begun else _shorter(config, windows, vocabulary, registry)
        raise _memory_error(what, room, fix) from None


def _least(config: Config, vocabulary: int) -> int:
    """Return the bytes of what is known beforehand of a rehearsal."""
    item = 8 if config.compute.precision == "fp64" else 4
    shallow = config.with_keys(model__layers=min(2, config.model.layers))
    return 2 * item * parameter_count(shallow, vocabulary)


def _memory_error(what: str, free: float, fix: str) -> SplitbitError:
    return SplitbitError(f"memory: {what}, {size(free)} are free; {fix}; {ANYWAY}")


def _memory(
    config: Config, rehearsal: Rehearsal, data: Data, windows: Windows, registry: Registry
) -> Memory:
    taken = rehearsal.at(config.model.layers, config.train.batch_size)
    mapped = data.training.nbytes + data.validation.nbytes
    now = psutil.Process().memory_info()
    # mapped tokens are within the process's memory as far as the system has left them there
    resident = min(mapped, getattr(now, "shared", now.rss // 2))
    return Memory(
        parameters=round(taken.parameters),
        gradients=round(taken.gradients),
        moments=round(taken.moments),
        activations=round(taken.activations),
        backend=round(taken.backend),
        copies=_packed_bytes(config, data.tokenizer.vocab_size, registry),
        data=mapped + _order_bytes(windows),
        interpreter=max(0, rehearsal.process_bytes - resident),
    )


def _order_bytes(windows: Windows) -> int:
    return ORDER_BYTES * windows.per_epoch


def _packed_bytes(config: Config, vocabulary: int, registry: Registry) -> int:
    """Return the bytes of the model in the format that its copies will have; 0 without one."""
    if config.quantize.format == "none":
        return 0
    form = packed_format(registry, config.quantize.format, config.quantize.options)
    total = 0
    for spec in parameter_specs(config.model, vocabulary):
        if len(spec.shape) != 2 or reason_kept(spec.name, spec.shape, form):
            total += prod(spec.shape) * (8 if config.compute.precision == "fp64" else 4)
        else:
            arrays = form.quantizer.layout((spec.shape[0], spec.shape[1])).values()
            total += sum(np.dtype(dtype).itemsize * prod(shape) for dtype, shape in arrays)
    return total


def _what_fits(plan: Plan, registry: Registry, vocabulary: int) -> str:
    """Return, in words, the least change that makes a training fit."""
    model, train = plan.config.model, plan.config.train
    others = plan.memory.interpreter + plan.memory.copies + _order_bytes(plan.windows)
    room = SPARE * (plan.memory_available - others)

    def fits(layers: int, sequences: int) -> bool:
        return plan.rehearsal.at(layers, sequences).total <= room

    if rows := _greatest(train.batch_size - 1, lambda n: fits(model.layers, n)):
        return f"--batch-size {rows} fits"
    if fits(model.layers, 0):
        return _shorter(plan.config, plan.windows, vocabulary, registry)
    if layers := _greatest(model.layers - 1, lambda n: fits(n, 1)):
        return f"--set model.layers={layers} with --batch-size 1 fits"
    return _smaller_preset(plan.config, plan.windows, vocabulary, registry)


def _greatest(most: int, fits: Callable[[int], bool]) -> int:
    """Return the greatest n from 1 to most that fits, as all below it do; 0 if there is none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _shorter(config: Config, windows: Windows, vocabulary: int, registry: Registry) -> str:
    """Return, in words, the longest sequences, by halves, of which a batch of one fits."""
    longest = 0
    for seq_len in _halves(config.train.seq_len)[::-1]:  # a long one takes long to be too long
        shorter = config.with_keys(train__seq_len=seq_len, train__batch_size=1)
        if not _fits(shorter, windows, vocabulary, registry):
            break
        longest = seq_len
    if longest:
        return f"--seq-len {longest} with --batch-size 1 fits"
    return _smaller_preset(config, windows, vocabulary, registry)


def _halves(count: int) -> list[int]:
    found = []
    while count // 2 >= FEWEST_TOKENS:
        count //= 2
        found.append(count)
    return found


def _smaller_preset(config: Config, windows: Windows, vocabulary: int, registry: Registry) -> str:
    """Return, in words, the largest model below this one that a tier picks and that fits."""
    for tier in reversed(TIERS):
        smaller = build_config(tiers.pick(tier).preset, tier=config.tier)
        most = smaller.tokenizer.vocab_size or vocabulary
        if parameter_count(smaller, most) >= parameter_count(config, vocabulary):
            continue
        seq_len = smaller.train.seq_len or smaller.model.context
        kept = {name: getattr(config, name) for name in ("optimizer", "quantize", "compute")}
        tried = replace(smaller, **kept).with_keys(train__seq_len=seq_len)
        if _fits(tried, windows, most, registry):
            return f"--preset {tried.preset}{_in_its_way(config, tried)} fits"
    return OTHERS


def _in_its_way(config: Config, wanted: Config) -> str:
    """Return, in words, what was said of this configuration that would win over a preset's."""
    own = build_config(config.preset, tier=config.tier)
    said = []
    if config.train.batch_size != own.train.batch_size:
        said.append(f"--batch-size {wanted.train.batch_size}")
    if config.train.seq_len != (own.train.seq_len or own.model.context):
        said.append(f"--seq-len {wanted.train.seq_len}")
    if config.model != own.model:
        said.append("no model.* settings")
    return f" with {' and '.join(said)}" if said else ""


def _fits(config: Config, windows: Windows, vocabulary: int, registry: Registry) -> bool:
    """Whether a configuration fits into the memory, with some to spare."""
    seq_len = min(config.train.seq_len, windows.seq_len)  # of longer ones there are fewer
    others = _order_bytes(replace(windows, seq_len=seq_len))
    others += _packed_bytes(config, vocabulary, registry)
    for quick in (True, False):
        available = memory_available(registry)
        room = available - resident_bytes()
        if _least(config, vocabulary) > room:
            return False
        try:
            rehearsal = rehearse(config, vocabulary, registry, room, quick)
        except TooLargeError:
            return False
        taken = rehearsal.at(config.model.layers, config.train.batch_size)
        if taken.total + rehearsal.process_bytes + others <= SPARE * available:
            return True
    return False


# ---- disk


def _disk(config: Config, memory: Memory, data: Data) -> Disk:
    model = memory.parameters
    checkpoint = model + memory.moments
    steps, every = config.train.steps, config.checkpoint.save_every
    made = 1 + -(-steps // every)  # the first before any step
    kept = min(made, config.checkpoint.keep)
    lines = steps + steps // config.train.eval_every + steps // (config.sample.every or steps)
    return Disk(
        checkpoints=kept * checkpoint,
        best=model,
        final=model,
        copies=memory.copies * (1 + (kept + 1 if config.quantize.every else 0)),
        temporary=checkpoint if made > kept else model,
        metrics=lines * LINE_BYTES,
        tokens=data.training.nbytes + data.validation.nbytes,
    )


def _free_disk(folder: Path) -> int:
    """Return the bytes that a user may still write where a folder is, or will be."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


def _held(folder: Path | None) -> int:
    """Return the bytes of a run's files that are in a folder already: this run will replace them"""
    parts = RunFolder(folder).parts() if folder else []
    files = [file for part in parts for file in (part, *part.rglob("*")) if file.is_file()]
    return sum(file.stat().st_size for file in files)


def _what_fits_disk(plan: Plan) -> str:
    """Return, in words, what makes a run fit on its disk."""
    checkpoint = plan.memory.parameters + plan.memory.moments
    over = plan.disk.total - plan.disk_available
    fewer = -(-over // checkpoint)
    kept = plan.config.checkpoint.keep
    if kept - fewer >= LEAST_KEPT:
        return f"--set checkpoint.keep={kept - fewer} fits"
    return f"free {size(over)}, or choose another --out"
