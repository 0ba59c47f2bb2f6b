"""A run that is stopped anywhere and resumed ends with the bits of one left alone."""

import json
import subprocess
import sys
import time

import psutil
import pytest
from tiny_run import TINY

from splitbit_kit.api import SampleWritten, SplitbitError, StepDone, UsageError
from splitbit_kit.formats import checkpoint, jsonl, safetensors
from splitbit_kit.registry import Registry
from splitbit_kit.training import run as run_module
from splitbit_kit.training.run import Surroundings, resume, train
from splitbit_kit.training.trainer import Interrupted, Trainer

PARTS = ("model", "optimizer")


def newest(folder):
    found, _ = checkpoint.newest_valid(folder / "checkpoints")
    return found


def assert_same_bits(a, b):
    one, other = newest(a), newest(b)
    for part in PARTS:
        x, y = one.tensors[part].arrays, other.tensors[part].arrays
        assert x.keys() == y.keys()
        for name in x:
            assert x[name].tobytes() == y[name].tobytes(), name
    ignored = {"seconds"}
    assert {k: v for k, v in one.state.items() if k not in ignored} == {
        k: v for k, v in other.state.items() if k not in ignored
    }
    for which in ("best", "final"):
        x, y = (safetensors.read(f / which / "model.safetensors") for f in (a, b))
        assert x.metadata == y.metadata
        for name in x.arrays:
            assert x.arrays[name].tobytes() == y.arrays[name].tobytes(), (which, name)


def figures(folder):
    rows = jsonl.read(folder / "metrics.jsonl")
    drop = {"seconds", "total_time_s", "tokens_per_second"}
    kept = [row for row in rows if row["kind"] not in ("run", "end")]
    return [{k: v for k, v in row.items() if k not in drop} for row in kept]


def stop_at(step):
    def stop_if_asked(self):
        if self.progress.step == step:
            raise Interrupted

    return stop_if_asked


@pytest.fixture
def stopping(monkeypatch):
    """Ask the run to stop, as a signal would, when it looks for the n-th time."""

    def at(look):
        seen = {"looks": 0}

        def stop_if_asked(self):
            seen["looks"] += 1
            if seen["looks"] == look:
                raise Interrupted

        monkeypatch.setattr(Trainer, "_stop_if_asked", stop_if_asked)
        return seen

    return at


