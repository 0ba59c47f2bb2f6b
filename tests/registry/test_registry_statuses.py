"""Whatever a plugin does, it is listed with its status and reason, and the others work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from splitbit_kit.api import API_VERSION, SplitbitError, UsageError
from splitbit_kit.registry import STATUSES, Plugin, Registry

Code = Callable[..., str]

HEAD = "from splitbit_kit.api import OptimizerOffer, hookimpl\n"
OFFER = HEAD + "@hookimpl\ndef optimizers():\n    return "

BAD = {
    "raises": ("1 / 0", "failed", "ZeroDivisionError: division by zero"),
    "says where": ("\n\n1 / 0", "failed", "bad.py, line 3)"),
    "leaves": ("raise SystemExit(3)", "failed", "SystemExit: 3"),
    "interrupts": ("raise KeyboardInterrupt", "failed", "KeyboardInterrupt"),
    "stops a generator": ("raise GeneratorExit", "failed", "GeneratorExit"),
    "is no Python": ("def def", "failed", "SyntaxError"),
    "lacks an import": ("import no_such_module_at_all", "failed", "No module named"),
    "cannot be printed": (
        "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
        "failed",
        "E (",
    ),
    "many lines": ("raise ValueError('a\\nb')", "failed", "ValueError: a b"),
    "unknown argument": (
        HEAD + "@hookimpl\ndef step_done(event, loss): pass",
        "failed",
        "hook step_done: it has no argument loss; only event",
    ),
    "argument of a hook without": (
        HEAD + "@hookimpl\ndef optimizers(config): pass",
        "failed",
        "hook optimizers: it has no argument config; it has none",
    ),
    "misspelt hook": (
        HEAD + "@hookimpl\ndef optimisers(): return []",
        "failed",
        "hook optimisers: there is no such hook; did you mean optimizers?",
    ),
    "no hook": ("x = 1", "failed", "it implements no hook"),
    "unmarked hook": ("def backends(): return []", "failed", "backends is not marked"),
    "hook raises": (OFFER + "1 / 0", "failed", "hook optimizers: ZeroDivisionError"),
    "hook leaves": (HEAD + "@hookimpl\ndef optimizers(): raise SystemExit", "failed", "SystemExit"),
    "hook returns None": (OFFER + "None", "failed", "returned NoneType; a list of OptimizerOffer"),
    "hook returns a word": (OFFER + "'adamw'", "failed", "it returned str"),
    "hook yields": (HEAD + "@hookimpl\ndef optimizers(): yield 1", "failed", "returned generator"),
    "wrong type": (OFFER + "[dict]", "failed", "type in its list; OptimizerOffer is expected"),
    "bad name": (OFFER + "[OptimizerOffer('a b', '', dict)]", "failed", "name 'a b'"),
    "qualified name": (OFFER + "[OptimizerOffer('x:y', '', dict)]", "failed", "name 'x:y'"),
    "no text": (OFFER + "[OptimizerOffer('a', None, dict)]", "failed", "summary of a"),
    "nothing to build": (OFFER + "[OptimizerOffer('a', '', None)]", "failed", "build of a"),
    "needs a word": (
        OFFER + "[OptimizerOffer('a', '', dict, 'numba')]",
        "failed",
        "needs of a is 'numba'; a tuple",
    ),
    "no rate": (
        OFFER + "[OptimizerOffer('a', '', dict, lr_scale=0.0)]",
        "failed",
        "hook optimizers: ValueError: lr_scale of a: 0.0 is not a number above 0",
    ),
    "needs a version": (
        OFFER + "[OptimizerOffer('a', '', dict, ('numpy>=2',))]",
        "failed",
        "needs of a is ('numpy>=2',); a tuple of distribution names",
    ),
    "version that cannot be read": (
        "def __getattr__(name): raise OSError(name)\n" + OFFER + "[]",
        "failed",
        "OSError: SPLITBIT_API_VERSION",
    ),
    "name twice": (OFFER + "[OptimizerOffer('a', '', dict)] * 2", "failed", "a is offered twice"),
    "newer": (
        f"SPLITBIT_API_VERSION = {API_VERSION + 1}\n" + OFFER + "[]",
        "incompatible",
        f"written for version {API_VERSION + 1} of the plugin API, this is {API_VERSION}; a newer",
    ),
    "older": ("SPLITBIT_API_VERSION = -1\n" + OFFER + "[]", "incompatible", "newer version of it"),
    "odd version": ("SPLITBIT_API_VERSION = '1'\n" + OFFER + "[]", "failed", "a whole number"),
    "name that the api lacks": (
        "from splitbit_kit.api import Hologram",
        "incompatible",
        "another version of the plugin API",
    ),
}


def plugin(registry: Registry, name: str) -> Plugin:
    (found,) = [each for each in registry.plugins if each.entry.name == name]
    return found


@pytest.mark.parametrize("case", BAD)
def test_a_bad_plugin_is_listed_and_the_others_work(case: str, site: Any, optimizer: Code) -> None:
    code, status, reason = BAD[case]
    site.install("aa-before", optimizer("before"))
    site.install("bad", code)
    site.install("zz-after", optimizer("after"))
    registry = site.registry()

    bad = plugin(registry, "bad")
    assert bad.status == status in STATUSES
    assert reason in bad.reason
    assert "\n" not in bad.reason
    assert "Traceback" in bad.detail
    assert bad.offers == ()
    assert registry.names("optimizer") == ["after", "before"]
    (row,) = [row for row in registry.listing() if row.kind == "plugin"]
    assert (row.name, row.distribution, row.version) == ("bad", "bad", "1.0")
    assert (row.status, row.reason) == (bad.status, bad.reason)


def test_a_version_that_fits_is_ok(site: Any, optimizer: Code) -> None:
    site.install("good", f"SPLITBIT_API_VERSION = {API_VERSION}\n" + optimizer("x"))
    assert plugin(site.registry(), "good").status == "ok"


def test_a_hook_that_this_version_lacks_can_be_optional(site: Any) -> None:
    later = "@hookimpl(optionalhook=True)\ndef communicators(ranks): pass\n"
    site.install("ready", OFFER + "[OptimizerOffer('x', '', dict)]\n" + later)
    registry = site.registry()
    assert plugin(registry, "ready").status == "ok"
    assert registry.names("optimizer") == ["x"]


def test_a_failed_plugin_leaves_no_hook_behind(site: Any) -> None:
    site.install(
        "bad",
        OFFER + "1 / 0\n@hookimpl\ndef step_done(event): raise AssertionError('still there')\n",
    )
    registry = site.registry()
    registry.event(step_done())


def step_done() -> Any:
    from splitbit_kit.api import StepDone

    return StepDone(step=1, loss=1.0, lr=1e-3, grad_norm=1.0, tokens=1, seconds=0.1)


def test_what_a_plugin_prints_is_kept(site: Any, optimizer: Code, capfd: Any) -> None:
    site.install(
        "noisy",
        "import sys\n"
        "print('hello')\n"
        "sys.stderr.write('and ')\n"
        "sys.stdout.reconfigure(encoding='utf-8')\n"
        "sys.stdout.buffer.write(b'again')\n" + optimizer("x"),
    )
    found = plugin(site.registry(), "noisy")
    assert (found.status, found.detail) == ("ok", "hello\nand again")
    assert capfd.readouterr() == ("", "")


def test_a_stream_that_a_plugin_keeps_works_later(site: Any, optimizer: Code, capsys: Any) -> None:
    site.install("keeper", "import sys\nout = sys.stdout\nprint('now')\n" + optimizer("x"))
    registry = site.registry()
    print("later", file=sys.modules["keeper"].out, flush=True)
    assert capsys.readouterr().out == "later\n"
    assert plugin(registry, "keeper").detail == "now\n"


def test_a_slow_plugin_is_listed_as_such(
    site: Any, optimizer: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splitbit_kit.registry.loading.SLOW_SECONDS", 0.01)
    site.install("slow", "import time\ntime.sleep(0.02)\n" + optimizer("x"))
    registry = site.registry()
    found = plugin(registry, "slow")
    assert found.status == "ok"
    assert found.reason.startswith("slow: 0.0 s")
    assert "slow" in [row.name for row in registry.listing() if row.kind == "plugin"]


def test_what_is_not_installed_makes_an_offer_unavailable(site: Any) -> None:
    site.install(
        "half",
        OFFER + "[OptimizerOffer('far', '', dict, ('no-such-dist', 'nor-this', 'numpy')),"
        " OptimizerOffer('near', '', dict, ['NumPy'])]",
    )
    registry = site.registry()
    reason = "no-such-dist, nor-this are not installed; pip install no-such-dist nor-this"
    rows = {row.name: (row.status, row.reason) for row in registry.listing("optimizer")}
    assert rows == {"far": ("unavailable", reason), "near": ("ok", "")}
    assert registry.names("optimizer") == ["near"]
    with pytest.raises(SplitbitError, match=f"optimizer far is unavailable: {reason}") as error:
        registry.offer("optimizer", "far")
    assert not isinstance(error.value, UsageError)


def test_the_first_of_two_copies_is_used(site: Any, optimizer: Code) -> None:
    site.install("twin", optimizer("first"))
    second = site.another("second")
    site.install("Twin", optimizer("second"), version="2.0", at=second, module="twin")
    registry = site.registry()
    assert registry.names("optimizer") == ["first"]
    first, duplicate = registry.plugins
    assert (first.status, first.entry.version) == ("ok", "1.0")
    assert (duplicate.status, duplicate.entry.version) == ("duplicate", "2.0")
    assert f"is in {site.folder} too, which comes first" in duplicate.reason


def test_a_copy_is_hidden_by_a_first_one_without_plugins(site: Any, optimizer: Code) -> None:
    site.install("twin", entry_points="[console_scripts]\n")
    site.install("twin", optimizer("second"), at=site.another("second"))
    registry = site.registry()
    assert [each.status for each in registry.plugins] == ["duplicate"]


def test_one_folder_twice_on_the_path_is_no_duplicate(site: Any, optimizer: Code) -> None:
    site.install("twin", optimizer("x"))
    link = site.folder.parent / "link"
    link.symlink_to(site.folder)
    site.path += [str(site.folder), str(link)]
    assert [each.status for each in site.registry().plugins] == ["ok"]


def test_two_distributions_with_one_name_are_in_conflict(site: Any, optimizer: Code) -> None:
    site.install("lion-one", optimizer("lion", "lambda: 'one'"))
    site.install("lion-two", optimizer("lion"))
    site.install("other", optimizer("muon"))
    registry = site.registry()
    assert registry.names("optimizer") == ["lion-one:lion", "lion-two:lion", "muon"]
    rows = registry.listing("optimizer")
    assert [row.status for row in rows] == ["conflict", "conflict", "ok"]
    for row in rows[:2]:
        assert row.reason == (
            "offered by lion-one and lion-two; write lion-one:lion or lion-two:lion"
        )
    with pytest.raises(UsageError, match="write lion-one:lion or lion-two:lion"):
        registry.offer("optimizer", "lion")
    assert registry.offer("optimizer", "lion-one:lion").build() == "one"
    assert registry.offer("optimizer", "Lion_Two:lion").build is dict
    assert registry.offer("optimizer", "other:muon").name == "muon"


def test_a_bundled_name_can_be_in_conflict(site: Any, optimizer: Code) -> None:
    site.install_ourselves()
    site.install("stranger", optimizer("adamw"))
    registry = site.registry()
    with pytest.raises(UsageError, match="write splitbit-kit:adamw or stranger:adamw"):
        registry.offer("optimizer", "adamw")
    assert registry.offer("optimizer", "splitbit-kit:adamw").build.__name__ == "AdamW"
    assert site.registry("stranger").offer("optimizer", "adamw").build.__name__ == "AdamW"


def test_a_name_is_in_conflict_even_if_one_of_two_is_unavailable(
    site: Any, optimizer: Code
) -> None:
    site.install("near", optimizer("x"))
    site.install("far", OFFER + "[OptimizerOffer('x', '', dict, ('no-such-dist',))]")
    registry = site.registry()
    assert registry.names("optimizer") == ["near:x"]
    with pytest.raises(
        UsageError, match="optimizer x: offered by far and near; write far:x or near:x"
    ):
        registry.offer("optimizer", "x")
    with pytest.raises(SplitbitError, match="far:x is unavailable: no-such-dist is not installed"):
        registry.offer("optimizer", "far:x")


def test_a_name_that_one_distribution_offers_twice_is_refused_once(
    site: Any, optimizer: Code
) -> None:
    site.install("pair", module="pair_b", code=optimizer("x"), entry_points="")
    (site.folder / "pair_a.py").write_text(optimizer("x", "lambda: 'a'"), encoding="utf-8")
    info = site.folder / "pair-1.0.dist-info" / "entry_points.txt"
    info.write_text("[splitbit_kit.plugins]\na = pair_a\nb = pair_b\n", encoding="utf-8")
    rows = site.registry().listing("optimizer")
    assert [(row.plugin, row.status) for row in rows] == [("a", "ok"), ("b", "failed")]
    assert rows[1].reason == "plugin a of pair offers it too"
    assert site.registry().offer("optimizer", "x").build() == "a"


def test_entry_points_that_cannot_be_read_are_listed(site: Any, optimizer: Code) -> None:
    site.install("broken", entry_points="[splitbit_kit.plugins]\nthis is no entry point\n")
    site.install("good", optimizer("x"))
    registry = site.registry()
    broken = plugin(registry, "broken")
    assert broken.status == "failed"
    assert "entry_points.txt cannot be read" in broken.reason
    assert registry.names("optimizer") == ["x"]


def test_metadata_that_cannot_be_read_stops_nobody(site: Any, optimizer: Code) -> None:
    for name in ("y", "z"):
        site.install(f"nameless-{name}", optimizer(name))
        (site.folder / f"nameless_{name}-1.0.dist-info" / "METADATA").unlink()
    (site.folder / "empty-1.0.dist-info").mkdir()
    (site.folder / "binary-1.0.dist-info").mkdir()
    (site.folder / "binary-1.0.dist-info" / "entry_points.txt").write_bytes(b"\xff\xfe\x00")
    site.install("good", optimizer("x"))
    assert site.registry().names("optimizer") == ["x", "y", "z"]


def test_the_source_of_an_editable_install_is_told(site: Any, optimizer: Code) -> None:
    site.install("mine", optimizer("x"), editable="/home/me/mine")
    (row,) = site.registry().listing("plugin")
    assert row.location == "/home/me/mine (editable)"
    assert row.summary == "offers optimizer x"


def test_an_entry_point_can_name_an_object(site: Any, optimizer: Code) -> None:
    site.install(
        "objects",
        HEAD
        + "class Plugin:\n"
        + "    def __init__(self, name): self.name = name\n"
        + "    @hookimpl\n"
        + "    def optimizers(self): return [OptimizerOffer(self.name, '', dict)]\n"
        + "one, two = Plugin('one'), Plugin('two')\n",
        entry_points="[splitbit_kit.plugins]\na = objects:one\nb = objects:two\nc = objects:no\n",
    )
    registry = site.registry()
    assert registry.names("optimizer") == ["one", "two"]
    assert "has no attribute 'no'" in plugin(registry, "c").reason


def test_objects_that_cannot_be_compared_or_hashed_disturb_nobody(site: Any) -> None:
    site.install(
        "odd",
        HEAD
        + "class Odd:\n"
        + "    __hash__ = None\n"
        + "    def __eq__(self, other): raise TypeError\n"
        + "    @hookimpl\n"
        + "    def optimizers(self): return [OptimizerOffer('odd', '', dict)]\n"
        + "odd = Odd()\n",
        entry_points="[splitbit_kit.plugins]\nodd = odd:odd\n",
    )
    site.install("zz-after", OFFER + "[OptimizerOffer('after', '', dict)]")
    registry = site.registry()
    assert plugin(registry, "odd").status == "failed"
    assert registry.names("optimizer") == ["after"]


def test_a_listing_does_not_depend_on_the_order_of_folders(site: Any, optimizer: Code) -> None:
    other = site.another("other")
    for name in "dbca":
        site.install(name * 3, optimizer(name), at=other if name in "ab" else None)
    assert [row.name for row in site.registry().listing("plugin")] == ["aaa", "bbb", "ccc", "ddd"]
