import os

import pytest


@pytest.fixture(autouse=True)
def quick_fsync(monkeypatch):
    """Let no test wait for a busy disk; test_crash checks that fsync is called where it must be."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
