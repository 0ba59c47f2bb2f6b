"""The trainer: what it writes, when, and how it ends."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from tiny_run import TINY

from splitbit_kit.api import (
    CheckpointSaved,
    EvalDone,
    RunEnded,
    RunStarted,
    SampleWritten,
    SplitbitError,
    StepDone,
    UsageError,
    hookimpl,
)
from splitbit_kit.formats import checkpoint, jsonl, safetensors
from splitbit_kit.registry import Registry
from splitbit_kit.training.learner import Learner, NonFiniteError
from splitbit_kit.training.run import Surroundings, train
from splitbit_kit.training.trainer import COPY_STATISTICS


def of(kind, events):
    return [event for event in events if isinstance(event, kind)]


def test_a_run_leaves_what_the_issue_promises(tiny):
    run, events, _ = tiny()
    names = {path.name for path in run.folder.iterdir() if not path.name.startswith(".")}
    assert names == {
        "config.toml",
        "tokenizer.json",
        "metrics.jsonl",
        "checkpoints",
        "best",
        "final",
    }
    assert (run.folder / "best/model.safetensors").exists()
    assert (run.folder / "final/model.safetensors").exists()
    assert sorted(p.name for p in (run.folder / "checkpoints").iterdir()) == [
        "step-000006",
        "step-000008",
    ]  # the newest two
    assert len(of(RunStarted, events)) == len(of(RunEnded, events)) == 1
    assert [event.step for event in of(StepDone, events)] == list(range(1, 9))
    assert [event.step for event in of(EvalDone, events)] == [0, 4, 8]
    assert [event.step for event in of(SampleWritten, events)] == [4, 8]
    assert [event.step for event in of(CheckpointSaved, events)] == [0, 2, 4, 6, 8]
    assert of(RunEnded, events)[0].reason == "finished"


def test_the_configuration_is_resolved(tiny):
    run, _, _ = tiny()
    text = (run.folder / "config.toml").read_text("utf-8")
    assert "auto" not in text
    assert 'backend = "numpy"' in text
    assert 'precision = "fp32"' in text
    assert "vocab_size = 257" in text
    assert "beta2 = 0.99" in text  # a default, so that a later one changes no run


def test_what_a_listener_raises_reaches_the_caller_after_all_have_heard(tmp_path, text):
    heard = []

    def full(event):
        if isinstance(event, StepDone | RunEnded):
            raise SplitbitError("no room")

    around = Surroundings(listeners=[full, heard.append])
    with pytest.raises(SplitbitError, match="no room"):
        train(TINY, text, tmp_path / "run", around=around)
    assert of(RunEnded, heard)[0].reason == "no room"


def test_a_best_model_that_cannot_be_written_is_a_notice(tiny, monkeypatch):
    real = checkpoint.replace_model

    def replace(folder, model):
        if folder.name == "best":
            raise SplitbitError(f"{folder}: in use")
        return real(folder, model)

    monkeypatch.setattr(checkpoint, "replace_model", replace)
    run, _, notices = tiny()
    assert sum("best: in use" in line for line in notices) == 2
    assert (run.folder / "final/model.safetensors").exists()


def test_closing_statistics(tiny):
    run, events, _ = tiny()
    evaluations = [event.loss for event in of(EvalDone, events)]
    found = run.statistics
    assert found["total_steps"] == 8
    assert found["best_loss"] == min(evaluations[1:])
    assert found["final_loss"] == evaluations[-1]
    assert found["total_time_s"] > 0
    tokens = 8 * 2 * 16
    assert found["tokens_per_second"] == pytest.approx(tokens / found["total_time_s"], rel=1e-3)
    told = of(RunEnded, events)[0].statistics
    assert told.keys() == found.keys()
    assert [key for key in told if told[key] is None] == list(COPY_STATISTICS)
    known = {key: value for key, value in found.items() if value is not None}
    assert {key: told[key] for key in known} == pytest.approx(known, rel=0.1)


def test_it_learns(tiny):
    _, events, _ = tiny(**{"train.steps": 40, "train.eval_every": 40, "checkpoint.save_every": 40})
    first, last = (event.loss for event in of(EvalDone, events))
    assert first == pytest.approx(math.log(257), abs=0.1)
    assert last < first - 1.5


def test_metrics_hold_every_step_evaluation_and_sample(tiny):
    run, events, _ = tiny()
    rows = jsonl.read(run.folder / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "train"] == list(range(1, 9))
    assert [row["loss"] for row in rows if row["kind"] == "eval"] == [
        event.loss for event in of(EvalDone, events)
    ]
    assert {"run", "train", "eval", "sample", "end"} == {row["kind"] for row in rows}


def test_the_best_model_is_the_one_with_the_lowest_loss(tiny):
    run, events, _ = tiny(**{"optimizer.lr": 0.5, "train.steps": 12})
    best = min(of(EvalDone, events)[1:], key=lambda event: event.loss)
    metadata = safetensors.read(run.folder / "best/model.safetensors").metadata
    assert int(metadata["step"]) == best.step
    assert json.loads(metadata["validation_loss"]) == best.loss


def test_ids_never_seen_in_training_are_kept_with_the_model(tiny, text):
    run, _, _ = tiny()
    unseen = json.loads(
        safetensors.read(run.folder / "final/model.safetensors").metadata["unseen_ids"]
    )
    seen = set(range(257)) - {i for start, stop in unseen for i in range(start, stop)}
    trained = text.read_bytes()
    assert seen == set(trained[: int((len(trained) + 1) * 0.9)])


def test_epochs_decide_the_steps_and_the_last_batch_may_be_ragged(tiny):
    run, events, _ = tiny(**{"train.steps": 0, "train.epochs": 0.05, "train.batch_size": 4})
    assert run.statistics["epochs"] == pytest.approx(0.05, abs=0.01)
    sizes = [event.tokens for event in of(StepDone, events)]
    assert set(sizes[:-1]) <= {4 * 16}
    assert 0 < sizes[-1] <= 4 * 16


def test_accumulation_equals_the_large_batch(tiny):
    _, events_one, _ = tiny("one", **{"train.batch_size": 4, "train.grad_accum": 1})
    _, events_many, _ = tiny("many", **{"train.batch_size": 1, "train.grad_accum": 4})
    for a, b in zip(of(StepDone, events_one), of(StepDone, events_many), strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-5)
        assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-4)


def test_warm_up_as_long_as_the_run_warns(tiny):
    _, _, notices = tiny(**{"scheduler.warmup_steps": 8})
    assert any("warm-up" in line for line in notices)


def test_a_sequence_longer_than_the_context_is_refused(tiny):
    with pytest.raises(UsageError, match=r"train.seq_len: 64 is above model.context, 32"):
        tiny(**{"train.seq_len": 64})


def test_a_folder_that_holds_a_run_is_refused_and_left_alone(tiny):
    run, _, _ = tiny()
    before = (run.folder / "metrics.jsonl").read_bytes()
    with pytest.raises(UsageError, match="holds a run; go on with --resume"):
        tiny()
    assert (run.folder / "metrics.jsonl").read_bytes() == before
    (run.folder / "mine.txt").write_text("keep", "utf-8")
    _, events, _ = tiny(overwrite=True)
    assert [event.step for event in of(StepDone, events)] == list(range(1, 9))
    assert (run.folder / "mine.txt").read_text("utf-8") == "keep"


@pytest.mark.parametrize("name", ["tokenizer.json", "best", "checkpoints"])
def test_what_another_program_left_is_not_replaced_unasked(tiny, tmp_path, name):
    mine = tmp_path / "run" / name / ("" if name.endswith(".json") else "model.bin")
    mine.parent.mkdir(parents=True)
    mine.write_text("mine", "utf-8")
    with pytest.raises(UsageError, match=f"{name}: is in the way"):
        tiny()
    assert mine.read_text("utf-8") == "mine"
    tiny(overwrite=True)


def test_a_run_half_deleted_is_still_a_run(tiny, monkeypatch):
    run, _, _ = tiny()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda path: 1 / 0)  # as far as the first file
        with pytest.raises(ZeroDivisionError):
            tiny(overwrite=True)
    assert not (run.folder / "checkpoints").exists()
    with pytest.raises(UsageError, match="holds a run"):
        tiny()


def test_nothing_is_left_where_the_data_is_bad(tiny, text):
    text.write_text("short", "utf-8")
    with pytest.raises(SplitbitError, match=r"seq_len \+ 1 = 17 needed"):
        tiny()
    assert not (text.parent / "run").exists()


def test_a_configuration_that_is_no_table_of_sections_is_named(text):
    with pytest.raises(UsageError, match="steps: a section is expected"):
        train({"steps": 5}, text)


def test_a_text_held_out_is_not_trained_on(tiny, text, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    text.rename(folder / "text.txt")
    (folder / "held.txt").write_text("~{}|" * 20, "utf-8")
    (folder / "same.txt").symlink_to("held.txt")
    held = str(tmp_path / "texts/held.txt")
    run, _, notices = tiny(source=folder, **{"data.validation": held})
    header = safetensors.read(run.folder / "final/model.safetensors").metadata
    unseen = [range(*pair) for pair in json.loads(header["unseen_ids"])]
    assert all(any(byte in part for part in unseen) for byte in b"~{}|")
    assert any("held.txt: skipped (it is held out for validation)" in line for line in notices)
    with pytest.raises(SplitbitError, match=r"no text found.*held out for validation"):
        tiny("other", source=held, **{"data.validation": held})


def test_an_unknown_option_of_a_plugin_is_named(tiny):
    with pytest.raises(UsageError, match="bata1"):
        tiny(**{"optimizer.bata1": 0.5})
    with pytest.raises(UsageError, match="adamx"):
        tiny(**{"optimizer.name": "adamx"})


def test_plugins_hear_of_a_run_begun_from_python(tmp_path, text):
    heard = []

    class Ears:
        @hookimpl
        def step_done(self, event):
            heard.append(event.step)

        @hookimpl
        def run_ended(self, event):
            raise OSError("deaf")

    notices = []
    registry = Registry(extra={"ears": Ears()}, notify=notices.append)
    train(TINY, text, tmp_path / "run", around=Surroundings(registry, notify=notices.append))
    assert heard == list(range(1, 9))
    assert sum("deaf" in line for line in notices) == 1


# ---- steps that go wrong


@pytest.fixture
def poisoned(monkeypatch):
    """Make chosen steps' gradients infinite in one tensor."""

    def poison(*steps):
        real = Learner.gradients

        def gradients(self, step, micro_batches):
            loss = real(self, step, micro_batches)
            if step in steps:
                self.grads["layers.0.mlp.up.weight"][0, 0] = np.inf
            return loss

        monkeypatch.setattr(Learner, "gradients", gradients)

    return poison


