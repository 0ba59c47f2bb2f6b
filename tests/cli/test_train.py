"""The verb `train`: what it writes, says and refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commandline import TEXT, TINY, Run

from splitbit_kit.cli.train import JSON_KEYS
from splitbit_kit.training.trainer import Trainer

KEYS_FOR_EVER = {
    *("run", "preset", "parameters", "backend", "precision", "threads", "reason"),
    *("total_steps", "epochs", "best_loss", "final_loss", "total_time_s", "tokens_per_second"),
}
"""Keys that a release had. Add to them; never take one away."""


def test_a_run_says_what_it_does_and_what_to_type_next(run: Run) -> None:
    done = run("train", "text.txt", *TINY, "--out", "r", "--eval-every", "2")
    assert (done.code, done.err) == (0, "")
    for part in (
        "tiny-llama: ",
        "vocabulary 257 (byte)",
        "backend numpy",
        "r: 4 steps of 128 tokens",
        "step 1/4",
        "step 4/4",
        "evaluation at step 0: loss ",
        "evaluation at step 2: loss ",
        "best so far",
        "sample at step 4:",
        "    | ",
        "saved step-000004",
        "finished after step 4",
        "validation loss: best ",
    ):
        assert part in done.out, part
    assert done.out.splitlines()[-1].endswith('next: splitbit-kit generate r --prompt "The"')
    assert Path("r/final/model.safetensors").is_file()


def test_a_run_without_out_goes_to_a_folder_of_its_own(run: Run) -> None:
    for n in (1, 2):
        done = run("train", "text.txt", *TINY, "--preset", "nanogpt-laptop", "--json")
        assert done.last["run"] == str(Path(f"runs/nanogpt-laptop-{n}"))


def test_output_in_a_pipe_is_lines_with_the_time_and_no_control_characters(run: Run) -> None:
    done = run("train", "text.txt", *TINY)
    for line in done.out.splitlines():
        assert line[2] == line[5] == ":" and line[:2].isdigit(), line
    assert all(c.isprintable() or c in "\n\t" for c in done.out)


def test_json_is_the_last_line_and_all_else_is_on_standard_error(run: Run) -> None:
    done = run("train", "text.txt", *TINY, "--out", "r", "--json")
    assert done.code == 0
    assert len(done.out.splitlines()) == 1
    assert "next: splitbit-kit generate r" in done.err
    assert list(done.last) == list(JSON_KEYS)
    assert done.last["run"] == "r"
    assert done.last["total_steps"] == 4
    assert done.last["reason"] == "finished"
    assert 0 < done.last["best_loss"] <= done.last["final_loss"]


def test_no_key_was_dropped() -> None:
    assert JSON_KEYS.keys() >= KEYS_FOR_EVER


def test_flags_win_over_set_and_set_over_file_and_file_over_preset(run: Run) -> None:
    Path("c.toml").write_text("[train]\nseed = 5\nsteps = 9\ngrad_clip = 0.5\n", "utf-8")
    more = ("--config", "c.toml", "--set", "train.seed=6", "--set", "train.steps=8")
    assert run("train", "text.txt", *TINY, *more, "--steps", "2", "--out", "r").code == 0
    written = Path("r/config.toml").read_text("utf-8")
    for line in ("seed = 6", "steps = 2", "grad_clip = 0.5", "layers = 1"):
        assert f"\n{line}\n" in written


def test_every_flag_reaches_the_configuration(run: Run) -> None:
    Path("held.txt").write_text("held out text, " * 20, "utf-8")
    flags = {
        "--encoding": ("utf-8", 'encoding = "utf-8"'),
        "--validation": ("held.txt", "held.txt"),
        "--strict": (None, "strict = true"),
        "--text-column": ("body", 'column = "body"'),
        "--track": ("tensorboard", '"tensorboard",'),
        "--steps": ("3", "steps = 3"),
        "--batch-size": ("3", "batch_size = 3"),
        "--seq-len": ("16", "seq_len = 16"),
        "--lr": ("0.25", "lr = 0.25"),
        "--seed": ("7", "seed = 7"),
        "--grad-accum": ("2", "grad_accum = 2"),
        "--grad-clip": ("0.75", "grad_clip = 0.75"),
        "--optimizer": ("sgd", 'name = "sgd"'),
        "--scheduler": ("constant", 'name = "constant"'),
        "--precision": ("fp64", 'precision = "fp64"'),
        "--threads": ("2", "threads = 2"),
        "--eval-every": ("2", "eval_every = 2"),
        "--save-every": ("3", "save_every = 3"),
        "--sample-every": ("1", "every = 1"),
        "--tier": ("full", 'tier = "full"'),
    }
    argv = [part for flag, (value, _) in flags.items() for part in (flag, value) if part]
    done = run("train", "text.txt", *TINY, *argv, "--out", "r")
    assert done.code == 0, done.err
    written = Path("r/config.toml").read_text("utf-8")
    for flag, (_, line) in flags.items():
        assert line in written, flag


def test_epochs_say_how_long(run: Run) -> None:
    argv = [a for a in TINY if a != "4"]  # "--steps", "4" and "--batch-size", "4"
    argv = [a for a in argv if a not in ("--steps", "--batch-size")]
    done = run("train", "text.txt", *argv, "--epochs", "0.1", "--out", "r", "--json")
    assert done.last["epochs"] == pytest.approx(0.1, abs=0.05)


def test_the_built_in_corpus_can_be_named_beside_others(run: Run, place: Path) -> None:
    # as the text held out it would be measured whole, which takes its time
    argv = [*TINY, "--validation", "text.txt", "--steps", "1"]
    (place / "other.txt").write_text(TEXT, "utf-8")
    done = run("train", "builtin", "other.txt", *argv, "--out", "r")
    assert done.code == 0, done.err
    assert '"builtin",' in Path("r/config.toml").read_text("utf-8")
    assert run("train", "builtin", "other.txt", "--resume", "r").code == 0
    (place / "builtin").mkdir()
    (place / "builtin" / "b.txt").write_text(TEXT, "utf-8")
    assert run("train", "./builtin", *argv, "--out", "b").code == 0
    assert "builtin" in Path("b/config.toml").read_text("utf-8")
    assert '"builtin",' not in Path("b/config.toml").read_text("utf-8")
    assert run("eval", "b", "./builtin", "--json").last["tokens"] == len(TEXT.encode())


def test_what_is_no_plain_text_in_a_folder_is_told(run: Run, place: Path) -> None:
    folder = place / "texts"
    folder.mkdir()
    (folder / "ok.txt").write_text(TEXT, "utf-8")
    (folder / "b.txt").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    (folder / "nul.txt").write_bytes(b"\0\0\1\0" * 99)
    (folder / "wide.txt").write_text(TEXT, "utf-16")
    (folder / "marked.txt").write_text(TEXT, "utf-8-sig")
    for n in range(9):
        (folder / f"c{n}.png").write_bytes(b"x")
    done = run("train", "texts", *TINY, "--out", "r")
    assert done.code == 0, done.err
    told = done.out
    assert "b.txt: skipped (byte 0 is not valid utf-8; " in told
    assert "11 files skipped in all" in told
    assert told.count(": skipped (") == 5
    assert re.search(r"wide\.txt: read as utf-16-.e, by its byte order mark", told)
    assert "marked.txt: read as utf-8, by its byte order mark" in told
    assert "ok.txt" not in told
    strict = run("train", "texts", *TINY, "--strict", "--out", "s")
    assert strict.code == 1
    assert "b.txt: byte 0 is not valid utf-8" in strict.error


def test_no_file_is_opened_in_the_encoding_of_the_system(place: Path) -> None:
    text = "zero\u200bwidth, caf\u00e9, \u5929\u5730\r\n" * 40
    (place / "odd.txt").write_bytes(text.encode())
    more = ("--set", "sample.prompt=caf\u00e9", "--set", "tokenizer.kind=char")
    for argv in (
        ("train", "odd.txt", *TINY, *more, "--out", "r"),
        ("train", "--resume", "r", "--steps", "5"),
        ("generate", "r", "--prompt", "caf\u00e9 \u200b", "--backend", "numpy"),
    ):
        done = subprocess.run(
            [*(sys.executable, "-X", "warn_default_encoding", "-X", "utf8=0"), *STRICT, *argv],
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        )
        assert done.returncode == 0, done.stderr.decode()
    assert "caf\u00e9" in (place / "r/config.toml").read_text("utf-8")
    assert set("\u200b\u5929\u5730") <= set((place / "r/tokenizer.json").read_text("utf-8"))


STRICT = ("-W", "error::EncodingWarning", "-m", "splitbit_kit")


# ---- folders


def test_a_folder_that_holds_a_run_is_refused_unless_it_may_be_overwritten(run: Run) -> None:
    assert run("train", "text.txt", *TINY, "--out", "r").code == 0
    before = Path("r/metrics.jsonl").read_bytes()
    again = run("train", "text.txt", *TINY, "--out", "r")
    assert again.code == 2
    assert "--resume r" in again.error and "--overwrite" in again.error
    assert Path("r/metrics.jsonl").read_bytes() == before
    done = run("train", "text.txt", *TINY, "--out", "r", "--steps", "2", "--overwrite", "--json")
    assert (done.code, done.last["total_steps"]) == (0, 2)


# ---- resume


def test_resume_goes_on_and_takes_what_equals_the_run(run: Run) -> None:
    assert run("train", "text.txt", *TINY, "--out", "r").code == 0
    same = [*TINY, "--steps", "6", "--preset", "tiny-llama", "--out", "r"]
    done = run("train", "text.txt", *same, "--resume", "r", "--json")
    assert done.code == 0, done.err
    assert done.last["total_steps"] == 6
    assert "resuming r at step 4 of 6" in done.err


@pytest.mark.parametrize(
    "change",
    [
        ["--steps", "5"],
        ["--epochs", "0.5"],
        ["--eval-every", "1"],
        ["--save-every", "1"],
        ["--sample-every", "1"],
        ["--backend", "numpy"],
        ["--track", "tensorboard"],
    ],
    ids=lambda change: change[0],
)
def test_resume_takes_a_change_of(run: Run, change: list[str]) -> None:
    assert run("train", "text.txt", *TINY, "--out", "r").code == 0
    assert run("train", "--resume", "r", *change).code == 0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (["--lr", "0.5"], "optimizer.lr"),
        (["--batch-size", "5"], "train.batch_size"),
        (["--seq-len", "16"], "train.seq_len"),
        (["--seed", "3"], "train.seed"),
        (["--grad-accum", "3"], "train.grad_accum"),
        (["--grad-clip", "3"], "train.grad_clip"),
        (["--optimizer", "sgd"], "optimizer.name"),
        (["--scheduler", "constant"], "scheduler.name"),
        (["--precision", "fp64"], "compute.precision"),
        (["--threads", "63"], "compute.threads"),
        (["--encoding", "cp1252"], "data.encoding"),
        (["--validation", "0.2"], "data.validation"),
        (["--strict"], "data.strict"),
        (["--text-column", "body"], "data.column"),
        (["--tokenizer", "t.json"], "tokenizer.file"),
        (["--preset", "nanogpt-laptop"], "preset"),
        (["--set", "model.layers=2"], "model.layers"),
        (["--config", "c.toml"], "--config"),
        (["--out", "elsewhere"], "--out"),
        (["--overwrite"], "--overwrite"),
        (["other.txt"], "data.paths"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_resume_refuses_another_change_by_name(
    run: Run, trained: Path, change: list[str], named: str
) -> None:
    before = (trained / "config.toml").read_bytes()
    refused = run("train", *change, "--resume", trained)
    assert refused.code == 2
    assert refused.error.startswith(f"error: {named}: ")
    assert (trained / "config.toml").read_bytes() == before


# ---- bad input


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["--steps", "x"], 2, "--steps"),
        (["--stepz", "4"], 2, "--steps"),
        (["--steps", "-1"], 2, "train.steps"),
        (["--epochs", "nan"], 2, "train.epochs"),
        (["--epochs", "inf"], 2, "train.epochs"),
        (["--batch-size", "-1"], 2, "train.batch_size"),
        (["--tier", "lite"], 2, "did you mean light?"),
        (["--lr", "0"], 2, "optimizer.lr"),
        (["--lr", "inf"], 2, "lr"),
        (["--seq-len", "99"], 2, "lower --seq-len to 32, or --set model.context=99"),
        (["--preset", "nanogpt-labtop"], 2, "did you mean nanogpt-laptop?"),
        (["--optimizer", "adamv"], 2, "did you mean adamw?"),
        (["--scheduler", "cosin"], 2, "did you mean cosine?"),
        (["--backend", "numpi"], 2, "did you mean numpy?"),
        (["--precision", "fp31"], 2, "fp32"),
        (["--set", "model.layer=2"], 2, "did you mean layers?"),
        (["--set", "modle.layers=2"], 2, "did you mean model?"),
        (["--set", "model.layers"], 2, "section.key=value"),
        (["--set", "model.layers=many"], 2, "model.layers"),
        (["--set", "optimizer.weightdecay=1"], 2, "weight_decay"),
        (["--set", "model.width=520", "--set", "model.heads=8"], 2, "use width"),
        (["--set", "model.width=1600", "--set", "model.heads=48"], 2, "use width"),
        (["--config", "none.toml"], 2, "none.toml"),
        (["--set", "sample.prompt=caf\udce9"], 2, "caf\\udce9"),
        (["--validation", "2"], 2, "data.validation"),
        (["--encoding", "klingon"], 2, "klingon"),
        (["none.txt"], 2, "none.txt"),
        (["empty.txt"], 1, "empty: 0 tokens, seq_len + 1 = 33 needed"),
        (["blank.txt"], 1, "2 tokens, seq_len + 1 = 33 needed; use --seq-len 1 or less, or more"),
        (["short.txt"], 1, "2 tokens, seq_len + 1 = 33 needed"),
        (["cp1252.txt"], 1, "--encoding cp1252"),
        (["--resume", "none"], 1, "none: holds no run"),
        (["--resume", "short.txt/"], 1, "short.txt: holds no run"),
    ],
    ids=lambda value: ascii(" ".join(value)) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_leaves_nothing(
    run: Run, place: Path, argv: list[str], code: int, said: str
) -> None:
    (place / "empty.txt").write_bytes(b"")
    (place / "blank.txt").write_bytes(b"   \n \n     \n")
    (place / "short.txt").write_bytes(b"0123456789")
    (place / "cp1252.txt").write_bytes(b"it\x92s ok" * 100)
    texts = [] if argv[-1].endswith(".txt") or "--resume" in argv else ["text.txt"]
    tiny = [] if "--resume" in argv else [*TINY, "--out", "r"]
    failed = run("train", *texts, *tiny, *argv)
    assert failed.code == code, failed
    assert said in failed.error
    assert not (place / "r").exists()
    assert not (place / "runs").exists()


def test_a_training_that_goes_astray_fails_and_keeps_its_checkpoint(run: Run) -> None:
    argv = [*TINY, "--steps", "60", "--save-every", "1", "--grad-clip", "0", "--out", "r"]
    astray = ["--set", "scheduler.warmup_steps=0", "--lr", "1e30"]
    failed = run("train", "text.txt", *argv, *astray, "--json")
    assert failed.code == 1
    assert "first tensor that is not finite" in failed.error
    assert failed.out == ""
    assert not Path("r/final").exists()
    assert list(Path("r/checkpoints").glob("step-*"))


def test_a_run_whose_model_cannot_be_written_fails(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a file where the folder should be, once nobody looks any more
    real = Trainer.run
    monkeypatch.setattr(Trainer, "run", lambda t: (t.folder.final.write_bytes(b""), real(t)))
    failed = run("train", "text.txt", *TINY, "--out", "r", "--json")
    assert failed.code == 1
    assert str(Path("r/final")) in failed.error
    assert failed.out == ""


def test_metrics_are_json_lines(trained: Path) -> None:
    lines = (trained / "metrics.jsonl").read_text("utf-8").splitlines()
    assert json.loads(lines[-1])["reason"] == "finished"
