"""Looking offers up, choosing plugins, commands, options."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

import splitbit_kit
from splitbit_kit._metadata import installed, normalized
from splitbit_kit.api import SplitbitError, UsageError
from splitbit_kit.registry import (
    KINDS,
    PluginOptions,
    Registry,
    commands,
    options_of,
)

Code = Callable[..., str]

OURS = ["adafactor", "adamw", "lion", "muon", "sgd"]


# ---- our own


def test_our_own_plugins_load_from_the_entry_points_of_the_project(site: Any) -> None:
    site.install_ourselves()
    registry = site.registry()
    assert [row.reason for row in registry.listing() if row.status != "ok"] == []
    assert registry.names("optimizer") == OURS
    assert registry.names("scheduler") == ["constant", "cosine", "inverse_sqrt", "linear", "wsd"]
    assert "numpy" in registry.names("backend")
    assert registry.names("probe") == ["hardware"]
    assert registry.probe().threads >= registry.probe().cores >= 1


def test_the_listing_is_quiet_about_plugins_without_a_fault(site: Any, optimizer: Code) -> None:
    site.install("good", optimizer("x"))
    site.install(
        "listener",
        "from splitbit_kit.api import hookimpl\n@hookimpl\ndef step_done(event): pass\n",
    )
    registry = site.registry()
    assert [(row.kind, row.name) for row in registry.listing()] == [
        ("optimizer", "x"),
        ("plugin", "listener"),
    ]
    assert [row.name for row in registry.listing("plugin")] == ["good", "listener"]
    assert registry.listing("quantizer") == []


def test_everything_explains_itself_without_any_plugin(site: Any) -> None:
    registry = site.registry()
    assert registry.listing() == []
    assert not registry.installed
    for kind in KINDS:
        assert registry.names(kind) == []
        with pytest.raises(SplitbitError, match=r"not installed.*pip install -e \."):
            registry.offer(kind, "adamw")
    assert registry.probe().threads >= 1


def test_bundled_plugins_that_are_gone_are_listed(site: Any) -> None:
    site.install(
        "splitbit-kit",
        module="_us",
        entry_points="[splitbit_kit.plugins]\noptimizers = splitbit_kit.bundled.gone\n",
    )
    registry = site.registry()
    assert [(row.name, row.status) for row in registry.listing()] == [("optimizers", "failed")]
    with pytest.raises(UsageError, match=r"there are none \(not loaded: optimizers; see"):
        registry.offer("optimizer", "adamw")


def test_listing_imports_nothing_heavy_and_is_quick(site: Any) -> None:
    site.install_ourselves()
    code = (
        "import sys, time\n"
        "from splitbit_kit.registry import Registry\n"
        "rows = Registry().listing()\n"
        "assert any(row.name == 'adamw' for row in rows), rows\n"
        "heavy = {'numba', 'llvmlite', 'tokenizers', 'rich', 'psutil'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "print(time.process_time())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 2  # generous: the aim, 0.6 s, is measured elsewhere


# ---- names


def test_an_unknown_name_suggests_the_nearest_and_lists_all(site: Any, optimizer: Code) -> None:
    site.install_ourselves()
    site.install("more", optimizer("Shampoo"))
    everyone = ", ".join(["Shampoo", *OURS])
    with pytest.raises(UsageError, match=rf"did you mean Shampoo\? There are: {everyone}$"):
        site.registry().offer("optimizer", "shampo")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("adam", "optimizer adam: there is no such optimizer; did you mean adamw? There are: a"),
        ("ADAMW", "did you mean adamw?"),
        ("xyz", f"there is no such optimizer; there are: {', '.join(OURS)}"),
        ("stranger:adamw", "there is no such optimizer"),
        ("", "there is no such optimizer"),
        (":", "there is no such optimizer"),
    ],
)
def test_an_unknown_name_is_a_usage_error(site: Any, name: str, hint: str) -> None:
    site.install_ourselves()
    with pytest.raises(UsageError) as error:
        site.registry().offer("optimizer", name)
    assert hint in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_kind_is_a_usage_error(site: Any) -> None:
    with pytest.raises(UsageError, match="no such kind; did you mean optimizer"):
        site.registry().listing("optimizers")


def test_an_object_can_be_a_plugin_of_this_process(site: Any, optimizer: Code) -> None:
    namespace: dict[str, Any] = {}
    exec(optimizer("x"), namespace)
    plugin = SimpleNamespace(optimizers=namespace["optimizers"])
    registry = site.registry(extra={"mine": plugin})
    assert registry.offer("optimizer", "local:x") is registry.offer("optimizer", "x")


# ---- which plugins may load


@pytest.mark.parametrize(
    ("value", "only"), [("", ()), ("a", ("a",)), (" a , b,", ("a", "b")), (None, None)]
)
def test_the_environment_names_plugins(
    value: str | None, only: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPLITBIT_PLUGINS", raising=False)
    if value is not None:
        monkeypatch.setenv("SPLITBIT_PLUGINS", value)
    assert PluginOptions().only == only


OPTIONS = {
    "by plugin": (PluginOptions(("two",)), {"one", "adamw"}, "-p no:two"),
    "by distribution": (PluginOptions(("Dist.Two",)), {"one", "adamw"}, "-p no:Dist.Two"),
    "by both": (PluginOptions(("dist-two:two",)), {"one", "adamw"}, "-p no:dist-two:two"),
    "bundled": (PluginOptions(("optimizers",)), {"one", "two"}, "-p no:optimizers"),
    "all of ours": (PluginOptions(("splitbit-kit",)), {"one", "two"}, "-p no:splitbit-kit"),
    "strangers": (PluginOptions(third_party=False), {"adamw"}, "--no-plugins"),
    "others": (PluginOptions(only=("one",)), {"one", "adamw"}, "SPLITBIT_PLUGINS does not name"),
    "by nobody": (PluginOptions(only=()), {"adamw"}, "SPLITBIT_PLUGINS does not name it"),
    "both ways": (
        PluginOptions(disabled=("one",), only=("one", "dist-two")),
        {"two", "adamw"},
        "-p no:one",
    ),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_a_disabled_plugin_is_never_imported(case: str, site: Any, optimizer: Code) -> None:
    options, expected, reason = OPTIONS[case]
    site.install_ourselves()
    site.install("dist-one", optimizer("one"), name="one")
    site.install("dist-two", optimizer("two"), name="two")
    registry = site.registry(options=options)
    assert expected <= set(registry.names("optimizer")) <= expected | set(OURS)
    disabled = [each for each in registry.plugins if each.status == "disabled"]
    assert any(each.reason.startswith(reason) for each in disabled)
    for name in ("one", "two"):
        assert (f"dist_{name}" in sys.modules) == (name in expected)


def test_the_environment_holds_where_nothing_else_is_said(
    site: Any, optimizer: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.install("one", optimizer("x"))
    site.install("two", optimizer("y"))
    monkeypatch.setenv("SPLITBIT_PLUGINS", "two")
    assert Registry(path=site.path).names("optimizer") == ["y"]


@pytest.mark.parametrize(
    ("options", "where"),
    [(PluginOptions(("gooood",)), "-p no:"), (PluginOptions(only=("gooood",)), "SPLITBIT_PLUGINS")],
)
def test_an_option_that_means_no_plugin_is_refused(
    site: Any, optimizer: Code, options: PluginOptions, where: str
) -> None:
    site.install("good", optimizer("x"))
    with pytest.raises(UsageError, match=r"gooood: .*; did you mean good\?") as e:
        site.registry(options=options)
    assert str(e.value).startswith(where)


# ---- interrupts


@pytest.mark.parametrize("code", ["", "try:", "    pass"])
def test_the_users_interrupt_stops_the_loading(site: Any, code: str) -> None:
    raise_it = "import signal\nsignal.raise_signal(signal.SIGINT)\n"
    swallowed = "import signal\ntry:\n    signal.raise_signal(signal.SIGINT)\nexcept: pass\n"
    site.install("impatient", swallowed if code else raise_it)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        site.registry()
    assert signal.getsignal(signal.SIGINT) is before


# ---- commands


VERB = "[splitbit_kit.commands]\n"


def test_commands_are_known_without_importing_them(site: Any) -> None:
    site.install("one", "1 / 0", entry_points=VERB + "tidy = one:command\nplot = one:plot\n")
    site.install("two", "command = int", entry_points=VERB + "plot = two:command\ntrain = two:x\n")
    found = commands(PluginOptions(), verbs=["train"], path=site.path)
    assert sorted(found) == ["one:plot", "tidy", "two:plot", "two:train"]
    assert found["two:plot"].load() is int
    assert "one" not in sys.modules
    registry = site.registry(verbs=["train"])
    assert registry.names("command") == sorted(found)
    rows = {(row.distribution, row.name): row for row in registry.listing("command")}
    assert rows["one", "tidy"].status == "ok"
    assert rows["one", "plot"].status == rows["two", "plot"].status == "conflict"
    assert rows["two", "train"].reason == (
        "splitbit-kit has a command of this name; write two:train"
    )
    assert "one" not in sys.modules


def test_a_disabled_command_is_gone(site: Any) -> None:
    site.install("one", "", entry_points=VERB + "tidy = one:command\n")
    assert commands(PluginOptions(("one",)), path=site.path) == {}
    with pytest.raises(UsageError, match="-p no:other: there is no such plugin"):
        commands(PluginOptions(("other",)), path=site.path)
    (row,) = site.registry("one").listing("command")
    assert (row.status, row.reason) == ("disabled", "-p no:one")


# ---- building


@dataclass(frozen=True, kw_only=True)
class Typed:
    """Options of every plain type."""

    share: float = 0.5
    count: int | None = None
    word: str = "a"
    flag: bool = False
    mode: Literal["a", "b"] = "a"
    odd: "NoSuchType" = None  # type: ignore[name-defined]  # noqa: F821, UP037


def schedule(lr: float, steps: int, *, warmup: int = 0, free=1) -> Any:  # type: ignore[no-untyped-def]
    return lr, steps, warmup


def offer_of(build: Any) -> Any:
    return SimpleNamespace(name="x", build=build)


def test_options_are_the_parameters_with_defaults() -> None:
    found = options_of(offer_of(schedule))
    assert list(found) == ["warmup", "free"]
    assert (found["warmup"].default, found["warmup"].annotation) == (0, int)
    assert found["free"].annotation is None
    assert options_of(offer_of(Typed))["share"].default == 0.5
    assert options_of(offer_of(dict)) == {}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"beta3": 1.0}, "optimizer adamw: there is no option beta3; did you mean beta"),
        ({"beta1": "0.9"}, "optimizer adamw: beta1 = '0.9'; float is expected"),
        ({"beta1": True}, "float is expected"),
        ({"beta1": None}, "float is expected"),
        ({"beta1": 1.5}, "optimizer adamw: beta1: 1.5 does not lie in"),
    ],
)
def test_options_that_do_not_fit_are_usage_errors(
    site: Any, options: dict[str, Any], complaint: str
) -> None:
    site.install_ourselves()
    with pytest.raises(UsageError) as error:
        site.registry().build("optimizer", "adamw", **options)
    assert complaint in str(error.value)


def test_options_that_fit_are_handed_on(site: Any) -> None:
    site.install_ourselves()
    registry = site.registry()
    assert registry.build("optimizer", "adamw", beta1=0, eps=1e-6).eps == 1e-6
    assert registry.build("scheduler", "cosine", 1.0, 10, warmup_steps=2, min_lr=None)(1) == 1.0
    assert registry.build("scheduler", "constant", lr=1.0, steps=10, warmup_steps=0)(0) == 1.0
    with pytest.raises(UsageError, match=r"min_lr = 'low'; float \| None is expected"):
        registry.build("scheduler", "cosine", 1.0, 10, min_lr="low")
    with pytest.raises(UsageError, match="decay = 'sudden'; one of exponential, linear, 1-sqrt is"):
        registry.build("scheduler", "wsd", 1.0, 10, decay="sudden")


def test_options_of_a_build_without_any_default_are_still_known_by_name(
    site: Any, optimizer: Code
) -> None:
    site.install("plain", optimizer("x", "lambda size: size"))
    site.install("open", optimizer("y", "lambda **more: more"))
    registry = site.registry()
    assert registry.build("optimizer", "x", size=3) == 3
    assert registry.build("optimizer", "y", any=1) == {"any": 1}
    with pytest.raises(UsageError, match="there is no option sise"):
        registry.build("optimizer", "x", sise=3)


def test_an_annotation_that_cannot_be_evaluated_hides_no_option() -> None:
    def build(*, x: "Soon" | None = None) -> None: ...  # type: ignore  # noqa: F821, UP037

    assert options_of(offer_of(build))["x"].accepts("anything")


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (float, 1, "1"),
        (int, 1, 1.0),
        (int, 0, False),
        (bool, True, 1),
        (int | None, None, "x"),
        (str, "", None),
        (Literal["a", "b"], "b", "c"),
    ],
)
def test_values_are_checked_against_plain_types(kind: Any, good: Any, bad: Any) -> None:
    def build(*, x: Any = None) -> None: ...

    build.__annotations__["x"] = kind
    option = options_of(offer_of(build))["x"]
    assert option.accepts(good)
    assert not option.accepts(bad)


@pytest.mark.parametrize("kind", [list[int], "NoSuchType", Callable[[int], int], int | list[int]])
def test_other_types_accept_anything(kind: Any) -> None:
    def build(*, x: Any = None) -> None: ...

    build.__annotations__["x"] = kind
    assert options_of(offer_of(build))["x"].accepts("anything")


@pytest.mark.parametrize("fault", ["1 / 0", "exit(3)"])
def test_a_build_that_raises_is_an_error_with_its_owner(
    site: Any, optimizer: Code, fault: str
) -> None:
    site.install("bad", optimizer("x", f"lambda: {fault}"))
    with pytest.raises(SplitbitError, match="optimizer x: plugin bad of bad failed: ") as error:
        site.registry().build("optimizer", "x")
    assert not isinstance(error.value, UsageError)


# ---- metadata


def test_names_of_distributions_are_compared_normalised() -> None:
    assert normalized("Foo__Bar.baz") == "foo-bar-baz"
    assert installed("NumPy")
    assert not installed("no-such-distribution")
    assert not installed("")


# ---- ourselves


@pytest.mark.parametrize(
    ("words", "home"),
    [
        ("PluginManager", "registry/loading.py"),
        ("importlib_metadata", "_metadata.py"),
    ],
)
def test_only_one_module_uses_it(words: str, home: str) -> None:
    package = Path(splitbit_kit.__file__).parent
    users = [f for f in package.rglob("*.py") if words in f.read_text("utf-8")]
    assert users == [package / home]
