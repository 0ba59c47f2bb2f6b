"""What a run notes of its machine and software."""

import json
from dataclasses import dataclass, field

import numpy as np
import pytest

from splitbit_kit import __version__
from splitbit_kit.api import Hardware, RunStarted, hookimpl
from splitbit_kit.formats import jsonl
from splitbit_kit.registry import Registry
from splitbit_kit.training.machine import machine_facts, processor_name, software_versions
from splitbit_kit.training.run import Surroundings, resume, train

PLAIN = Hardware(threads=6, cores=3, memory_bytes=8 * 10**9, tier="light", sources={"tier": "said"})


def test_facts_are_what_the_probe_found_and_what_the_machine_is():
    found = machine_facts(PLAIN)
    assert {name: found[name] for name in ("threads", "cores", "memory_bytes", "tier")} == {
        "threads": 6,
        "cores": 3,
        "memory_bytes": 8 * 10**9,
        "tier": "light",
    }
    assert "sources" not in found
    for name in ("processor", "architecture", "system"):
        assert isinstance(found[name], str) and found[name].strip()


def test_facts_of_any_type_become_plain():
    @dataclass(frozen=True)
    class More(Hardware):
        odd: object = field(default_factory=lambda: {"a": {2, 1}, 3: (np.float32(0.5), None)})

    found = machine_facts(More(threads=1, cores=1, memory_bytes=10**9, tier="mobile"))
    assert json.loads(json.dumps(found)) == found
    assert found["odd"] == {"a": ["1", "2"], "3": ["0.5", None]}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel name\t: Abacus 9 @ 2 GHz\nflags\t: fpu", "Abacus 9 @ 2 GHz"),
        ("processor\t: 0\nBogoMIPS : 108\n\nModel\t\t: Raspberry Pi 5\n", "Raspberry Pi 5"),
    ],
)
def test_the_processor_has_the_name_that_its_maker_gave_it(tmp_path, text, name):
    (tmp_path / "cpuinfo").write_text(text, "utf-8")
    assert processor_name(tmp_path / "cpuinfo") == name


@pytest.mark.parametrize("content", [None, b"", b"model name\t:\n", b"\xff\xfe\x00"])
def test_without_a_name_there_is_still_something(tmp_path, content):
    if content is not None:
        (tmp_path / "cpuinfo").write_bytes(content)
    assert processor_name(tmp_path / "cpuinfo")


def test_versions_are_ours_and_those_that_can_change_the_numbers():
    found = software_versions([("splitbit-kit", "9"), ("their-optimizer", "1.2")])
    assert found["splitbit-kit"] == __version__
    assert found["numpy"] == np.__version__
    assert found["their-optimizer"] == "1.2"
    assert "python" in found


class Probe:
    @hookimpl
    def probe_hardware(self):
        return PLAIN


def test_every_start_of_a_run_is_noted(tmp_path, text):
    from tiny_run import TINY

    events = []
    around = Surroundings(Registry(extra={"probe": Probe()}), [events.append])
    train(TINY, text, tmp_path / "run", around=around)
    resume(tmp_path / "run", {"train.steps": 10}, around=around)
    rows = [row for row in jsonl.read(tmp_path / "run/metrics.jsonl") if row["kind"] == "run"]
    assert [(row["step"], row["steps"]) for row in rows] == [(0, 8), (8, 10)]
    started = [event for event in events if isinstance(event, RunStarted)]
    for row, event in zip(rows, started, strict=True):
        assert row["machine"] == event.machine
        assert row["versions"] == event.versions
        assert row["origins"] == event.origins
        assert row["parameters"] == event.parameters
        assert row["time"].endswith("+00:00")
