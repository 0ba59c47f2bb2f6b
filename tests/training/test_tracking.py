"""Trackers: who is told, who is closed, and what becomes of one that fails."""

import pytest
from tiny_run import TINY

from splitbit_kit.api import (
    EvalDone,
    RunEnded,
    RunStarted,
    SplitbitError,
    StepDone,
    TrackerOffer,
    UsageError,
    hookimpl,
)
from splitbit_kit.formats import jsonl
from splitbit_kit.registry import Registry
from splitbit_kit.training import trainer
from splitbit_kit.training.run import Surroundings, dry_run, resume, train


class Recorder:
    """A plugin with the tracker `recorder`, which notes all and fails where it is told to."""

    def __init__(self, **faults):
        self.faults = faults
        self.log = []
        self.folders = []

    @hookimpl
    def trackers(self):
        plugin = self

        class Tracker:
            def __init__(self, folder, *, label: str = "none"):
                plugin.folders.append(folder)
                (folder / f"{label}.txt").write_text("begun", "utf-8")
                plugin.fail("build")

            def event(self, event):
                plugin.log.append(event)
                plugin.fail("event")

            def close(self):
                plugin.log.append("closed")
                plugin.fail("close")

        return [TrackerOffer("recorder", "a test", Tracker)]

    def fail(self, where):
        if where in self.faults:
            raise self.faults[where]


@pytest.fixture
def go(tmp_path, text):
    """Call go(plugin, **keys of the section track) to train; it returns run and notices."""

    def run(plugin, other=None, folder="run", **track):
        notices = []
        extra = {"recorder": plugin, **({"other": other} if other else {})}
        around = Surroundings(Registry(extra=extra), notify=notices.append)
        config = {**TINY, "track": {"names": ["recorder"], **track}}
        return train(config, text, tmp_path / folder, around=around), notices

    return run


def complaints(notices):
    return [line for line in notices if line.startswith("tracker ")]


def test_a_tracker_sees_the_run_whole_and_is_closed_once(go):
    plugin = Recorder()
    run, notices = go(plugin, options={"recorder": {"label": "mine"}})
    assert complaints(notices) == []
    assert plugin.folders == [run.folder / "trackers" / "recorder"]
    assert (plugin.folders[0] / "mine.txt").exists()
    kinds = [type(event) for event in plugin.log]
    assert kinds[0] is RunStarted
    assert plugin.log[-1] == "closed"
    assert kinds[-2] is RunEnded
    assert kinds.count(StepDone) == 8
    assert kinds.count(EvalDone) == 3
    assert kinds.count(str) == 1


def test_only_the_trackers_that_are_named_are_built(go, tmp_path):
    plugin = Recorder()
    go(plugin, names=[])
    assert (plugin.log, plugin.folders) == ([], [])
    assert not (tmp_path / "run" / "trackers").exists()


@pytest.mark.parametrize("fault", [OSError("disk full"), SystemExit(3), GeneratorExit()])
@pytest.mark.parametrize("where", ["event", "close"])
def test_what_a_tracker_raises_is_told_once_and_stops_nothing(go, where, fault):
    plugin = Recorder(**{where: fault})
    run, notices = go(plugin)
    (line,) = complaints(notices)
    assert line.startswith(f"tracker recorder: {type(fault).__name__}")
    assert run.statistics["total_steps"] == 8
    assert jsonl.read(run.folder / "metrics.jsonl")[-1]["reason"] == "finished"
    assert plugin.log.count("closed") == 1


def test_a_run_with_a_failing_tracker_has_the_same_bits(go):
    sound, _ = go(Recorder(), names=[], folder="sound")
    tracked, _ = go(Recorder(event=ValueError("no")), folder="tracked")
    models = [run.folder / "final" / "model.safetensors" for run in (sound, tracked)]
    assert models[0].read_bytes() == models[1].read_bytes()


def test_the_users_interrupt_goes_through_a_tracker_and_all_are_closed(go, tmp_path):
    plugin, other = Recorder(event=KeyboardInterrupt(), close=KeyboardInterrupt()), Recorder()
    other.trackers = hookimpl(_renamed(other.trackers))
    with pytest.raises(KeyboardInterrupt):
        go(plugin, other, names=["recorder", "second"])
    assert plugin.log[-1] == other.log[-1] == "closed"


def _renamed(trackers):
    def renamed():
        (offer,) = trackers()
        return [TrackerOffer("second", offer.summary, offer.build)]

    return renamed


def test_trackers_are_closed_when_the_training_fails(go, monkeypatch):
    def fail(*arguments, **more):
        raise SplitbitError("no room")

    monkeypatch.setattr(trainer.checkpoint, "replace_model", fail)
    monkeypatch.setattr(trainer, "evaluate", fail)
    plugin = Recorder()
    with pytest.raises(SplitbitError, match="no room"):
        go(plugin)
    assert [event.reason for event in plugin.log if isinstance(event, RunEnded)] == ["no room"]
    assert plugin.log[-1] == "closed"


