"""The verb `list-plugins`, the options that choose plugins, and verbs of other distributions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commandline import TINY, Run, process

from splitbit_kit.cli.list_plugins import JSON_KEYS

KEYS_FOR_EVER = {"plugins", "ops"}
"""Keys that a release had. Add to them; never take one away."""
PLUGIN_KEYS_FOR_EVER = {
    *("kind", "name", "status", "distribution", "version", "summary", "reason"),
}

Install = Callable[..., None]


@pytest.fixture
def install(place: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that installs a distribution of one module, named like it."""

    def install(
        distribution: str, code: str, *, group: str = "plugins", name: str = "", at: str = "site"
    ) -> None:
        module = distribution.replace("-", "_")
        site = place / at
        info = site / f"{module}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{module}.py").write_text(code, "utf-8")
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n", "utf-8"
        )
        target = module if group == "plugins" else f"{module}:command"
        (info / "entry_points.txt").write_text(
            f"[splitbit_kit.{group}]\n{name or module} = {target}\n", "utf-8"
        )
        if str(site) not in sys.path:
            monkeypatch.syspath_prepend(str(site))
        monkeypatch.delitem(sys.modules, module, raising=False)

    return install


OPTIMIZER = """
from splitbit_kit.api import OptimizerOffer, hookimpl
from splitbit_kit.bundled.optimizers import SGD

@hookimpl
def optimizers():
    return [OptimizerOffer({name!r}, "a stranger's", SGD)]
"""

VERB = """
import click

@click.command()
@click.argument("word")
def command(word):
    "Say it back."
    print(word)
"""


def rows(run: Run, *argv: str) -> list[dict[str, str]]:
    done = run("list-plugins", "--json", *argv)
    assert done.code == 0, done.err
    listed: list[dict[str, str]] = done.last["plugins"]
    return listed


def row(run: Run, name: str, *argv: str) -> dict[str, str]:
    (found,) = [r for r in rows(run, *argv) if name in r["name"]]
    return found


# ---- the listing


def test_the_listing_is_aligned_lines_with_all_of_ours(run: Run) -> None:
    done = run("list-plugins")
    assert (done.code, done.err) == (0, "")
    heads, *lines = done.out.splitlines()
    assert heads.split() == ["kind", "name", "status", "distribution", "version", "summary"]
    for kind, name in (("backend", "numpy"), ("optimizer", "adamw"), ("scheduler", "cosine")):
        assert any(line.split()[:3] == [kind, name, "ok"] for line in lines), name
    assert all(line[heads.index("status") - 1] == " " for line in lines)
    assert all(c.isprintable() or c == "\n" for c in done.out)


def test_one_kind_alone(run: Run) -> None:
    assert {r["kind"] for r in rows(run, "--kind", "optimizer")} == {"optimizer"}


def test_json_has_all_keys(run: Run) -> None:
    done = run("list-plugins", "--json")
    assert JSON_KEYS.keys() >= KEYS_FOR_EVER
    assert list(done.last) == list(JSON_KEYS)
    assert done.last["plugins"]
    for each in done.last["plugins"]:
        assert each.keys() >= PLUGIN_KEYS_FOR_EVER
        assert all(key in JSON_KEYS["plugins"] for key in each)
    assert done.last["ops"] is None


