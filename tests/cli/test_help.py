"""Help texts, the page made from them, and what they cost to show."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from inspect import cleandoc
from pathlib import Path

import click
import pytest
from commandline import Run, process
from syrupy.assertion import SnapshotAssertion

from splitbit_kit import __version__
from splitbit_kit.cli.app import NAME, app
from splitbit_kit.cli.options import ConfigOption
from splitbit_kit.cli.settings import VERBS, Settings
from splitbit_kit.training.config import Config, to_dict

GENERATOR = Path(__file__).parents[2] / "docs" / "generate_cli.py"
HEAVY = ("numba", "tokenizers", "torch", "msgspec", "safetensors")


def commands() -> dict[str, click.Command]:
    root = app.context_class(app, info_name=NAME, obj=Settings())
    found: dict[str, click.Command] = {}
    for verb in VERBS:
        command = app.get_command(root, verb)
        assert command is not None
        found[verb] = command
        if isinstance(command, click.Group):
            found |= {f"{verb} {name}": inner for name, inner in command.commands.items()}
    return found


@pytest.mark.parametrize("verb", ["", *commands()])
def test_help_reads_as_it_did(run: Run, verb: str, snapshot: SnapshotAssertion) -> None:
    shown = run("--no-plugins", *verb.split(), "--help")
    assert (shown.code, shown.err) == (0, "")
    assert "\n".join(line.rstrip() for line in shown.out.splitlines()) == snapshot


@pytest.mark.parametrize("verb", commands())
def test_help_has_an_example_and_every_option_its_default(verb: str) -> None:
    command = commands()[verb]
    assert f"\n  {NAME} {verb}" in cleandoc(command.help or "")
    for param in command.params:
        assert isinstance(param, click.Option | click.Argument)
        text = getattr(param, "help", "")
        assert text, param.name
        assert isinstance(param, click.Argument) or "[default: " in text, param.name


@pytest.mark.parametrize("verb", commands())
def test_examples_are_indented(run: Run, verb: str) -> None:
    lines = run("--no-plugins", *verb.split(), "--help").out.splitlines()
    first = next(n for n, line in enumerate(lines) if line.strip() in ("Example:", "Examples:")) + 1
    last = next(n for n, line in enumerate(lines) if n > first and not line.strip())
    assert [line for line in lines[first:last] if not line.startswith(f"  {NAME} ")] == []


def test_defaults_that_no_preset_decides_are_those_of_the_configuration() -> None:
    defaults = to_dict(Config())
    for param in commands()["train"].params:
        if not isinstance(param, ConfigOption):
            continue
        section, key = param.key.split(".")
        assert key in defaults[section], param.key
        said = (param.help or "").partition("[default: ")[2].removesuffix("]")
        value = said.removeprefix("the preset's, else ")
        if value.replace(".", "").isdigit() or param.name in ("optimizer", "scheduler", "backend"):
            assert value == str(defaults[section][key]), param.key


def test_version(run: Run) -> None:
    assert run("--version").out == f"{NAME} {__version__}\n"


def test_nothing_at_all_shows_the_help_and_is_a_wrong_request(run: Run) -> None:
    shown = run()
    assert shown.code == 2
    assert "list-plugins" in shown.out


def test_page_is_what_the_generator_makes_of_the_commands() -> None:
    spec = importlib.util.spec_from_file_location("generate_cli", GENERATOR)
    assert spec is not None and spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert generator.PAGE.read_text("utf-8") == generator.page(), "run docs/generate_cli.py"


def imported(*argv: str) -> set[str]:
    """Return the modules that a command line leaves imported."""
    code = f"""
import sys
from splitbit_kit.__main__ import main
code = main({list(argv)!r})
print("\\n".join(["modules:", *sys.modules]))
sys.exit(code)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.partition("modules:\n")[2].split())


@pytest.mark.parametrize("argv", [["--help"], ["train", "--help"], ["list-plugins"]], ids=" ".join)
def test_looking_around_imports_nothing_heavy(argv: list[str]) -> None:
    modules = imported(*argv)
    assert not modules & set(HEAVY)
    if "--help" in argv:
        assert "numpy" not in modules


@pytest.mark.skipif(os.name == "nt", reason="processor time of children, by POSIX")
@pytest.mark.parametrize(("argv", "seconds"), [(["--help"], 0.3), (["list-plugins"], 0.6)])
def test_looking_around_is_quick(argv: list[str], seconds: float) -> None:
    """Measured in processor time, which a busy machine does not stretch."""

    def least(command: list[str]) -> float:
        times = []
        for _ in range(3):
            begun = os.times()
            subprocess.run([sys.executable, *command], capture_output=True, check=True, timeout=60)
            ended = os.times()
            user = ended.children_user - begun.children_user
            times.append(user + ended.children_system - begun.children_system)
        return min(times)

    assert least(["-m", "splitbit_kit", *argv]) - least(["-c", "pass"]) < seconds


def test_help_in_a_pipe_has_no_control_characters() -> None:
    shown = process("train", "--help")
    assert shown.returncode == 0
    assert all(c.isprintable() or c == "\n" for c in shown.stdout)
