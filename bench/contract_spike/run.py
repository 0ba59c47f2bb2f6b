"""What the op contract costs: the same kernels called barely (A) and through a backend (B).

    python bench/contract_spike/run.py [C1 C2] [--precision bf16] [--threads 2] [--json]

Both sides live in one process and take turns, step by step. A side's figure in a round is its least
step; the ratio is the median over rounds of B / A. Before that, losses and gradients of both sides
and of the NumPy backend are compared. `--parts` adds what each part of the Python side costs.

Throwaway: the kernels are a prototype's, and the real backend replaces them. The first run compiles
for a minute into the user's cache.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import platformdirs

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1]), str(HERE.parents[1] / "plugins")]
CACHE = Path(platformdirs.user_cache_dir("splitbit-kit")) / "contract-spike"
os.environ.setdefault("NUMBA_CACHE_DIR", str(CACHE))
os.environ.setdefault("NUMBA_THREADING_LAYER_PRIORITY", "omp tbb workqueue")

import backend  # noqa: E402
import bare  # noqa: E402
import numba  # noqa: E402
import numpy as np  # noqa: E402

from splitbit_kit.api import Context  # noqa: E402
from splitbit_kit.bundled.optimizers import AdamW  # noqa: E402
from splitbit_kit.engine.optable import OpTable  # noqa: E402
from splitbit_kit.engine.params import ParameterStore  # noqa: E402
from splitbit_kit.engine.workspace import BufferPool  # noqa: E402
from splitbit_kit.models.config import ModelConfig  # noqa: E402
from splitbit_kit.models.decoder import Decoder, parameter_specs  # noqa: E402
from splitbit_kit.models.presets import preset  # noqa: E402
from splitbit_kit.text.batches import Batch  # noqa: E402
from splitbit_kit.training.learner import Learner  # noqa: E402
from splitbit_numpy_backend import build as build_numpy  # noqa: E402

LIMIT = 1.03
TOLERANCE = {"bf16": 2e-2, "fp32": 1e-4}  # of a tensor's gradient, relative, against NumPy
LEARNING_RATE = 1e-3


class Pair:
    """Both sides of one size, from the same weights and on the same batches."""

    def __init__(self, size: str, precision: str, threads: int, whole: bool = False) -> None:
        part = preset(f"bench-{size.lower()}")
        self.config = ModelConfig(**part["model"])
        self.vocabulary = part["tokenizer"]["vocab_size"]
        self.rows, self.length = part["train"]["batch_size"], part["train"]["seq_len"]
        self.threads, self.precision = threads, precision
        # with one thread the CPU's time is known, whoever else has work for the machine
        self.clock = thread_time if threads == 1 else perf_counter
        hardware: Any = None
        self.numpy = build_numpy(hardware, "fp32", threads)
        make = backend.Spike
        if whole:
            from whole import Whole as make
        made = make(precision, threads).backend()
        self.learner = self._learner([("spike", made)])
        kind = "bf16" if precision == "bf16" else "f32"
        self.bare = bare.Bare(
            self.config, self.vocabulary, self.rows, self.length, self.learner.params, kind, threads
        )
        rng = np.random.default_rng(0)
        self.batches = [self._batch(rng) for _ in range(4)]
        self.done = 0

    def _learner(self, chain: list[Any]) -> Learner:
        specs = parameter_specs(self.config, self.vocabulary)
        params = ParameterStore(specs)
        params.initialise(specs, seed=1)
        table = OpTable([*chain, ("numpy", self.numpy)], train=True)
        return Learner(
            Decoder(self.config, params), table,
            Context(BufferPool(), threads=self.threads), AdamW(), lambda step: LEARNING_RATE,
        )  # fmt: skip

    def _batch(self, rng: np.random.Generator) -> Batch:
        count = self.rows * self.length
        # a skewed distribution, so that there is something to learn
        ids = (self.vocabulary * rng.random(count + 1) ** 3).astype(np.int32)
        starts = np.arange(self.rows + 1, dtype=np.int32) * np.int32(self.length)
        positions = np.tile(np.arange(self.length, dtype=np.int32), self.rows)
        return Batch(ids[:-1].copy(), ids[1:].copy(), positions, starts)

    def bare_step(self) -> float:
        batch = self.batches[self.done % len(self.batches)]
        self.bare.ids.a[:] = batch.ids
        self.bare.targets.a[:] = batch.targets
        start = self.clock()
        self.bare.step()
        return self.clock() - start

    def contract_step(self) -> float:
        batch = self.batches[self.done % len(self.batches)]
        start = self.clock()
        self.learner.step(self.done, [batch])
        return self.clock() - start

    def check(self, steps: int) -> dict[str, Any]:
        """Compare losses and gradients of A, B and NumPy; return the greatest differences."""
        origins = {r.origin for r in self.learner._table.resolved}
        assert origins == {"spike"}, f"served by {origins}"
        reference = self._learner([])
        batch = self.batches[0]
        self.bare.ids.a[:], self.bare.targets.a[:] = batch.ids, batch.targets
        self.bare.forward()
        self.bare.backward()
        loss_a = float(self.bare.loss.a.mean(dtype=np.float64))
        loss_b = self.learner.gradients(0, [batch])
        loss_n = reference.gradients(0, [batch])
        exact = np.array_equal(self.bare.G.a, self.learner.grads.flat)
        worst = 0.0
        for param in reference.params:
            want = reference.grads[param.name].astype(np.float64)
            got = self.learner.grads[param.name]
            worst = max(worst, float(np.linalg.norm(got - want) / np.linalg.norm(want)))
        flat_a, flat_b = self.bare.G.a, self.learner.grads.flat
        apart = float(np.linalg.norm(flat_a - flat_b) / np.linalg.norm(flat_a))
        tolerance = TOLERANCE[self.precision]
        assert apart < 1e-6, f"gradients of A and B differ by {apart:.1e}"
        assert worst < tolerance, f"gradients of B and NumPy differ by {worst:.1e}"
        assert abs(loss_b - loss_n) < tolerance * loss_n, f"losses {loss_b}, {loss_n}"
        falls: list[float] = []
        for i in range(steps):  # A trains beside B; NumPy beside both where it is quick
            at = self.batches[i % len(self.batches)]
            self.bare_step()
            outcome = self.learner.step(self.done, [at])
            self.done += 1
            a = float(self.bare.loss.a.mean(dtype=np.float64))
            falls.append(outcome.loss)
            assert abs(a - outcome.loss) < 1e-4 * a, f"step {i + 1}: {a}, {outcome.loss}"
        drift = float(np.abs(self.bare.P.a - self.learner.params.values).max())
        return {
            "loss_bare": loss_a, "loss_contract": loss_b, "loss_numpy": loss_n,
            "gradients_equal_to_the_bit": exact, "gradient_error_vs_bare": apart,
            "gradient_error_vs_numpy": worst, "steps_together": steps, "loss_first": falls[0],
            "loss_last": falls[-1], "largest_weight_difference": drift,
        }  # fmt: skip

    def rounds(self, count: int, seconds: float) -> dict[str, Any]:
        """Time both sides, turn by turn; least steps and ratio of each round."""
        least: list[tuple[float, float]] = []
        for _ in range(count):
            a: list[float] = []
            b: list[float] = []
            while sum(a) < seconds or len(a) < 5:
                first, second = (a, b) if self.done % 2 else (b, a)
                for side in (first, second):
                    side.append(self.bare_step() if side is a else self.contract_step())
                self.done += 1
            least.append((min(a), min(b)))
        ratios = [b / a for a, b in least]
        return {
            "bare_ms": 1e3 * min(a for a, _ in least),
            "contract_ms": 1e3 * min(b for _, b in least),
            "ratio": statistics.median(ratios),
            "ratio_of_least": min(b for _, b in least) / min(a for a, _ in least),
            "rounds": [{"bare_ms": 1e3 * a, "contract_ms": 1e3 * b} for a, b in least],
        }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sizes", nargs="*", default=["C1"], help="C1, C2 (default: C1)")
    parser.add_argument("--precision", default="bf16", choices=("bf16", "fp32"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.0, help="a side a round")
    parser.add_argument("--parts", action="store_true", help="what each part of Python costs")
    parser.add_argument("--json", action="store_true", help="one object as the last line")
    parser.add_argument("--whole", action="store_true", help="each block as one compiled call")
    options = parser.parse_args()
    report: dict[str, Any] = {"limit": LIMIT, "cpu": cpu(), "threads": options.threads}
    say = sys.stderr if options.json else sys.stdout
    failed = False
    for size in options.sizes:
        pair = Pair(size, options.precision, options.threads, options.whole)
        checked = pair.check(steps=40 if size == "C1" else 8)
        for key, value in checked.items():
            print(f"{size} {key}: {value}", file=say)
        timed = pair.rounds(options.rounds, options.seconds)
        for each in timed["rounds"]:
            a, b = each["bare_ms"], each["contract_ms"]
            print(f"{size} bare {a:.3f} ms, contract {b:.3f} ms, {b / a:.4f}", file=say)
        print(
            f"{size} {options.precision}, {options.threads} threads, {numba.threading_layer()}: "
            f"ratio {timed['ratio']:.4f} (median of rounds), {timed['ratio_of_least']:.4f} (least)",
            file=say,
            flush=True,
        )
        report[size] = {"precision": options.precision, **checked, **timed}
        if options.parts:
            from parts import parts

            report[size]["parts"] = parts(pair, say)
        failed |= size == "C1" and timed["ratio"] > LIMIT
    report["threading_layer"] = numba.threading_layer()
    if options.json:
        print(json.dumps(report))
    return int(failed)


def cpu() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    raise SystemExit(main())