def test_ops_say_where_each_op_of_both_families_comes_from(run: Run) -> None:
    done = run("list-plugins", "--ops", "--backend", "numpy", "--json")
    sites = done.last["ops"]
    assert {site["preset"] for site in sites} == {"tiny-llama", "nanogpt-laptop"}
    assert {site["use"] for site in sites} == {"train", "inference"}
    assert {site["op"] for site in sites} >= {"linear", "attention", "rotary", "layer_norm"}
    assert {site["origin"] for site in sites} == {"numpy"}
    assert all(key in JSON_KEYS["ops"] for site in sites for key in site)
    one = run("list-plugins", "--ops", "--preset", "gpt2-124m", "--backend", "numpy")
    assert "gpt2-124m  inference  attention" in one.out
    assert "rotary" not in one.out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--kind", "quantiser"], "did you mean quantizer?"),
        (["--ops", "--preset", "tiny-lama"], "did you mean tiny-llama?"),
        (["--ops", "--backend", "numpi"], "did you mean numpy?"),
        (["-p", "no:nobody"], "no:nobody"),
        (["-p", "nobody"], "no:NAME"),
        (["-p"], "no:NAME"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line(run: Run, argv: list[str], said: str) -> None:
    failed = run("list-plugins", *argv)
    assert (failed.code, failed.out) == (2, "")
    assert said in failed.error


# ---- plugins that misbehave


@pytest.mark.parametrize(
    "code",
    [
        "raise RuntimeError('no luck')",
        "raise SystemExit('no luck')",
        "import sys; sys.exit('no luck')",
    ],
)
def test_a_plugin_that_raises_is_listed_and_all_else_works(
    run: Run, install: Install, code: str
) -> None:
    install("broken-plugin", f"print('on the screen')\n{code}\n")
    listed = row(run, "broken")
    assert listed["status"] == "failed"
    assert "no luck" in listed["reason"]
    assert "on the screen" in listed["detail"]
    done = run("train", "text.txt", *TINY, "--json")
    assert (done.code, len(done.out.splitlines())) == (0, 1)


def test_two_that_claim_one_name_are_told_apart(run: Run, install: Install) -> None:
    install("stranger", OPTIMIZER.format(name="adamw"))
    listed = [r for r in rows(run, "--kind", "optimizer") if r["name"] == "adamw"]
    assert {r["status"] for r in listed} == {"conflict"}
    assert {r["distribution"] for r in listed} == {"splitbit-kit", "stranger"}
    failed = run("train", "text.txt", *TINY, "--optimizer", "adamw")
    assert failed.code == 2
    assert "stranger:adamw" in failed.error and "splitbit-kit:adamw" in failed.error
    assert run("train", "text.txt", *TINY, "--optimizer", "stranger:adamw").code == 0


def test_a_distribution_found_twice_is_used_once(run: Run, install: Install) -> None:
    install("stranger", OPTIMIZER.format(name="mine"), at="second")
    install("stranger", OPTIMIZER.format(name="mine"), at="first")
    assert [r["status"] for r in rows(run, "--kind", "optimizer") if r["name"] == "mine"] == ["ok"]
    statuses = [r["status"] for r in rows(run, "--kind", "plugin") if r["plugin"] == "stranger"]
    assert sorted(statuses) == ["duplicate", "ok"]


# ---- which plugins may load


@pytest.mark.parametrize(
    "argv",
    [
        ["-p", "no:stranger", "list-plugins", "--json"],
        ["list-plugins", "-p", "no:stranger", "--json"],
        ["list-plugins", "--json", "-pno:stranger"],
        ["--no-plugins", "list-plugins", "--json"],
        ["list-plugins", "--json", "--no-plugins"],
    ],
    ids=" ".join,
)
def test_options_that_choose_plugins_may_stand_anywhere(
    run: Run, install: Install, argv: list[str]
) -> None:
    install("stranger", "raise RuntimeError('must not be imported')")
    (listed,) = [r for r in run(*argv).last["plugins"] if r["name"] == "stranger"]
    assert listed["status"] == "disabled"
    assert "stranger" not in sys.modules


def test_the_environment_chooses_plugins(
    run: Run, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("stranger", OPTIMIZER.format(name="mine"))
    install("another", OPTIMIZER.format(name="yours"), at="site2")
    monkeypatch.setenv("SPLITBIT_PLUGINS", "another")
    names = [r["name"] for r in rows(run, "--kind", "optimizer")]
    assert "yours" in names and "mine" not in names


# ---- verbs of other distributions


def test_a_strangers_verb_is_listed_without_being_imported_and_runs(
    run: Run, install: Install
) -> None:
    install("echo-verb", VERB, group="commands", name="echo")
    assert "From echo-verb 1.0." in run("--help").out
    assert "echo_verb" not in sys.modules
    done = run("echo", "hello")
    assert (done.code, done.out) == (0, "hello\n")
    assert run("echo").code == 2
    assert "WORD" in run("echo", "--help").out
    assert "no command 'echo'" in run("--no-plugins", "echo", "hello").error


@pytest.mark.parametrize(
    "code", ["raise RuntimeError('no luck')", "raise SystemExit(0)", "command = 5"]
)
def test_a_strangers_verb_that_cannot_be_imported_is_one_line(
    run: Run, install: Install, code: str
) -> None:
    install("bad-verb", code, group="commands", name="bad")
    assert run("--help").code == 0
    failed = run("bad")
    assert failed.code == 1
    assert "command bad of bad-verb 1.0" in failed.error


def test_a_strangers_verb_does_not_replace_ours(run: Run, install: Install) -> None:
    install("bad-verb", VERB, group="commands", name="train")
    assert run("train", "none.txt", "--backend", "numpy").code == 2
    assert run("bad-verb:train", "hello").out == "hello\n"


def test_the_listing_in_a_pipe_has_no_control_characters() -> None:
    shown = process("list-plugins")
    assert shown.returncode == 0
    assert all(c.isprintable() or c == "\n" for c in shown.stdout)
