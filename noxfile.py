"""Longer chores: `nox -s full` runs the slower suites, `nox -s docs` renews what is generated."""

import nox

nox.options.sessions = ["tests"]
nox.options.default_venv_backend = "venv"


@nox.session
def tests(session: nox.Session) -> None:
    """The ordinary tests."""
    session.install("-e", ".[test]")
    session.run("pytest", *session.posargs)


@nox.session
def full(session: nox.Session) -> None:
    """The ordinary and the slower tests, with coverage."""
    session.install("-e", ".[dev]")
    session.run("coverage", "run", "-m", "pytest", "-m", "full or not full", *session.posargs)
    session.run("coverage", "report", "--show-missing")


@nox.session
def docs(session: nox.Session) -> None:
    """Write docs/cli.md anew from the command line itself."""
    session.install("-e", ".")
    session.run("python", "docs/generate_cli.py")
