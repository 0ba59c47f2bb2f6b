"""The offer: precisions, and which call sites are declined, with the reason."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest

import splitbit_numpy_backend as plugin
from splitbit_kit.api import Backend, Hardware, Site, learning
from splitbit_numpy_backend import table

HARDWARE = Hardware(threads=2, cores=2, memory_bytes=1 << 30, tier="light")
FLOAT = "array:float32"
GOOD = [
    Site("embedding", (), ("array:int32", "packed:any"), False),
    Site("layer_norm", (("eps", 1e-5),), (FLOAT, "param:float32", "none"), True),
    Site("linear", (), (FLOAT, "param:float32", "param:float32"), True),
    Site("linear", (), (FLOAT, "packed:any", "none"), False),
    Site("linear", (), ("array:float64", "lowrank:param:float64", "none"), True),
    Site("linear", (), (FLOAT, "lowrank:packed:any", "none"), True),
    Site("rotary", (("heads", 2), ("base", 1e4)), (FLOAT, "array:int32"), True),
    Site("attention", (("heads", 2), ("kv_heads", 1)),
         (FLOAT, FLOAT, FLOAT, "array:int32", "cache"), False),
    Site("dropout", (("rate", 0.1), ("site", 0)), (FLOAT,), True),
]  # fmt: skip
BAD = [
    (Site("gelu", (("exact", True),), (FLOAT,), True), "argument exact is not known"),
    (Site("gelu", (), ("array:float16",), True), "float16 is not served"),
    (Site("gelu", (), ("array:int32",), True), "int32 is not served"),
    (Site("add", (), (FLOAT, "array:float64"), True), "float32 and float64 are mixed"),
    (Site("rms_norm", (), (FLOAT, "lowrank:param:float32"), True), "weight: lowrank"),
    (Site("layer_norm", (), (FLOAT, "packed:any", "none"), True), "weight: packed:any is not"),
    (Site("linear", (), (FLOAT, "param:float64", "none"), True), "mixed"),
    (Site("linear", (), (FLOAT, "lowrank:param:float64", "none"), True), "mixed"),
    (Site("linear", (), (FLOAT, "lowrank:lowrank:param:float32", "none"), True), "must not be one"),
    (Site("linear", (), (FLOAT, "sparse", "none"), True), "w: sparse is not served"),
    (Site("linear", (), (FLOAT, "param:float32", "none", "none"), True), "4 operands"),
    (Site("embedding", (), ("array:float32", "param:float32"), True), "ids: array:float32"),
    (Site("embedding", (), ("array:int32", "lowrank:packed:any"), True), "table: lowrank"),
    (Site("attention", (("heads", 2), ("kv_heads", 1)),
          (FLOAT, FLOAT, FLOAT, "array:int32", "cache"), True), "inference only"),
]  # fmt: skip


def build(precision: str) -> Backend:
    (offer,) = plugin.backends()
    assert offer.name == "numpy"
    return offer.build(HARDWARE, precision, 2)


@pytest.mark.parametrize(
    ("asked", "chosen"), [("auto", "fp32"), ("fp32", "fp32"), ("fp64", "fp64")]
)
def test_precisions(asked: str, chosen: str) -> None:
    assert build(asked).precision == chosen


def test_bf16_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"bf16.*fp32 or fp64"):
        build("bf16")


@pytest.mark.parametrize("site", GOOD, ids=str)
def test_accepted(site: Site) -> None:
    assert table.OPS[site.op].accepts(site) is None


@pytest.mark.parametrize(("site", "reason"), BAD, ids=lambda value: str(value)[:60])
def test_declined(site: Site, reason: str) -> None:
    assert reason in (table.OPS[site.op].accepts(site) or "")


def test_the_offer_is_cheap() -> None:
    """Listing plugins imports no op."""
    code = "import sys, splitbit_numpy_backend as p; p.backends(); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "splitbit_numpy_backend.table" not in loaded.stdout.split()
    assert "threadpoolctl" not in loaded.stdout.split()


def test_every_loop_that_the_contract_pins_is_there() -> None:
    pinned = re.findall(r"^(\w+)\(.*\) -> (?:float|None)$", inspect.getsource(learning), re.M)
    assert "squared_norm" in pinned
    assert sorted(table.FLAT) == sorted(pinned)
