"""A training so small that a test can afford several."""

import pytest

from splitbit_kit.training.run import Surroundings, resume, train

TINY = {
    "preset": "tiny-llama",
    "model": {"layers": 1, "heads": 2, "kv_heads": 1, "width": 32, "hidden": 64, "context": 32},
    "tokenizer": {"kind": "byte"},
    "data": {},
    "train": {"steps": 8, "batch_size": 2, "seq_len": 16, "eval_every": 4, "seed": 3},
    "optimizer": {"lr": 1e-2},
    "scheduler": {"warmup_steps": 2},
    "checkpoint": {"save_every": 2},
    "sample": {"max_tokens": 8},
    "compute": {"backend": "numpy", "threads": 1},
}


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
