"""--quantizer and --quantize-every, and packed models given to `generate` and `eval`."""

from __future__ import annotations

from pathlib import Path

import pytest
from commandline import TINY, Run

NUMPY = ("--backend", "numpy", "--threads", "1")
NARROW = ("--set", "model.width=40", "--set", "model.hidden=40")


@pytest.fixture
def packed(run: Run, place: Path) -> Path:
    """Return the copy of the best model of a small finished run."""
    done = run("train", "text.txt", *TINY, "--quantizer", "q8_0", "--out", "run", "--json")
    assert done.code == 0
    assert done.last["quantizer"] == "q8_0"
    path = Path(done.last["quantized_model"])
    assert done.last["quantized_bytes"] == path.stat().st_size
    shown = f"best as q8_0: loss {done.last['quantized_loss']:.4f}, "
    assert shown in done.err
    assert f"validation loss: best {done.last['best_loss']:.4f}" in done.err
    return path


def test_a_packed_model_generates_and_is_measured(run: Run, packed: Path) -> None:
    text = run("generate", packed, "--prompt", "The", "--max-tokens", "9", "--seed", "1", *NUMPY)
    assert (text.code, text.err) == (0, f"model: model {packed}\n")
    assert len(text.out) > 5
    one = run("eval", packed, "text.txt", "--json", *NUMPY)
    other = run("eval", packed.parents[1], "text.txt", "--json", *NUMPY)
    assert one.last["model"] == f"model {packed}"
    assert one.last["loss"] == pytest.approx(other.last["loss"], abs=0.05)
    assert one.last["loss"] != other.last["loss"]


def test_without_a_quantizer_the_keys_are_null(run: Run) -> None:
    done = run("train", "text.txt", *TINY, "--out", "run", "--json")
    keys = ("quantizer", "quantized_model", "quantized_bytes", "quantized_loss")
    assert [done.last[key] for key in keys] == [None] * 4
    assert " as " not in done.err.splitlines()[-2]


def test_a_finished_run_gets_a_copy_by_resuming(run: Run) -> None:
    assert run("train", "text.txt", *TINY, "--out", "run").code == 0
    done = run("train", "--resume", "run", "--quantizer", "ternary", "--json")
    assert done.last["quantized_model"] == str(Path("run/best/model-ternary.safetensors"))
    assert run("eval", done.last["quantized_model"], "text.txt", *NUMPY).code == 0


def test_checkpoints_are_packed_too(run: Run) -> None:
    argv = ("--quantizer", "ternary", "--quantize-every", "3", "--out", "run")
    assert run("train", "text.txt", *TINY, *argv).code == 0
    for step in ("step-000003", "step-000004"):
        path = Path("run/checkpoints", step, "model-ternary.safetensors")
        assert run("generate", path, "--max-tokens", "2", *NUMPY).code == 0


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--quantizer", "q8"], "quantizer q8: there is no such quantizer; did you mean q8_0?"),
        (["--quantizer", ""], "quantize.format: empty"),
        (["--quantize-every", "2"], "use --quantizer"),
        (["--quantizer", "q8_0", "--quantize-every", "-2"], "quantize.every: -2 is below 0"),
        (["--quantizer", "q8_0", "--set", "quantize.options={a=1}"], "there is no option a"),
        (["--quantizer", "q8_0", *NARROW], "rows of 40 do not divide into blocks of 32"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_requests_are_one_line(run: Run, place: Path, argv: list[str], said: str) -> None:
    failed = run("train", "text.txt", *TINY, *argv, "--out", "run")
    assert failed.code == 2
    assert said in failed.error
    assert not (place / "run").exists()


def test_a_damaged_packed_model_is_one_line(run: Run, packed: Path) -> None:
    whole = packed.read_bytes()
    packed.write_bytes(whole[: len(whole) // 2])
    failed = run("generate", packed, *NUMPY)
    assert failed.code == 1
    assert "model-q8_0.safetensors: tensor" in failed.error
    packed.write_bytes(whole.replace(b"splitbit-kit model 1", b"splitbit-kit model 9"))
    assert "metadata format: splitbit-kit model 1 is expected" in run("eval", packed, "x").error
