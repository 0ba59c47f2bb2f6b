"""A training so small that a test can afford several."""

import pytest
from tiny_run import TINY

from splitbit_kit.training.run import Surroundings, resume, train


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("SPLITBIT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    lines = [f"{n} green bottles hanging on the wall, and {n % 7} more.\n" for n in range(80)]
    path.write_text("".join(lines), "utf-8")
    return path


@pytest.fixture
def tiny(tmp_path, text):
    """Call tiny(name, **{"section.key": value}) to train; it returns run, events and notices."""

    def run(name="run", overwrite=False, source=text, **changes):
        config = dict(TINY)
        for key, value in changes.items():
            section, _, name_ = key.partition(".")
            config[section] = {**config[section], name_: value}
        return _told(
            lambda around: train(
                config, source, tmp_path / name, overwrite=overwrite, around=around
            )
        )

    return run


@pytest.fixture
def again(tmp_path):
    """Call again(name, {...}) to resume."""

    def run(name="run", changes=None):
        return _told(lambda around: resume(tmp_path / name, changes, around=around))

    return run


def _told(begin):
    events, notices = [], []
    run = begin(Surroundings(listeners=[events.append], notify=notices.append))
    return run, events, notices
