"""Distributions made on the spot: real `.dist-info` folders, found and imported as any other."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from splitbit_kit.registry import PluginOptions, Registry

ROOT = Path(__file__).parents[2]


class Site:
    """A folder on sys.path in which a test installs what it needs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.path = [str(folder)]
        self._monkeypatch = monkeypatch
        folder.mkdir()
        monkeypatch.syspath_prepend(str(folder))

    def another(self, name: str) -> Path:
        """Return another folder, further down the path."""
        folder = self.folder.parent / name
        folder.mkdir()
        self.path.append(str(folder))
        self._monkeypatch.setattr(sys, "path", [sys.path[0], str(folder), *sys.path[1:]])
        return folder

    def install(
        self,
        distribution: str,
        code: str = "",
        *,
        name: str = "",
        module: str = "",
        version: str = "1.0",
        entry_points: str | None = None,
        at: Path | None = None,
        editable: str = "",
    ) -> None:
        """Install a distribution whose one plugin is a module with this code."""
        folder = at or self.folder
        module = module or distribution.replace("-", "_")
        (folder / f"{module}.py").write_text(code, encoding="utf-8")
        info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        info.joinpath("METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n", encoding="utf-8"
        )
        if entry_points is None:
            entry_points = f"[splitbit_kit.plugins]\n{name or module} = {module}\n"
        info.joinpath("entry_points.txt").write_text(entry_points, encoding="utf-8")
        if editable:
            origin = {"url": f"file://{editable}", "dir_info": {"editable": True}}
            info.joinpath("direct_url.json").write_text(json.dumps(origin), encoding="utf-8")

    def install_ourselves(self) -> None:
        """Install splitbit-kit: its entry points, as pyproject.toml has them."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        lines = ["[splitbit_kit.plugins]"]
        lines += [f"{n} = {v}" for n, v in project["entry-points"]["splitbit_kit.plugins"].items()]
        self.install(
            "splitbit-kit", module="_ourselves", version="0.1.0", entry_points="\n".join(lines)
        )

    def registry(self, *disabled: str, **more: Any) -> Registry:
        """Load what is installed here, and nothing else."""
        options = more.pop("options", PluginOptions(disabled))
        return Registry(options, **{"path": self.path, "notify": _unexpected, **more})


def _unexpected(line: str) -> None:
    raise AssertionError(f"nobody should complain, but: {line}")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Yield an empty site; what is imported from it is forgotten afterwards."""
    before = set(sys.modules)
    yield Site(tmp_path / "site", monkeypatch)
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.fixture
def optimizer() -> Callable[..., str]:
    """Return a function that writes a plugin's code: one optimizer."""

    def code(name: str, build: str = "dict") -> str:
        return (
            "from splitbit_kit.api import OptimizerOffer, hookimpl\n"
            "@hookimpl\n"
            "def optimizers():\n"
            f"    return [OptimizerOffer({name!r}, 'a test', {build})]\n"
        )

    return code
