"""Programs of others that look at what we made; each test is skipped where its program is not."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from browser import Browser, browser, chromium


@pytest.fixture(scope="session")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Give a running browser."""
    command = chromium()
    if command is None or os.name == "nt":
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with browser(command, tmp_path_factory.mktemp("profile")) as running:
        yield running
