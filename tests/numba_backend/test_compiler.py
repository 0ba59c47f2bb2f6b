"""How kernels are compiled: each once, found again by the next process, and what is said of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from numba import types
from numba.core.compiler_lock import global_compiler_lock

from splitbit_kit.api import Site
from splitbit_numba_backend import cache, compiler, first_run
from splitbit_numba_backend.cache import KernelCache, use_safe_cache
from splitbit_numba_backend.first_run import FirstRun

use_safe_cache()

# Programs of our package that live outside it: two that call one unit, and parts
PROGRAMS = """
from splitbit_numba_backend.compiler import kernel, program, shared
from splitbit_numba_backend.simd.pointers import argument, float32_pointer, get, put

@kernel
def part(x, n):
    return get(x, n) + 1

@shared
def unit(x, n):
    put(x, n, part(x, n))

def first(thread, threads, args):
    unit(float32_pointer(args), 0)

def second(thread, threads, args):
    unit(float32_pointer(args), 1)
    put(float32_pointer(args), 2, part(float32_pointer(args), 1))
"""
USE = """
import importlib.util, json, sys
import numpy as np
from splitbit_numba_backend import compiler
from splitbit_numba_backend.cache import use_safe_cache

use_safe_cache()
compiled = []
compiler.before_compiling = lambda: compiled.append(1)
spec = importlib.util.spec_from_file_location("splitbit_numba_backend.probe", sys.argv[1])
probe = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = probe
spec.loader.exec_module(probe)
x = np.zeros(3, np.float32)
for function in (probe.first, probe.second):
    compiler.program("void(intp, intp, intp)", function).ctypes(0, 1, x.ctypes.data)
parts = [len(probe.part.overloads)]
print(json.dumps({"x": x.tolist(), "compiled": len(compiled), "parts": parts}))
"""


@pytest.fixture
def use(tmp_path: Path) -> Callable[[], dict[str, Any]]:
    """Return what runs both programs in a process of its own and says what was compiled."""
    source = tmp_path / "probe.py"
    source.write_text(PROGRAMS)

    def run() -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-c", USE, str(source)],
            env=os.environ | {"SPLITBIT_CACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (done.returncode, done.stderr) == (0, "")
        result: dict[str, Any] = json.loads(done.stdout)
        assert result["x"] == [1, 1, 2]
        return result

    return run


def kernels(folder: Path) -> list[Path]:
    """Return what is kept of the probe, by name."""
    return sorted((folder / "cache").glob("kernels/*/*.probe.*.kernel"))


def test_a_unit_and_a_part_are_compiled_once(
    use: Callable[[], dict[str, Any]], tmp_path: Path
) -> None:
    first = use()
    assert first["compiled"] == 3  # two programs and the unit that both call
    assert first["parts"] == [1]  # for one type, whatever numbers it was called with
    assert len(kernels(tmp_path)) == 3


def test_the_next_process_compiles_nothing(use: Callable[[], dict[str, Any]]) -> None:
    use()
    assert use()["compiled"] == 0


@pytest.mark.parametrize("lost", ["unit", "first", "second"])
def test_what_is_lost_is_made_anew(
    use: Callable[[], dict[str, Any]], tmp_path: Path, lost: str
) -> None:
    use()
    (path,) = (path for path in kernels(tmp_path) if f".probe.{lost}-" in path.name)
    path.unlink()
    assert use()["compiled"] == 1
    assert use()["compiled"] == 0


# ---- two processes


def plus_one(x: int) -> int:
    return x + 1


SIGNATURE = types.intp(types.intp)


@pytest.fixture
def kept(tmp_path: Path) -> tuple[KernelCache, Any, Path]:
    """Return a cache, a compiled form for it, and where the claim to compile that is."""
    made = compiler.cfunc(SIGNATURE)(plus_one)
    context = made._targetdescr.target_context
    with global_compiler_lock:
        result = made._compiler.compile(SIGNATURE.args, SIGNATURE.return_type)
        result.library.finalize()
    found = KernelCache(plus_one, tmp_path)
    claim = found._path(SIGNATURE, context.codegen()).with_suffix(".claim")
    return found, (context, result), claim


def test_a_claim_is_given_back(kept: tuple[KernelCache, Any, Path]) -> None:
    found, (context, result), claim = kept
    assert found.load_overload(SIGNATURE, context) is None
    assert claim.exists()
    assert found.load_overload(SIGNATURE, context) is None  # does not wait for itself
    found.save_overload(SIGNATURE, result)
    assert not claim.exists()
    assert found.load_overload(SIGNATURE, context) is not None
    assert not claim.exists()


HOLD = """
import sys
from pathlib import Path
from splitbit_numba_backend.cache import _claim
assert _claim(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_what_another_process_compiles_is_waited_for_as_long_as_it_lives(
    kept: tuple[KernelCache, Any, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, (context, _), claim = kept
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(claim.with_suffix(".kernel"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        looks: list[float] = []

        def look(seconds: float) -> None:
            looks.append(seconds)
            if len(looks) == 3:
                other.kill()
                other.wait()

        monkeypatch.setattr(cache.time, "sleep", look)
        assert found.load_overload(SIGNATURE, context) is None
    assert len(looks) >= 3
    cache._give_back(claim.with_suffix(".kernel"))


# ---- what is said


def test_a_training_is_helped_and_told_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    helped: list[str] = []
    lines: list[str] = []
    monkeypatch.setattr(first_run, "start_helper", helped.append)
    run = FirstRun()
    run.hear(lines.append)
    accepts = run.watched(lambda site: "an answer", "bf16", 2)
    assert accepts(Site("linear", ("array:float32",), (), train=True)) == "an answer"
    run.compiling()
    run.compiling()  # soon after: not another line
    assert helped == ["bf16"]
    assert len(lines) == 1
    assert lines[0].startswith("compiling kernels for this machine, once")


def test_inference_is_not_helped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_run, "start_helper", lambda precision: pytest.fail("helped"))
    run = FirstRun()
    run.watched(lambda site: None, "fp32", 2)(Site("linear", (), (), train=False))
    run.compiling()


def test_what_is_compiled_ahead_is_there() -> None:
    for place in (*first_run.TRAINING, *first_run.SAMPLING):
        assert first_run.program_at(place).bf16 is not None


def test_a_first_training_says_that_it_compiles_and_a_second_has_no_need(tmp_path: Path) -> None:
    sizes = ["model.layers=1", "model.width=32", "model.heads=1", "train.seq_len=32"]
    options = ["--backend", "numba", "--precision", "fp32", "--steps", "1", "--overwrite"]
    command = ["train", "--preset", "nanogpt-laptop", *options, "--out", str(tmp_path / "run")]
    command += [word for size in sizes for word in ("--set", size)]
    settings = {"SPLITBIT_CACHE": str(tmp_path / "cache"), "PYTHONIOENCODING": "utf-8"}

    def train() -> str:
        done = subprocess.run(
            [sys.executable, "-m", "splitbit_kit", *command],
            env=os.environ | settings,
            capture_output=True,
            encoding="utf-8",
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    said = "compiling kernels for this machine, once"
    assert said in train()
    assert said not in train()