def test_a_tracker_that_cannot_be_built_stops_the_run_before_it_begins(go, tmp_path):
    with pytest.raises(SplitbitError, match=r"tracker recorder: plugin recorder .*disk full"):
        go(Recorder(build=OSError("disk full")))
    with pytest.raises(UsageError, match="tracker recorder: label: too long"):
        go(Recorder(build=ValueError("label: too long")))
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]
    go(Recorder())  # nothing is in the way


def test_where_a_later_one_cannot_be_built_the_earlier_are_closed_and_nothing_is_left(go, tmp_path):
    first, second = Recorder(), Recorder(build=OSError("no"))
    second.trackers = hookimpl(_renamed(second.trackers))
    with pytest.raises(SplitbitError, match=r"tracker second: .*OSError: no"):
        go(first, second, names=["recorder", "second"])
    assert first.log == ["closed"]
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("track", "said"),
    [
        ({"names": ["recoder"]}, r"tracker recoder: there is no such tracker; did you mean rec"),
        ({"options": {"recorder": {"lable": "x"}}}, "there is no option lable; did you mean label"),
        ({"options": {"recorder": {"label": 3}}}, "label = 3; str is expected"),
        ({"options": {"other": {}}}, "track.options: 'other' is not one of recorder"),
        ({"names": "recorder"}, r"track.names: expected `array`, got `str`"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_is_written(go, tmp_path, track, said):
    with pytest.raises(UsageError, match=said):
        go(Recorder(), **track)
    assert not (tmp_path / "run").exists()


def test_a_plan_refuses_a_tracker_as_the_training_would(text):
    with pytest.raises(UsageError, match="tracker recoder: there is no such tracker"):
        dry_run({**TINY, "track": {"names": ["recoder"]}}, text)


def test_one_that_is_not_installed_says_what_to_type(go):
    class Needy:
        @hookimpl
        def trackers(self):
            return [TrackerOffer("recorder", "a test", list, needs=("no-such-thing",))]

    with pytest.raises(SplitbitError, match=r"pip install no-such-thing; --set track.names=\[\]"):
        go(Needy())


def test_resume_keeps_the_trackers_and_their_folder_or_changes_them(go, tmp_path):
    run, _ = go(Recorder(), options={"recorder": {"label": "mine"}})
    plugin = Recorder()
    around = Surroundings(Registry(extra={"recorder": plugin}))
    resume(run.folder, {"train.steps": 10}, around=around)
    assert plugin.log[0].step == 8
    assert plugin.folders == [run.folder / "trackers" / "recorder"]
    resume(run.folder, {"train.steps": 12, "track.names": []}, around=around)
    assert plugin.log.count("closed") == 1, "it is not asked again"
    assert "names = []\n" in (run.folder / "config.toml").read_text("utf-8")
    resume(run.folder, {"train.steps": 14, "track.names": ["recorder"]}, around=around)
    assert plugin.log.count("closed") == 2


def test_a_build_that_fails_on_resume_leaves_what_there_was(go):
    run, _ = go(Recorder())
    around = Surroundings(Registry(extra={"recorder": Recorder(build=OSError("no"))}))
    before = (run.folder / "config.toml").read_bytes()
    with pytest.raises(SplitbitError, match="OSError: no"):
        resume(run.folder, {"train.steps": 10}, around=around)
    assert (run.folder / "trackers" / "recorder" / "none.txt").exists()
    assert (run.folder / "config.toml").read_bytes() == before


def test_overwriting_a_run_takes_its_trackers_records_too(go, tmp_path, text):
    run, _ = go(Recorder(), options={"recorder": {"label": "old"}})
    around = Surroundings(Registry(extra={"recorder": Recorder()}))
    config = {**TINY, "track": {"names": ["recorder"]}}
    train(config, text, run.folder, overwrite=True, around=around)
    assert [path.name for path in (run.folder / "trackers/recorder").iterdir()] == ["none.txt"]


def test_where_a_tracker_cannot_be_built_the_run_to_be_overwritten_stands(go, text):
    run, _ = go(Recorder(), options={"recorder": {"label": "old"}})
    before = {path: path.read_bytes() for path in _files(run.folder)}
    around = Surroundings(Registry(extra={"recorder": Recorder(build=OSError("no server"))}))
    config = {**TINY, "track": {"names": ["recorder"]}}
    with pytest.raises(SplitbitError, match="OSError: no server"):
        train(config, text, run.folder, overwrite=True, around=around)
    assert {path: path.read_bytes() for path in _files(run.folder)} == before


def _files(folder):
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]