@pytest.mark.parametrize("extra", [{}, {"model.dropout": 0.3}, {"train.grad_accum": 3}])
def test_stopped_at_any_moment_and_resumed(tiny, again, stopping, tmp_path, extra):
    whole, _, _ = tiny("whole", **extra)
    look, looks = 1, stopping(10**9)
    tiny("count", **extra)
    total = looks["looks"]
    assert total > 20
    for look in range(1, total + 1, max(1, total // 7)):
        stopping(look)
        name = f"stopped-{look}"
        with pytest.raises(Interrupted):
            tiny(name, **extra)
        stopping(10**9)
        again(name)
        assert_same_bits(whole.folder, tmp_path / name)
        assert figures(tmp_path / name) == figures(whole.folder)


@pytest.mark.parametrize("name", [n for n in Registry().names("optimizer") if n != "adamw"])
def test_with_every_optimizer(tiny, again, monkeypatch, tmp_path, name):
    extra = {"optimizer.name": name, "optimizer.lr": 1e-3}
    whole, _, _ = tiny("whole", **extra)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_stop_if_asked", stop_at(5))
        with pytest.raises(Interrupted):
            tiny("part", **extra)
    again("part")
    assert_same_bits(whole.folder, tmp_path / "part")
    assert figures(tmp_path / "part") == figures(whole.folder)


@pytest.mark.parametrize("name", [n for n in Registry().names("scheduler") if n != "cosine"])
def test_with_every_schedule(tiny, again, monkeypatch, tmp_path, name):
    whole, _, _ = tiny("whole", **{"scheduler.name": name})
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_stop_if_asked", stop_at(5))
        with pytest.raises(Interrupted):
            tiny("part", **{"scheduler.name": name})
    again("part")
    assert_same_bits(whole.folder, tmp_path / "part")
    assert figures(tmp_path / "part") == figures(whole.folder)


def test_killed_between_checkpoints_and_resumed(tiny, again, tmp_path, monkeypatch):
    whole, _, _ = tiny("whole")
    real = Trainer._one_step

    class Killed(BaseException):
        pass

    for kill in (1, 3, 6):

        def one_step(self, kill=kill):
            if self.progress.step == kill:
                raise Killed
            real(self)

        monkeypatch.setattr(Trainer, "_one_step", one_step)
        with pytest.raises(Killed):
            tiny(f"killed-{kill}")
        monkeypatch.setattr(Trainer, "_one_step", real)
        again(f"killed-{kill}")
        assert_same_bits(whole.folder, tmp_path / f"killed-{kill}")
        assert figures(tmp_path / f"killed-{kill}") == figures(whole.folder)


def test_more_steps_span_the_schedule_anew(tiny, again):
    tiny()
    run, events, _ = again("run", {"train.steps": 16})
    steps = [event for event in events if isinstance(event, StepDone)]
    assert [event.step for event in steps] == list(range(9, 17))
    assert steps[0].lr > steps[-1].lr > 0
    assert run.statistics["total_steps"] == 16


@pytest.mark.parametrize("rows", [2, 4])
def test_over_several_epochs_from_rows_with_a_text_held_out(
    tiny, again, monkeypatch, tmp_path, rows
):
    """10 windows, 3 epochs: with 2 rows a step 15 steps, with 4 the last one is ragged."""
    (tmp_path / "held.txt").write_text("one green bottle hanging on the wall\n" * 3, "utf-8")
    lines = [json.dumps({"text": f"row {n}: {n * n}\r\nand on"}) for n in range(10)]
    source = tmp_path / "rows.jsonl"
    source.write_text("\n".join(lines), "utf-8")
    more = {
        "train.steps": 0,
        "train.epochs": 3,
        "train.batch_size": rows,
        "data.validation": str(tmp_path / "held.txt"),
        "source": source,
    }
    whole, events, _ = tiny("whole", **more)
    sizes = [event.tokens for event in events if isinstance(event, StepDone)]
    assert sum(sizes) == 30 * 16
    assert sizes[-1] == (30 % rows or rows) * 16
    for step in range(1, len(sizes)):
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "_stop_if_asked", stop_at(step))
            with pytest.raises(Interrupted):
                tiny(f"part-{step}", **more)
        again(f"part-{step}")
        assert_same_bits(whole.folder, tmp_path / f"part-{step}")
        assert figures(tmp_path / f"part-{step}") == figures(whole.folder)


def test_what_came_after_the_checkpoint_of_its_step_is_not_told_twice(
    tiny, again, monkeypatch, tmp_path
):
    """Stopped before the evaluation of a step, resumed, and killed after it."""

    class Killed(BaseException):
        pass

    def kill(event):
        if isinstance(event, SampleWritten):
            raise Killed

    whole, _, _ = tiny("whole")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_stop_if_asked", stop_at(4))
        with pytest.raises(Interrupted):
            tiny("part")
    with pytest.raises(Killed):
        resume(tmp_path / "part", around=Surroundings(listeners=[kill]))
    again("part")
    assert figures(tmp_path / "part") == figures(whole.folder)


def test_other_intervals_change_no_bit_of_the_weights(tiny, again, monkeypatch, tmp_path):
    whole, _, _ = tiny("whole")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_stop_if_asked", stop_at(3))
        with pytest.raises(Interrupted):
            tiny("part")
    again("part", {"train.eval_every": 1, "checkpoint.save_every": 3, "sample.every": 2})
    one, other = newest(whole.folder), newest(tmp_path / "part")
    for part in PARTS:
        for name, array in one.tensors[part].arrays.items():
            assert array.tobytes() == other.tensors[part].arrays[name].tobytes(), name


def test_fewer_steps_than_were_made_are_refused(tiny, again, tmp_path):
    run, _, _ = tiny()
    names = ("config.toml", "metrics.jsonl", "final/model.safetensors")
    before = [(run.folder / name).read_bytes() for name in names]
    with pytest.raises(UsageError, match=r"train.steps: 7 is below the 8 .* use --steps 8 or more"):
        again("run", {"train.steps": 7})
    assert [(run.folder / name).read_bytes() for name in names] == before
    again("run", {"train.steps": 8})


def test_a_run_that_another_training_changed_meanwhile_is_refused(tiny, again, monkeypatch):
    tiny()
    real = run_module.prepare

    def prepare(*arguments):
        folder = run_module.RunFolder(run.folder)
        config = folder.read_config()
        folder.write_config(config.with_keys(train__steps=16))
        return real(*arguments)

    run, _, _ = tiny("other")
    monkeypatch.setattr(run_module, "prepare", prepare)
    with pytest.raises(SplitbitError, match="another training changed this run"):
        again("other")


@pytest.mark.skipif(not hasattr(psutil.Process, "memory_maps"), reason="the system does not tell")
def test_the_checkpoint_gone_back_to_is_let_go(tiny, again, tmp_path):
    tiny()
    seen = []

    def look(event):
        if isinstance(event, StepDone):
            paths = [m.path for m in psutil.Process().memory_maps()]
            seen.extend(path for path in paths if "step-" in path)

    resume(tmp_path / "run", {"train.steps": 10}, around=Surroundings(listeners=[look]))
    assert seen == []


def test_texts_are_found_from_any_folder(text, tmp_path, monkeypatch):
    (tmp_path / "held.txt").write_text("one green bottle hanging on the wall\n" * 3, "utf-8")
    data = {"paths": ["text.txt", "builtin"], "validation": "held.txt"}
    monkeypatch.chdir(tmp_path)
    train({**TINY, "data": data}, out="run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resume("../run", {"train.steps": 9}).statistics["total_steps"] == 9


def test_learning_rates_after_a_resume_are_those_of_an_uninterrupted_run(tiny, again, stopping):
    _, whole, _ = tiny("whole")
    stopping(12)
    with pytest.raises(Interrupted):
        tiny("part")
    stopping(10**9)
    _, rest, _ = again("part")
    rates = {e.step: e.lr for e in whole if isinstance(e, StepDone)}
    resumed = {e.step: e.lr for e in rest if isinstance(e, StepDone)}
    assert resumed and resumed == {step: rates[step] for step in resumed}


def test_a_damaged_checkpoint_is_passed_over(tiny, again, tmp_path):
    whole, _, _ = tiny("whole")
    tiny("run")
    file = tmp_path / "run/checkpoints/step-000008/model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    _, events, notices = again("run")
    assert any("passed over" in line and "step-000008" in line for line in notices)
    assert [e.step for e in events if isinstance(e, StepDone)] == [7, 8]
    assert_same_bits(whole.folder, tmp_path / "run")


@pytest.mark.parametrize(
    "key, value",
    [
        ("train.seed", 9),
        ("train.batch_size", 5),
        ("optimizer.lr", 0.1),
        ("model.width", 64),
        ("compute.threads", 2),
        ("data.paths", ["elsewhere.txt"]),
    ],
)
def test_other_changes_are_refused_by_name(tiny, again, key, value):
    tiny()
    with pytest.raises(UsageError, match=key):
        again("run", {key: value})


def test_the_same_value_is_no_change(tiny, again):
    tiny()
    again("run", {"train.seed": 3, "train.steps": 8})


def test_changed_data_is_refused(tiny, again, text):
    tiny()
    text.write_text(text.read_text("utf-8").replace("green", "brown"), "utf-8")
    with pytest.raises(
        SplitbitError, match="the data is not what the run was begun with; bring the same text"
    ):
        again("run")


def test_changed_data_is_refused_before_the_first_checkpoint_is_due_too(
    tiny, again, stopping, text
):
    stopping(1)
    with pytest.raises(Interrupted):
        tiny()
    stopping(10**9)
    text.write_text(text.read_text("utf-8").replace("green", "brown"), "utf-8")
    with pytest.raises(SplitbitError, match="data is not what the run was begun with"):
        again("run")


def test_steps_win_even_where_the_epochs_give_as_many(tiny):
    by_epochs, _, _ = tiny("a", **{"train.steps": 0, "train.epochs": 0.05, "train.batch_size": 3})
    steps = by_epochs.statistics["total_steps"]
    both = {"train.steps": steps, "train.epochs": 0.05, "train.batch_size": 3}
    _, events, _ = tiny("b", **both)
    assert {event.tokens for event in events if isinstance(event, StepDone)} == {3 * 16}


def test_another_tokenizer_is_refused(tiny, again, tmp_path):
    tiny("run")
    tiny("other", **{"tokenizer.kind": "char"})
    (tmp_path / "other/tokenizer.json").replace(tmp_path / "run/tokenizer.json")
    with pytest.raises(SplitbitError, match=r"the tokenizer is not .* put its tokenizer.json back"):
        again("run")


def test_a_run_from_before_there_were_tiers_takes_the_machines(tiny, again, tmp_path):
    tiny()
    config = tmp_path / "run" / "config.toml"
    said = config.read_text("utf-8").splitlines()
    config.write_text("\n".join(line for line in said if not line.startswith("tier")), "utf-8")
    run, _, _ = again("run", {"train.steps": 9, "quantize.format": "auto"})
    assert run.statistics["quantizer"] == "q8_0"
    assert f'tier = "{Registry().probe().tier}"' in config.read_text("utf-8")


def test_a_folder_without_a_run(again, tmp_path):
    with pytest.raises(SplitbitError, match="holds no run"):
        again("nothing")


WORKER = """
import sys
sys.path[:0] = {paths!r}
from tests_tiny import TINY
from splitbit_kit.training.run import Surroundings, train, resume
from splitbit_kit.api import StepDone
def tell(event):
    if isinstance(event, StepDone): print(event.step, flush=True)
around = Surroundings(listeners=[tell])
if sys.argv[1] == "train":
    train(TINY, sys.argv[2], sys.argv[3], around=around)
else:
    resume(sys.argv[3], around=around)
"""


def test_a_process_killed_outright_and_resumed(tiny, again, text, tmp_path):
    """The real thing: SIGKILL while it writes, several times over."""
    config = {**TINY, "train": {**TINY["train"], "steps": 60}}
    config["checkpoint"] = {"save_every": 1}
    whole, _, _ = tiny("whole", **{"train.steps": 60, "checkpoint.save_every": 1})
    script = tmp_path / "worker.py"
    (tmp_path / "tests_tiny.py").write_text(f"TINY = {config!r}\n", "utf-8")
    script.write_text(WORKER.format(paths=[str(tmp_path)]), "utf-8")
    folder, verb, kills = tmp_path / "killed", "train", 0
    for wait in (3, 7, 12, 10**9):
        process = subprocess.Popen(
            [sys.executable, str(script), verb, str(text), str(folder)], stdout=subprocess.PIPE
        )
        for _ in range(wait):
            if not process.stdout.readline():
                break
        else:
            time.sleep(0.002 * wait)
            kills += process.poll() is None
            process.kill()
        process.wait()
        process.stdout.close()
        verb = "resume"
    assert kills >= 2
    assert_same_bits(whole.folder, folder)
