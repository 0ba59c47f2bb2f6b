"""SPLITBIT_DEBUG=1: what a kernel does wrong is an error that names it; what is right passes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("numba")
from splitbit_numba_backend.simd.debug import readable

# The ops of the classes, without the border: so kernels get what the border would refuse.
PROGRAM = """
import json
import numpy as np
from splitbit_kit.api import Context, Hardware, Param
from splitbit_kit.engine.workspace import BufferPool
from splitbit_numba_backend import table
from splitbit_numba_backend.blocks.small import Embedding
from splitbit_numba_backend.runtime import Runtime

built = table.build(Hardware(2, 2, 1 << 34, "light"), "fp32", 2)
ctx = Context(BufferPool())
weight = Param("w", np.ones((4, 40), np.float32))
norm = Param("norm", np.ones(40, np.float32))
unchecked = Embedding(Runtime("fp32", 2))

def said(op, *operands, **static):
    try:
        op(ctx, *operands, **static)
    except Exception as error:
        return f"{type(error).__name__}: {error}"

x = np.ones((3, 40), np.float32)
broken = x.copy()
broken[2, 39] = np.nan
print(json.dumps({
    "good ids": said(unchecked.forward, np.array([0, 3, 3], np.int32), weight),
    "bad ids": said(unchecked.forward, np.array([0, 3, 1 << 30], np.int32), weight),
    "just beyond": said(unchecked.forward, np.array([4], np.int32), weight),
    "before": said(unchecked.forward, np.array([-1], np.int32), weight),
    "checked": said(built.ops["embedding"].op.forward, np.array([4], np.int32), weight),
    "finite": said(built.ops["rms_norm"].op.forward, x, norm, eps=1e-5),
    "not a number": said(built.ops["rms_norm"].op.forward, broken, norm, eps=1e-5),
    "after it": said(built.ops["rms_norm"].op.forward, x, norm, eps=1e-5),
}))
"""


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=dict(os.environ, SPLITBIT_DEBUG="1"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_what_is_right_passes(said: dict[str, Any]) -> None:
    assert said["good ids"] is None
    assert said["finite"] is None
    assert said["after it"] is None


@pytest.mark.parametrize(("what", "distance"), [("bad ids", 171798691240), ("just beyond", 64)])
def test_an_access_outside_every_array_names_the_kernel(
    what: str, distance: int, said: dict[str, Any]
) -> None:
    begun = (
        "SplitbitError: SPLITBIT_DEBUG: kernels.embedding.embedding: 64 bytes at element 0 lie "
        "outside every array of the call, by "
    )
    assert said[what].startswith(begun)
    assert int(said[what].removeprefix(begun).split()[0]) <= distance


def test_an_access_before_an_array_is_outside_too(said: dict[str, Any]) -> None:
    assert "kernels.embedding.embedding" in said["before"]


def test_the_border_is_as_ever(said: dict[str, Any]) -> None:
    assert said["checked"] == "SplitbitError: embedding: id 4 is outside the vocabulary of 4"


def test_a_statistic_that_is_not_finite_names_the_row(said: dict[str, Any]) -> None:
    assert said["not a number"] == (
        "SplitbitError: SPLITBIT_DEBUG: kernels.norms.norm_forward: "
        "the statistic of row 2 is not finite"
    )


def test_mangled_names_are_read() -> None:
    mangled = "_ZN22splitbit_numba_backend7kernels9embedding9embeddingB2v3B3v12B2xxEx"
    assert readable(mangled) == "kernels.embedding.embedding"
    assert readable("cfunc.wrapper") == "cfunc.wrapper"