def test_an_infinite_gradient_stops_names_the_tensor_and_replaces_nothing(tiny, poisoned, tmp_path):
    poisoned(6)
    with pytest.raises(NonFiniteError, match=r"step 7: .* gradient of layers\.0\.mlp\.up\.weight"):
        tiny()
    found, damaged = checkpoint.newest_valid(tmp_path / "run/checkpoints")
    assert found.state["step"] == 6 and not damaged
    assert all(np.isfinite(a).all() for a in found.tensors["model"].arrays.values())
    assert not (tmp_path / "run/final").exists()
    assert jsonl.read(tmp_path / "run/metrics.jsonl")[-1]["kind"] == "end"


def test_by_policy_the_step_is_skipped(tiny, poisoned):
    poisoned(2, 6)
    run, events, notices = tiny(**{"train.non_finite": "skip"})
    assert [event.step for event in of(StepDone, events)] == [1, 2, 4, 5, 6, 8]
    assert sum("is skipped" in line for line in notices) == 2
    assert run.statistics["total_steps"] == 8


def test_not_every_step_is_skipped(tiny, poisoned):
    poisoned(*range(100))
    with pytest.raises(NonFiniteError, match="in a row were skipped"):
        tiny(**{"train.non_finite": "skip", "train.steps": 30})


def test_a_learning_rate_far_too_high_ends_with_a_line(tiny, tmp_path):
    try:
        tiny(**{"optimizer.lr": 1e30, "scheduler.warmup_steps": 0})
    except NonFiniteError as error:
        assert "first tensor that is not finite" in str(error)
        assert "\n" not in str(error)
    else:
        pytest.fail("the run did not go astray")
